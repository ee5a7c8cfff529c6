package actors

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/pkg/kafka"
)

// workerRig is an actor that owns a worker and notes its results, or what finished panicked with.
type workerRig struct {
	work  *worker
	count workerCount

	mu    sync.Mutex
	lines []string
}

func (r *workerRig) note(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, line)
}

func (r *workerRig) results() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.lines)
}

func inWorkerRig(t *testing.T, f func(r *workerRig, turn func(func()))) {
	inMailboxes(t, func(m *mailboxes) {
		r := &workerRig{}
		pid := m.new(func(self *actor.PID, message any) {
			switch message := message.(type) {
			case func():
				message()
			case *workDone:
				func() {
					defer func() {
						if v := recover(); v != nil {
							r.note("panic")
						}
					}()
					r.note(fmt.Sprint(message.worker.finished(message)))
				}()
			}
		})
		r.work = newWorker(m.sys, pid, &r.count)
		f(r, func(f func()) { m.sys.root.Send(pid, f); synctest.Wait() })
		r.work.stop()
		r.count.wait()
	})
}

func after(d time.Duration, result any) func(context.Context) any {
	return func(ctx context.Context) any {
		select {
		case <-time.After(d):
			return result
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func TestWorker_OneCallAtATimeInOrder(t *testing.T) {
	inWorkerRig(t, func(r *workerRig, turn func(func())) {
		turn(func() {
			for i := range 3 {
				r.work.do(after(time.Second, i))
			}
		})
		for i := range 3 {
			assert.Len(t, r.results(), i)
			time.Sleep(time.Second)
			synctest.Wait()
		}
		assert.Equal(t, []string{"0", "1", "2"}, r.results())
	})
}

func TestWorker_AbortEndsTheCallForgetsTheQueueAndGoesOn(t *testing.T) {
	inWorkerRig(t, func(r *workerRig, turn func(func())) {
		turn(func() {
			r.work.do(after(time.Hour, "long"))
			r.work.do(after(0, "queued"))
			r.work.abort()
			r.work.do(after(time.Second, "next"))
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, []string{"context canceled", "next"}, r.results())
	})
}

func TestWorker_APanicComesBackInTheActorsTurnAndTheNextCallRuns(t *testing.T) {
	inWorkerRig(t, func(r *workerRig, turn func(func())) {
		turn(func() {
			r.work.do(func(context.Context) any { panic("bug") })
			r.work.do(after(0, "next"))
		})
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, []string{"panic", "next"}, r.results())
	})
}

func TestWorker_AfterStopNothingRuns(t *testing.T) {
	inWorkerRig(t, func(r *workerRig, turn func(func())) {
		turn(func() {
			r.work.do(after(time.Hour, "long"))
			r.work.do(after(0, "queued"))
			r.work.stop()
			r.work.do(after(0, "late"))
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, []string{"context canceled"}, r.results())
	})
}

func TestWorker_OnceWaitedForNoCallStarts(t *testing.T) {
	inWorkerRig(t, func(r *workerRig, turn func(func())) {
		turn(func() { r.work.do(after(time.Second, "last")) })
		begun := time.Now()
		r.count.wait()
		assert.Equal(t, time.Second, time.Since(begun))
		turn(func() { r.work.do(after(0, "late")) })
		time.Sleep(time.Second)
		r.count.wait()
		assert.Equal(t, []string{"last"}, r.results())
	})
}

func TestAlarm_OnlyTheLastTimeRings(t *testing.T) {
	inMailboxes(t, func(m *mailboxes) {
		var a, other alarm
		var rings []time.Duration
		begun := time.Now()
		pid := m.new(func(_ *actor.PID, message any) {
			switch message := message.(type) {
			case func():
				message()
			case *alarmRang:
				assert.False(t, other.rang(message), "another alarm's ring")
				if a.rang(message) {
					rings = append(rings, time.Since(begun))
				}
			}
		})
		turn := func(f func()) { m.sys.root.Send(pid, f); synctest.Wait() }
		set := func(in time.Duration, ok bool) { turn(func() { a.setAt(m.sys, pid, begun.Add(in), ok) }) }
		set(time.Second, true)
		set(3*time.Second, true)
		set(3*time.Second, true)
		time.Sleep(4 * time.Second)
		turn(func() {
			assert.Equal(t, []time.Duration{3 * time.Second}, rings)
			assert.False(t, a.set)
		})
		set(5*time.Second, true)
		set(0, false)
		time.Sleep(4 * time.Second)
		turn(func() { assert.Len(t, rings, 1, "stopped") })
		set(time.Second, true) // in the past: at once
		time.Sleep(time.Nanosecond)
		turn(func() {
			assert.Len(t, rings, 2)
			stale := &alarmRang{alarm: &a, seq: a.seq}
			a.setAt(m.sys, pid, time.Now().Add(time.Hour), true)
			a.stop()
			a.setAt(m.sys, pid, time.Now().Add(time.Hour), true)
			assert.False(t, a.rang(stale), "a ring that was on its way when the alarm was set anew")
			a.stop()
		})
	})
}

func TestJudgeFetch(t *testing.T) {
	for err, want := range map[error]fetchVerdict{
		errors.New("eof"):                      fetchLater,
		kafka.OffsetOutOfRange:                 fetchOutOfRange,
		coded("Fetch", kafka.OffsetOutOfRange): fetchOutOfRange,
		kafka.NotLeaderForPartition:            fetchElsewhere,
		kafka.FencedLeaderEpoch:                fetchElsewhere,
		kafka.UnknownLeaderEpoch:               fetchElsewhere,
		kafka.UnknownTopicOrPartition:          fetchElsewhere,
		coded("Fetch", kafka.UnknownTopicID):   fetchElsewhere,
		kafka.InconsistentTopicID:              fetchElsewhere,
		kafka.ReplicaNotAvailable:              fetchElsewhere,
		kafka.KafkaStorageError:                fetchElsewhere,
		kafka.OffsetNotAvailable:               fetchElsewhere,
		kafka.TopicAuthorizationFailed:         fetchLater,
		kafka.UnknownServerError:               fetchLater,
		kafka.ErrorCode(9999):                  fetchLater,
	} {
		assert.Equal(t, want, judgeFetch(err), "%v", err)
	}
}
