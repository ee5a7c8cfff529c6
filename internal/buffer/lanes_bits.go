package buffer

import "math/bits"

// wordBits is how many slots share one word.
const wordBits = 64

// slotBits is a set of slots. Each bit of summary says whether a word has any, so that the first one of thousands is found
// in a few steps.
type slotBits struct {
	words   []uint64
	summary []uint64
}

// newSlotBits returns an empty set of slots below size, a multiple of wordBits.
func newSlotBits(size int) slotBits {
	words := size / wordBits
	return slotBits{words: make([]uint64, words), summary: make([]uint64, (words+wordBits-1)/wordBits)}
}

func (b *slotBits) set(at uint32) {
	word := at / wordBits
	b.words[word] |= 1 << (at % wordBits)
	b.summary[word/wordBits] |= 1 << (word % wordBits)
}

func (b *slotBits) clear(at uint32) {
	word := at / wordBits
	b.words[word] &^= 1 << (at % wordBits)
	if b.words[word] == 0 {
		b.summary[word/wordBits] &^= 1 << (word % wordBits)
	}
}

func (b *slotBits) has(at uint32) bool { return b.words[at/wordBits]&(1<<(at%wordBits)) != 0 }

// first returns the first one at or behind from, going on from the ring's end to its beginning.
func (b *slotBits) first(from uint32) (at uint32, ok bool) {
	if at, ok = b.behind(from); ok || from == 0 {
		return at, ok
	}
	return b.behind(0)
}

// behind returns the first one at or behind from.
func (b *slotBits) behind(from uint32) (at uint32, ok bool) {
	word := from / wordBits
	if int(word) >= len(b.words) {
		return 0, false
	}
	if rest := b.words[word] >> (from % wordBits); rest != 0 {
		return from + uint32(bits.TrailingZeros64(rest)), true
	}
	word++
	shift := word % wordBits
	for group := word / wordBits; int(group) < len(b.summary); group++ {
		if rest := b.summary[group] >> shift << shift; rest != 0 {
			word = group*wordBits + uint32(bits.TrailingZeros64(rest))
			return word*wordBits + uint32(bits.TrailingZeros64(b.words[word])), true
		}
		shift = 0
	}
	return 0, false
}
