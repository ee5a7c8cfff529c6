package integration

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/api"
)

// hands keeps what an asynchronous handler was given, until the test decides.
type hands struct {
	mu        sync.Mutex
	held      []*actors.RecordDelivery
	delivered map[int64]bool
	finished  map[int64]bool
}

func newHands() *hands {
	return &hands{delivered: make(map[int64]bool), finished: make(map[int64]bool)}
}

func (h *hands) handle(_ context.Context, d *actors.RecordDelivery) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.held = append(h.held, d)
	h.delivered[d.Offset()] = true
}

// take removes one delivery, nil when there is none.
func (h *hands) take(pick func(n int) int) *actors.RecordDelivery {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.held) == 0 {
		return nil
	}
	i, last := pick(len(h.held)), len(h.held)-1
	d := h.held[i]
	h.held[i] = h.held[last]
	h.held = h.held[:last]
	return d
}

// finish acknowledges a delivery. It is written down first, so that a commit that passes it is never too early.
func (h *hands) finish(t *testing.T, d *actors.RecordDelivery) {
	t.Helper()
	h.mu.Lock()
	h.finished[d.Offset()] = true
	h.mu.Unlock()
	require.NoError(t, d.Ack())
}

// firstOpen is the lowest record of the log that is not acknowledged, and end when there is none.
func (h *hands) firstOpen(log *holeyLog, end int64) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range log.committed {
		if !h.finished[s.offset] {
			end = min(end, s.offset)
		}
	}
	return end
}

// has reports whether every record of the log was delivered.
func (h *hands) has(log *holeyLog) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range log.committed {
		if !h.delivered[s.offset] {
			return false
		}
	}
	return true
}

// One record in each transaction, some of them aborted, acknowledged in any order: a commit never passes a record that is
// not acknowledged, never stands still before a hole, and ends at the high watermark.
func TestTransactions_RandomHolesAndRandomAcks(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		const transactions, steps = 60, 3
		topic, group := unique(t, "topic"), unique(t, "group")
		b.CreateTopic(t, topic, 1)
		tp, log, random, h := at(topic, 0), newHoleyLog(t, b, topic), rand.New(rand.NewPCG(4, 4)), newHands()
		defer log.close()
		m := spawn(t, config(b, group), api.HandleAsync(topic, h.handle, api.Unordered(4), api.MaxRecords(8), api.Restart(quick())))
		check := func() {
			t.Helper()
			committed := b.Committed(t, group)[tp]
			require.LessOrEqual(t, committed, h.firstOpen(log, math.MaxInt64), "committed, and the first record that is not acknowledged")
		}
		for range steps {
			for range transactions / steps {
				log.write(t, 1, 1, random.IntN(3) == 0)
				check()
			}
			eventually(t, patience, "every record is delivered", func() bool { return h.has(log) })
			for n := len(log.committed) / steps; n > 0; n-- { // about as many stay open
				d := h.take(random.IntN)
				if d == nil {
					break
				}
				if random.IntN(6) == 0 {
					require.NoError(t, d.Nack(errors.New("not yet")))
				} else {
					h.finish(t, d)
				}
				check()
			}
			// Nothing that was delivered is missing, so the commit comes to the first record that is open, over every hole.
			eventually(t, patience, "the commit is at the first open record", func() bool {
				want := h.firstOpen(log, b.EndOffsets(t, topic)[tp])
				return b.Committed(t, group)[tp] == want
			})
		}
		log.write(t, 1, 1, true) // the log ends with an aborted record and a marker
		eventually(t, patience, "the commit is at the high watermark", func() bool {
			for d := h.take(random.IntN); d != nil; d = h.take(random.IntN) {
				h.finish(t, d)
				check()
			}
			return assert.ObjectsAreEqual(b.EndOffsets(t, topic), b.Committed(t, group))
		})
		m.mustClose(t)
		require.Equal(t, b.EndOffsets(t, topic), b.Committed(t, group))
		for s := range log.aborted {
			require.False(t, h.delivered[s.offset], "%d was aborted", s.offset)
		}
		for s := range log.committed {
			require.True(t, h.finished[s.offset], "%d was lost", s.offset)
		}
		require.NotEmpty(t, log.aborted)
	})
}
