package actors

// openAt reports whether a record has no verdict.
func (d *Delivery) openAt(i int) bool { return d.claimed[i/64].Load()&(1<<(i%64)) == 0 }

// skip acknowledges a record in the handler's place, also one that was refused.
func (d *Delivery) skip(i int) {
	d.mu.Lock()
	delete(d.nacks, i)
	if d.skipped == nil {
		d.skipped = make(map[int]struct{})
	}
	d.skipped[i] = struct{}{}
	d.mu.Unlock()
	fresh := d.ackIndex(i)
	d.acked[i/64].Or(uint64(1) << (i % 64))
	_ = d.settle(fresh) // its partition holds it, so it is not stale
}

// Verdict is what a handler said about one record of a delivery.
type Verdict int

const (
	// VerdictOpen: nothing yet.
	VerdictOpen Verdict = iota
	// VerdictAcked: the record is acknowledged.
	VerdictAcked
	// VerdictRefused: the record was refused with Nack.
	VerdictRefused
)

// Verdict returns what was said about the record at offset, and why when it was refused. It is for tests and for actors
// that want to know what is left of a delivery; a record the delivery does not have is open.
func (d *Delivery) Verdict(offset int64) (Verdict, error) {
	i, ok := d.index(offset)
	if !ok {
		return VerdictOpen, nil
	}
	bit := uint64(1) << (i % 64)
	switch {
	case int64(i) < d.low.Load(), d.acked[i/64].Load()&bit != 0:
		return VerdictAcked, nil
	case d.claimed[i/64].Load()&bit == 0:
		return VerdictOpen, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if cause, refused := d.nacks[i]; refused {
		return VerdictRefused, cause
	}
	return VerdictOpen, nil // claimed by a caller that has not set it yet
}
