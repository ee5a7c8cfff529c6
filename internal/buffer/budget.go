package buffer

import "fmt"

// Grant is a number of bytes that a waiting holder got.
type Grant[H comparable] struct {
	Holder H
	Bytes  int
}

// Budget hands out a limited number of bytes, first in, first out: who asks for little never overtakes who asked for much
// earlier, so nobody starves. It is owned by one actor and not safe for concurrent use.
//
// Invariants (checked by Valid): held is the sum of what the holders have, none of them negative; it is above the limit
// only by one grant made when nothing else was held, or by Adjust; the first one waiting does not fit.
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
// in line and a later call returns its [Grant]. A request larger than the limit passes when nothing else is held. A
// holder may ask more than once.
func (b *Budget[H]) Ask(holder H, bytes int) (granted bool) {
	bytes = max(bytes, 0)
	if len(b.waiting) == 0 && b.fits(bytes) {
		b.give(holder, bytes)
		return true
	}
	b.waiting = append(b.waiting, Grant[H]{Holder: holder, Bytes: bytes})
	return false
}

func (b *Budget[H]) fits(bytes int) bool { return b.held <= 0 || bytes <= b.limit-b.held }

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
	kept := b.waiting[:0]
	for _, w := range b.waiting {
		if w.Holder != holder {
			kept = append(kept, w)
		}
	}
	clear(b.waiting[len(kept):])
	b.waiting = kept
	return b.Adjust(holder, -b.holders[holder])
}

// pump grants from the head of the line as long as it fits.
func (b *Budget[H]) pump() []Grant[H] {
	n := 0
	for n < len(b.waiting) && b.fits(b.waiting[n].Bytes) {
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
	if len(b.waiting) > 0 && b.fits(b.waiting[0].Bytes) {
		return fmt.Errorf("buffer: %v waits for %d bytes that fit", b.waiting[0].Holder, b.waiting[0].Bytes)
	}
	return nil
}
