package actors

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/pkg/kafka"
)

const keysInTest = 7

// keyOfTest spreads the records over a few keys; those of the last one have none.
func keyOfTest(r *kafka.Record) []byte {
	if r.Offset%keysInTest == keysInTest-1 {
		return nil
	}
	return []byte{byte(r.Offset % keysInTest)}
}

// keyLedger sees to it that the records of a key neither overlap nor change their order.
type keyLedger struct {
	mu      sync.Mutex
	open    map[string]int64
	done    map[string][]int64
	most    int
	wrong   []string
	byKey   bool
	visits  map[string]int
	refused map[string]bool
}

func newKeyLedger(byKey bool) *keyLedger {
	return &keyLedger{open: map[string]int64{}, done: map[string][]int64{}, byKey: byKey, visits: map[string]int{}, refused: map[string]bool{}}
}

func (l *keyLedger) lane(r *kafka.Record) string {
	if !l.byKey {
		return fmt.Sprintf("%s@%d", r.TopicPartition(), r.Offset)
	}
	return fmt.Sprintf("%s/%d", r.TopicPartition(), r.Offset%keysInTest)
}

func (l *keyLedger) begin(r *kafka.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lane := l.lane(r)
	if other, busy := l.open[lane]; busy {
		l.wrong = append(l.wrong, fmt.Sprintf("%s: %d begins inside of %d", lane, r.Offset, other))
	}
	l.open[lane] = r.Offset
	l.most = max(l.most, len(l.open))
	l.visits[fmt.Sprintf("%s@%d", r.TopicPartition(), r.Offset)]++
}

func (l *keyLedger) end(r *kafka.Record, good bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lane := l.lane(r)
	delete(l.open, lane)
	if !good {
		return
	}
	if done := l.done[lane]; len(done) > 0 && done[len(done)-1] > r.Offset {
		l.wrong = append(l.wrong, fmt.Sprintf("%s: %d done after %d", lane, r.Offset, done[len(done)-1]))
	}
	l.done[lane] = append(l.done[lane], r.Offset)
}

// failsOnce reports, once for each such record, that it is to fail.
func (l *keyLedger) failsOnce(r *kafka.Record, every int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	id := fmt.Sprintf("%s@%d", r.TopicPartition(), r.Offset)
	if r.Offset%every != 0 || l.refused[id] {
		return false
	}
	l.refused[id] = true
	return true
}

func (l *keyLedger) distinct() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.visits)
}

// parallelKinds are the handlers of each kind, each of which fails once at every eleventh record, in its own way.
func parallelKinds(l *keyLedger) map[string]func(*Registration) {
	pause := func() { time.Sleep(time.Duration(rand.IntN(5)) * time.Millisecond) }
	failure := errors.New("boom")
	return map[string]func(*Registration){
		"Record": func(reg *Registration) {
			reg.Record = func(_ context.Context, r *kafka.Record) error {
				l.begin(r)
				pause()
				bad := l.failsOnce(r, 11)
				l.end(r, !bad)
				switch {
				case bad && r.Offset%3 == 0:
					panic(failure)
				case bad && r.Offset%5 == 0:
					runtime.Goexit()
				case bad:
					return failure
				}
				return nil
			}
		},
		"Batch": func(reg *Registration) {
			reg.Batch = func(_ context.Context, records []kafka.Record) error {
				bad := false
				seen := map[string]bool{}
				for i := range records {
					if lane := l.lane(&records[i]); !seen[lane] {
						seen[lane] = true
						l.begin(&records[i])
					} else {
						l.end(&records[i], false)
						l.begin(&records[i])
					}
					bad = l.failsOnce(&records[i], 11) || bad
				}
				pause()
				for i := range records {
					l.end(&records[i], !bad)
				}
				if bad {
					return failure
				}
				return nil
			}
		},
		"Async": func(reg *Registration) {
			reg.MaxRecords = 1 // inside of a delivery the user may overlap
			reg.Async = func(_ context.Context, d *RecordDelivery) {
				r := d.Record()
				l.begin(r)
				if l.failsOnce(r, 13) {
					l.end(r, false)
					panic(failure)
				}
				go func() {
					pause()
					if l.failsOnce(r, 11) {
						l.end(r, false)
						_ = d.Nack(failure)
						return
					}
					l.end(r, true)
					_ = d.Ack()
				}()
			}
		},
		"Actor": func(reg *Registration) {
			reg.MaxRecords = 3
			reg.Actor = func(kafka.TopicPartition) actor.Actor {
				return actor.ReceiveFunc(func(ctx actor.Context) {
					m, ok := ctx.Message().(*Deliver)
					if !ok {
						return
					}
					refused := map[string]bool{} // inside of a delivery the order is the actor's to keep
					for i := range m.Records() {
						r := &m.Records()[i]
						l.begin(r)
						switch {
						case l.failsOnce(r, 23):
							l.end(r, false)
							panic(failure)
						case refused[l.lane(r)] || l.failsOnce(r, 11):
							refused[l.lane(r)] = true
							l.end(r, false)
							_ = m.Nack(r.Offset, failure)
						default:
							l.end(r, true)
							_ = m.Ack(r.Offset)
						}
					}
				})
			}
		},
	}
}
