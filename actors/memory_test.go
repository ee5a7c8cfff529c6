package actors

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestMemory_HandsOutInTurnAndWakesWhoWaited(t *testing.T) {
	inMailboxes(t, func(m *mailboxes) {
		mem := newMemory(m.sys, 100)
		a, b, c := m.new(nil), m.new(nil), m.new(nil)
		first, second, third := holder{broker: 1}, holder{broker: 1, lane: 1}, holder{broker: 2}
		assert.Equal(t, 80, mem.ask(first, 80, 80, a))
		assert.True(t, mem.has(first))
		assert.Zero(t, mem.ask(second, 60, 60, b))
		assert.Zero(t, mem.ask(third, 10, 10, c), "a small one does not overtake")
		assert.False(t, mem.has(second))
		assert.Equal(t, int64(80), mem.held())
		mem.adjust(first, -40)
		assert.Equal(t, []int{0, 1, 0}, []int{m.taken(a), m.taken(b), m.taken(c)})
		assert.True(t, mem.has(second))
		assert.False(t, mem.has(third))
		mem.drop(second)
		assert.Equal(t, []int{0, 0, 1}, []int{m.taken(a), m.taken(b), m.taken(c)})
		mem.drop(first)
		mem.drop(third)
		mem.drop(third)
		assert.Zero(t, mem.held())
	})
}

func TestMemory_OneThatIsGoneLetsTheNextPass(t *testing.T) {
	inMailboxes(t, func(m *mailboxes) {
		mem := newMemory(m.sys, 100)
		a, b := m.new(nil), m.new(nil)
		part := partitionHolder(at(0), 1)
		mem.adjust(part, 250)
		assert.Equal(t, int64(250), mem.held(), "what is there is there, also above the limit")
		assert.Zero(t, mem.ask(holder{broker: 1}, 500, 500, a))
		assert.Zero(t, mem.ask(holder{broker: 2}, 10, 10, b))
		mem.drop(holder{broker: 1})
		assert.Zero(t, m.taken(b))
		mem.adjust(part, -200)
		assert.Equal(t, []int{0, 1}, []int{m.taken(a), m.taken(b)})
		mem.drop(part)
		mem.drop(holder{broker: 2})
		assert.Equal(t, 500, mem.ask(holder{broker: 1}, 500, 500, a), "one larger than the budget passes when nothing else is held")
	})
}

func TestMemory_AFetchTakesWhatIsThereWhenThatIsEnoughForOnePartition(t *testing.T) {
	inMailboxes(t, func(m *mailboxes) {
		mem := newMemory(m.sys, 100)
		a := m.new(nil)
		mem.adjust(partitionHolder(at(0), 1), 70) // a partition whose handler is stuck
		assert.Equal(t, 30, mem.ask(holder{broker: 1}, 20, 100, a))
		mem.drop(holder{broker: 1})
		assert.Zero(t, mem.ask(holder{broker: 1}, 40, 100, a))
	})
}
