package capability

import "time"

// End takes a key back from above: by acquired it, and is done with what it was acquired for. Unlike Return it does not wait for
// others who are inside: their keys die with it, and it tells of them, the lowest first.
func (k *Key) End(by Holder) (inside []Level, err error) {
	s, _ := k.load()
	switch {
	case s.dead:
		return nil, k.refuse("end", by, s, ErrRevoked)
	case k.acquirer != by:
		return nil, k.refuse("end", by, s, ErrNotHolder)
	}
	alive, inside := k.confiscate()
	if alive {
		k.pop()
	}
	return inside, nil
}

// confiscate kills a key and all on top of it. When it returns none of them is alive, also those that somebody else is about
// to kill: a note of death says what lay on top.
func (k *Key) confiscate() (alive bool, inside []Level) {
	passed := false
	for at := k; at != nil; {
		s, seen := at.load()
		if !s.dead {
			note := deadKey
			if s.above != nil {
				note = &Key{sort: dead, before: s.above}
			}
			// The swap sees all that was put on top before it, and nothing can be put there after it.
			if !at.state.CompareAndSwap(seen, note) {
				continue
			}
			if at != k && !passed {
				inside = append(inside, Level{Holder: s.holder, Op: at.op})
			}
			alive = alive || at == k
		}
		passed, at = s.passed, s.above
	}
	return alive, inside
}

// Passed reports whether the key was passed on and is not dead.
func (k *Key) Passed() bool {
	s, _ := k.load()
	return !s.dead && s.passed
}

// Forced reports whether the key's stack is a callback's; see [Force].
func (k *Key) Forced() bool {
	s, _ := k.load()
	return !s.dead && k.family.forced
}

// Op returns what the key was acquired for.
func (k *Key) Op() string {
	if k == nil {
		return ""
	}
	return k.op
}

// Since returns when the token of the key's stack was granted, the zero time for a dead one.
func (k *Key) Since() time.Time {
	if s, _ := k.load(); !s.dead {
		return k.family.since
	}
	return time.Time{}
}
