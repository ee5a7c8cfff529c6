package actors

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/assert"
)

// mailboxes is a system with actors that only count what they get.
type mailboxes struct {
	sys *system
	mu  sync.Mutex
	got map[string]int
}

// inMailboxes runs f in a bubble with a system.
func inMailboxes(t *testing.T, f func(m *mailboxes)) {
	synctest.Test(t, func(*testing.T) {
		defer time.Sleep(2 * deadLetterThrottle)
		m := &mailboxes{sys: newSystem(nil, nil), got: make(map[string]int)}
		defer m.sys.shutdown()
		f(m)
		for _, a := range m.sys.alive() {
			m.sys.stop(actor.NewPID("nonhost", a.Name))
		}
		time.Sleep(time.Second)
	})
}

// new spawns an actor whose messages taken(its id) counts; react is what it does with each, nil for nothing.
func (m *mailboxes) new(react func(self *actor.PID, message any)) *actor.PID {
	return m.sys.spawnRoot("box", func() actor.Actor {
		return actor.ReceiveFunc(func(ctx actor.Context) {
			switch ctx.Message().(type) {
			case actor.SystemMessage, actor.AutoReceiveMessage:
				return
			}
			m.mu.Lock()
			m.got[ctx.Self().Id]++
			m.mu.Unlock()
			if react != nil {
				react(ctx.Self(), ctx.Message())
			}
		})
	})
}

// taken returns and clears the number of messages that an actor got.
func (m *mailboxes) taken(pid *actor.PID) int {
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.got[pid.Id]
	m.got[pid.Id] = 0
	return n
}

const offset7 = worksAt(7)

func TestGates_OneIsInsideAndTheNewestWaiterIsTold(t *testing.T) {
	inMailboxes(t, func(m *mailboxes) {
		g := newGates(m.sys)
		a, b, c := m.new(nil), m.new(nil), m.new(nil)
		assert.True(t, g.enter(at(0), 1, offset7, a))
		assert.True(t, g.enter(at(1), 1, offset7, a), "another partition has a gate of its own")
		assert.False(t, g.enter(at(0), 2, offset7, b))
		assert.False(t, g.enter(at(0), 3, offset7, c))
		g.leave(at(0), 3)
		assert.False(t, g.enter(at(0), 3, offset7, c), "only its own epoch opens a gate")
		g.leave(at(0), 1)
		assert.Equal(t, []int{0, 0, 1}, []int{m.taken(a), m.taken(b), m.taken(c)})
		assert.True(t, g.enter(at(0), 3, offset7, c))
		g.leave(at(0), 1)
		assert.False(t, g.enter(at(0), 4, offset7, a), "a second leave changes nothing")
	})
}

func TestGates_AbandonReportsTheHandlerOnceAndItsReturn(t *testing.T) {
	inMailboxes(t, func(m *mailboxes) {
		g := newGates(m.sys)
		assert.True(t, g.enter(at(0), 1, offset7, nil))
		time.Sleep(time.Second)
		returned := 0
		_, _, ok := g.abandon(at(0), 2, nil)
		assert.False(t, ok, "another epoch's handler is not running")
		offset, age, ok := g.abandon(at(0), 1, func() { returned++ })
		assert.True(t, ok)
		assert.Equal(t, int64(7), offset)
		assert.Equal(t, time.Second, age)
		_, _, ok = g.abandon(at(0), 1, func() { returned += 100 })
		assert.False(t, ok)
		assert.Equal(t, []RunningHandler{{TopicPartition: at(0), Offset: 7, Age: time.Second}}, g.running())
		g.leave(at(0), 1)
		assert.Equal(t, 1, returned)
		assert.Empty(t, g.running())
	})
}

func TestSlots_FirstComeFirstServed(t *testing.T) {
	inMailboxes(t, func(m *mailboxes) {
		s := newSlots(m.sys, 1)
		a, b, c := m.new(nil), m.new(nil), m.new(nil)
		assert.True(t, s.enter(a))
		assert.False(t, s.enter(b))
		assert.False(t, s.enter(c))
		assert.False(t, s.enter(b), "asking again keeps the place")
		s.leave()
		assert.False(t, s.enter(a), "nobody jumps the queue")
		assert.False(t, s.enter(c))
		assert.Equal(t, 1, m.taken(b))
		assert.True(t, s.enter(b))
		s.leave()
		assert.Equal(t, []int{0, 0, 1}, []int{m.taken(a), m.taken(b), m.taken(c)})
	})
}

func TestSlots_TwoPlacesThatGetFreeAtOnceWakeTwo(t *testing.T) {
	inMailboxes(t, func(m *mailboxes) {
		s := newSlots(m.sys, 2)
		a, b := m.new(nil), m.new(nil)
		x := m.new(nil)
		assert.True(t, s.enter(x))
		assert.True(t, s.enter(x))
		assert.False(t, s.enter(a))
		assert.False(t, s.enter(b))
		s.leave()
		s.leave()
		assert.Positive(t, m.taken(a))
		assert.True(t, s.enter(a))
		assert.Positive(t, m.taken(b), "the second free place must not wait for the first to be given back")
		assert.True(t, s.enter(b))
	})
}

func TestSlots_AWaiterThatIsGoneOrNotReadyHoldsNobodyUp(t *testing.T) {
	inMailboxes(t, func(m *mailboxes) {
		s := newSlots(m.sys, 1)
		a, b, c := m.new(nil), m.new(nil), m.new(nil)
		assert.True(t, s.enter(a))
		assert.False(t, s.enter(b))
		assert.False(t, s.enter(c))
		s.leave()
		s.forget(b)
		assert.Equal(t, 1, m.taken(c))
		assert.True(t, s.enter(c))
	})
}

func TestSlots_PassGivesTheTurnOnAndOneThatWaitsKeepsItsPlace(t *testing.T) {
	inMailboxes(t, func(m *mailboxes) {
		s := newSlots(m.sys, 1)
		a, b, c := m.new(nil), m.new(nil), m.new(nil)
		assert.True(t, s.enter(a))
		assert.False(t, s.enter(b))
		assert.False(t, s.enter(c))
		s.passActor(b)
		s.passActor(c)
		s.leave()
		assert.Equal(t, []int{1, 0}, []int{m.taken(b), m.taken(c)}, "nothing was free to pass")
		s.passActor(c)
		s.passActor(b)
		assert.Equal(t, []int{0, 1}, []int{m.taken(b), m.taken(c)})
		assert.True(t, s.enter(c))
	})
}

func TestSlots_NoWakeUpIsLostUnderLoad(t *testing.T) {
	inMailboxes(t, func(m *mailboxes) {
		s := newSlots(m.sys, 3)
		var mu sync.Mutex
		inside, most, done := 0, 0, 0
		const actors, turns = 20, 30
		for i := range actors {
			left := turns
			pid := m.new(func(self *actor.PID, _ any) {
				if left == 0 || !s.enter(self) {
					return
				}
				left--
				mu.Lock()
				inside++
				most = max(most, inside)
				mu.Unlock()
				time.AfterFunc(time.Duration(i%4)*time.Millisecond, func() {
					mu.Lock()
					inside--
					done++
					mu.Unlock()
					s.leave()
					m.sys.root.Send(self, &placeFree{})
				})
			})
			m.sys.root.Send(pid, &placeFree{})
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		assert.Equal(t, actors*turns, done)
		assert.Equal(t, 3, most)
	})
}

// worksAt is a handler that works on one offset for ever.
type worksAt int64

func (w worksAt) currentOffset() int64 { return int64(w) }
