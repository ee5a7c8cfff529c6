package buffer

// Lease says when the memory of one slab may be used again: when the slab was handed out to its end or dropped, and every
// hold on it was released cleanly. Its memory is recycled once at most. The nil Lease counts nothing. It is owned by one
// actor or one lock and not safe for concurrent use.
type Lease struct {
	memory Memory
	holds  int
	// ended says that no further hold will come, spoiled that somebody may read the memory for ever.
	ended, spoiled bool
}

// newLease returns the lease of memory, nil for nil.
func newLease(memory Memory) *Lease {
	if memory == nil {
		return nil
	}
	return &Lease{memory: memory}
}

// hold counts one more who reads.
func (l *Lease) hold() {
	if l != nil {
		l.holds++
	}
}

// Release ends a hold. It is clean when nobody can read the records any more: every one was acknowledged, or never
// delivered. After one that is not, the memory is left to the garbage collector. A release without a hold does nothing.
func (l *Lease) Release(clean bool) {
	if l == nil || l.holds == 0 {
		return
	}
	l.holds--
	l.spoiled = l.spoiled || !clean
	l.recycle()
}

// end says that no further hold will come.
func (l *Lease) end() {
	if l != nil {
		l.ended = true
		l.recycle()
	}
}

func (l *Lease) recycle() {
	if !l.ended || l.holds > 0 || l.spoiled || l.memory == nil {
		return
	}
	memory := l.memory
	l.memory = nil
	memory.Recycle()
}
