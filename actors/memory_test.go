package actors

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestMemory_HandsOutInTurnAndWakesWhoWaited(t *testing.T) {
	inMailboxes(t, func(m *mailboxes) {
		mem := newMemory(m.sys, 200)
		a, b, c := m.new(nil), m.new(nil), m.new(nil)
		first, second, third := partitionHolder(at(0), 1), partitionHolder(at(1), 1), partitionHolder(at(2), 1)
		assert.True(t, mem.decode(first, 100, a))
		assert.False(t, mem.decode(second, 60, b))
		assert.False(t, mem.decode(third, 10, c), "a small one does not overtake")
		assert.False(t, mem.decode(first, 1, nil), "and who would not wait does not, either")
		assert.Zero(t, mem.decodeGranted(second))
		assert.Equal(t, int64(100), mem.held())
		mem.adjust(first, 0, -60)
		assert.Equal(t, []int{0, 1, 0}, []int{m.taken(a), m.taken(b), m.taken(c)})
		assert.Equal(t, 60, mem.decodeGranted(second))
		assert.Zero(t, mem.decodeGranted(second), "it is told once")
		assert.Zero(t, mem.decodeGranted(third))
		mem.drop(second)
		assert.Equal(t, []int{0, 0, 1}, []int{m.taken(a), m.taken(b), m.taken(c)})
		mem.drop(first)
		mem.drop(third)
		mem.drop(third)
		assert.Zero(t, mem.held())
	})
}

func TestMemory_AnAnswerWaitsForNoDecodedRecordsAndRecordsForNoAnswer(t *testing.T) {
	inMailboxes(t, func(m *mailboxes) {
		mem := newMemory(m.sys, 200)
		a := m.new(nil)
		part := partitionHolder(at(0), 1)
		mem.adjust(part, 0, 250)
		assert.Equal(t, 100, mem.fetch(holder{broker: 1}, 1000, a), "what is decoded takes nothing from what is fetched")
		mem.drop(part)
		mem.adjust(part, 300, 0)
		assert.True(t, mem.decode(part, 50, a), "what is fetched can be decoded")
		assert.Equal(t, int64(450), mem.held(), "what is there is there, also above the limit")
		mem.drop(part)
		mem.drop(holder{broker: 1})
		assert.Zero(t, mem.held())
	})
}

func TestMemory_ABatchLargerThanTheBudgetPassesAndNothingBesideIt(t *testing.T) {
	inMailboxes(t, func(m *mailboxes) {
		mem := newMemory(m.sys, 200)
		a := m.new(nil)
		blocked, large, next := partitionHolder(at(0), 1), partitionHolder(at(1), 1), partitionHolder(at(2), 1)
		assert.True(t, mem.decode(blocked, 1, a))
		assert.True(t, mem.decode(large, 5000, a), "one that never lets go of little holds nobody up")
		assert.False(t, mem.decode(next, 1, a))
		mem.adjust(large, 0, -5000)
		assert.Equal(t, 1, mem.decodeGranted(next))
	})
}

func TestMemory_WhoLeavesGivesBackWhatItHasNotHeardOf(t *testing.T) {
	inMailboxes(t, func(m *mailboxes) {
		mem := newMemory(m.sys, 200)
		a, b, c := m.new(nil), m.new(nil), m.new(nil)
		first, second, third := partitionHolder(at(0), 1), partitionHolder(at(1), 1), partitionHolder(at(2), 1)
		assert.True(t, mem.decode(first, 100, a))
		assert.False(t, mem.decode(second, 100, b))
		assert.False(t, mem.decode(third, 100, c))
		mem.leave(second) // while it waits
		mem.adjust(first, 0, -100)
		assert.Equal(t, []int{0, 1}, []int{m.taken(b), m.taken(c)})
		mem.leave(third) // its message is under way
		assert.Zero(t, mem.held())
		assert.Zero(t, mem.decodeGranted(third))
	})
}

func TestMemory_AFetchTakesWhatIsThereAndWaitsOnlyForTheLeast(t *testing.T) {
	inMailboxes(t, func(m *mailboxes) {
		const half = 1 << 20
		mem := newMemory(m.sys, 2*half)
		a := m.new(nil)
		part, first, second := partitionHolder(at(0), 1), holder{broker: 1}, holder{broker: 1, lane: 1}
		mem.adjust(part, half-30<<10, 0) // a partition whose handler is stuck
		assert.Equal(t, 30<<10, mem.fetch(first, half, a))
		assert.Zero(t, mem.fetch(second, half, a))
		assert.Zero(t, mem.fetchGranted(second, half))
		mem.adjust(part, -100<<10, 0)
		assert.Equal(t, 1, m.taken(a))
		assert.Equal(t, 100<<10, mem.fetchGranted(second, half), "and then takes as much as there is")
		mem.drop(first)
		mem.drop(second)
		assert.Equal(t, 1000, mem.fetch(first, 1000, a), "but no more than it asks for")
	})
}

func TestMemory_PartitionsShareEachHalf(t *testing.T) {
	inMailboxes(t, func(m *mailboxes) {
		mem := newMemory(m.sys, 64<<20)
		assert.Equal(t, 32<<20, mem.share())
		for p := range int32(8) {
			mem.join(partitionHolder(at(p), 1))
			mem.join(partitionHolder(at(p), 1)) // another life of its actor
		}
		assert.Equal(t, 4<<20, mem.share())
		mem.drop(partitionHolder(at(0), 1))
		mem.drop(partitionHolder(at(0), 1))
		assert.Equal(t, 32<<20/7, mem.share())
		for p := range int32(5000) {
			mem.join(partitionHolder(at(p), 1))
		}
		assert.Equal(t, 2*maxChunks*leastFetch, mem.share(), "no less than a few usual batches")
	})
}
