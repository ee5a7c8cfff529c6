package buffer

import "fmt"

// Grant is a number of bytes that a waiting holder got.
type Grant[H comparable] struct {
	Holder H
	Bytes  int
}

// Budget hands out a limited number of bytes, first in, first out: who asks for little never overtakes who asked for much
// earlier. The first in line passes as long as anything is free, so the limit is exceeded by one grant at most. Were it to
// wait until all it asks for is free, a holder of little that never lets go would keep it, and all behind it, for ever.
// It is owned by one actor or one lock and not safe for concurrent use.
//
// Invariants (checked by Valid): held is the sum of what the holders have, none of them negative; it is above the limit
// only by the last grant, or by Adjust; who waits does so because the limit is reached.
type Budget[H comparable] struct {
	limit   int
	held    int
	holders map[H]int
	waiting []Grant[H]
}

// NewBudget returns a budget of limit bytes. With a limit of 0 or below one grant at a time passes.
func NewBudget[H comparable](limit int) *Budget[H] {
	return &Budget[H]{limit: limit, holders: map[H]int{}}
}

// Ask asks for bytes, of which a negative number counts as 0. It returns true when they are granted; else the holder waits
// in line and a later call returns its [Grant]. A request larger than what is free passes when anything is free at all,
// and so does one larger than the limit. A holder may ask more than once.
func (b *Budget[H]) Ask(holder H, bytes int) (granted bool) {
	if b.Try(holder, bytes) {
		return true
	}
	b.waiting = append(b.waiting, Grant[H]{Holder: holder, Bytes: max(bytes, 0)})
	return false
}

// Try is Ask without waiting: what is not granted is forgotten.
func (b *Budget[H]) Try(holder H, bytes int) (granted bool) {
	if len(b.waiting) > 0 || b.full() {
		return false
	}
	b.give(holder, max(bytes, 0))
	return true
}

// full reports whether nothing is free. A budget of which nothing is held is never full, whatever its limit.
func (b *Budget[H]) full() bool { return b.held > 0 && b.held >= b.limit }

func (b *Budget[H]) give(holder H, bytes int) {
	b.held += bytes
	if bytes > 0 {
		b.holders[holder] += bytes
	}
}

// Release gives bytes back, at most those the holder has, and returns who gets some now.
func (b *Budget[H]) Release(holder H, bytes int) []Grant[H] {
	return b.Adjust(holder, -max(bytes, 0))
}

// Adjust changes what a holder has by delta: bytes were asked for compressed and are held decompressed. It may go beyond
// the limit, for what is there is there; a negative delta frees at most what the holder has. It returns who gets some now.
func (b *Budget[H]) Adjust(holder H, delta int) []Grant[H] {
	has := max(b.holders[holder]+delta, 0)
	b.held += has - b.holders[holder]
	if has == 0 {
		delete(b.holders, holder)
	} else {
		b.holders[holder] = has
	}
	return b.pump()
}

// Drop ends a holder: what it has is free, and what it waits for is forgotten. It returns who gets some now.
func (b *Budget[H]) Drop(holder H) []Grant[H] {
	b.forget(holder)
	return b.Adjust(holder, -b.holders[holder])
}

// Withdraw forgets what a holder waits for; what it has stays. It returns who gets some now.
func (b *Budget[H]) Withdraw(holder H) []Grant[H] {
	b.forget(holder)
	return b.pump()
}

func (b *Budget[H]) forget(holder H) {
	kept := b.waiting[:0]
	for _, w := range b.waiting {
		if w.Holder != holder {
			kept = append(kept, w)
		}
	}
	clear(b.waiting[len(kept):])
	b.waiting = kept
}

// pump grants from the head of the line as long as anything is free.
func (b *Budget[H]) pump() []Grant[H] {
	n := 0
	for n < len(b.waiting) && !b.full() {
		b.give(b.waiting[n].Holder, b.waiting[n].Bytes)
		n++
	}
	if n == 0 {
		return nil
	}
	grants := append([]Grant[H](nil), b.waiting[:n]...)
	rest := copy(b.waiting, b.waiting[n:])
	clear(b.waiting[rest:])
	b.waiting = b.waiting[:rest]
	return grants
}

// Held returns the bytes held by all.
func (b *Budget[H]) Held() int { return b.held }

// HeldBy returns the bytes a holder has.
func (b *Budget[H]) HeldBy(holder H) int { return b.holders[holder] }

// Waiting returns how many requests wait.
func (b *Budget[H]) Waiting() int { return len(b.waiting) }

// Free returns the bytes below the limit, 0 while it is reached or passed, or while somebody waits in line for them.
func (b *Budget[H]) Free() int {
	if len(b.waiting) > 0 {
		return 0
	}
	return max(0, b.limit-b.held)
}

// Valid checks the invariants named at the type.
func (b *Budget[H]) Valid() error {
	sum := 0
	for holder, bytes := range b.holders {
		if bytes <= 0 {
			return fmt.Errorf("buffer: holder %v has %d bytes", holder, bytes)
		}
		sum += bytes
	}
	if sum != b.held {
		return fmt.Errorf("buffer: %d bytes held, the holders have %d", b.held, sum)
	}
	if len(b.waiting) > 0 && !b.full() {
		return fmt.Errorf("buffer: %v waits for %d bytes, %d of %d are held", b.waiting[0].Holder, b.waiting[0].Bytes, b.held, b.limit)
	}
	return nil
}
