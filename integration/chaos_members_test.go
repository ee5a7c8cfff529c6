//go:build unix

package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
)

// chaosWork is the most that a handler takes with a record; how long it really takes is drawn.
const chaosWork = 24 * time.Millisecond

// slot is one place in the group. When its member ends, another one takes the place.
type slot struct {
	name string
	// flags are those of a process.
	flags []string
	// registration makes the handler of a member inside this process; nil for a process.
	registration func(topic string, d *diary) api.Registration
	// instance is a static member's, which is a process.
	instance string
	// workers is how many records it may handle at once: in the order of their keys, or, for one, of the partition.
	workers int
	// given is how many records it may go on with that it has, when its process was frozen and wakes: its handler does not ask
	// before each of them whether they are still its own. An actor has a whole Deliver until its context ends.
	given   int
	current *incarnation
	lives   int
}

func chaosSlots() []*slot {
	const workers, deliver = 4, 20
	return []*slot{
		{name: "inside-partition", workers: 1, given: 1, registration: func(topic string, d *diary) api.Registration {
			return api.Handle(topic, d.handle)
		}},
		{name: "inside-async-key", workers: workers, given: workers, registration: func(topic string, d *diary) api.Registration {
			return api.HandleAsync(topic, d.handleAsync, api.KeyOrder(workers), api.MaxRecords(1))
		}},
		{name: "outside-static", workers: 1, given: 1, instance: "static", flags: []string{"-instance", "static", "-max-records", "50"}},
		{name: "outside-key", workers: workers, given: workers, flags: []string{"-order", "key", "-workers", fmt.Sprint(workers), "-offset-map"}},
		{name: "outside-actor", workers: 1, given: deliver, flags: []string{"-handler", "actor", "-max-records", fmt.Sprint(deliver)}},
	}
}

func (s *slot) any() bool            { return true }
func (s *slot) process() bool        { return s.registration == nil }
func (s *slot) static() bool         { return s.instance != "" }
func (s *slot) dynamicProcess() bool { return s.process() && !s.static() }

// incarnation is one member, from its start to its end.
type incarnation struct {
	slot *slot
	name string
	// One of the two is set.
	worker   *worker
	consumer *api.Consumer
	diary    diary
	events   timedEvents
}

// timedEvents are the last events of a member inside this process, as lines.
type timedEvents struct {
	mu    sync.Mutex
	lines []string
}

func (l *timedEvents) add(e event.Event) {
	const most = 200
	l.mu.Lock()
	defer l.mu.Unlock()
	line := fmt.Sprintf("%s %s %.400s", time.Now().Format("15:04:05.000"), e.Name(), fmt.Sprintf("%+v", e))
	l.lines = append(l.lines[max(0, len(l.lines)-most+1):], line)
}

// String lists them.
func (l *timedEvents) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n\t")
}

// join starts a member in a slot whose last one has ended.
func (c *chaos) join(t *testing.T, s *slot) {
	t.Helper()
	s.lives++
	life := &incarnation{slot: s, name: fmt.Sprintf("%s-%d", s.name, s.lives)}
	s.current = life
	c.lives = append(c.lives, life)
	if s.process() {
		life.worker = c.start(t, life.name, append([]string{"-spread", chaosWork.String()}, s.flags...)...)
		return
	}
	var err error
	life.consumer, err = api.Spawn(context.Background(), api.Config{
		Brokers: c.brokers, GroupID: c.group, ClientID: life.name, OffsetMap: s.workers > 1, SessionTimeout: chaosSession,
		RebalanceTimeout: chaosRebalance, RequestTimeout: chaosRequest, MetadataMaxAge: 5 * time.Second,
	}, s.registration(c.topic, &life.diary), api.WithObserver(life.observe), api.WithObserverBuffer(1<<14))
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
		defer cancel()
		_ = life.consumer.Close(ctx) // when the test has failed before
	})
}

// close ends a member in good order: everything it has finished is committed.
func (c *chaos) close(t *testing.T, life *incarnation) {
	t.Helper()
	if life.worker != nil {
		life.worker.terminate(t)
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), closeTimeout)
	defer cancel()
	assert.NoError(t, life.consumer.Close(ctx), "close %s", life.name)
}

func (i *incarnation) observe(e event.Event) {
	i.events.add(e)
	if _, lost := e.(event.PartitionsLost); lost {
		i.diary.lose(time.Now())
	}
}

// handling is one record in one handler.
type handling struct {
	place
	by         *incarnation
	epoch      uint64
	start, end int64 // in nanoseconds since 1970, as processes have no other clock in common
	// done is true when it was finished, false when it was cut short or its process died.
	done bool
}

// diary is what a member inside this process writes down.
type diary struct {
	mu        sync.Mutex
	handlings []handling
	lost      []int64
}

func (d *diary) lose(at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lost = append(d.lost, at.UnixNano())
}

func (d *diary) begin(record *kafka.Record, epoch kafka.AssignmentEpoch) (entry int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.handlings = append(d.handlings, handling{place: place{record.Partition, record.Offset}, epoch: uint64(epoch), start: time.Now().UnixNano()})
	return len(d.handlings) - 1
}

// work takes its time with a record, and ends early with the context.
func (d *diary) work(ctx context.Context, entry int) error {
	timer := time.NewTimer(rand.N(chaosWork))
	defer timer.Stop()
	var err error
	select {
	case <-timer.C:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.handlings[entry].end, d.handlings[entry].done = time.Now().UnixNano(), err == nil
	return err
}

func (d *diary) handle(ctx context.Context, record *kafka.Record) error {
	return d.work(ctx, d.begin(record, actors.DeliveryFrom(ctx).Epoch()))
}

func (d *diary) handleAsync(ctx context.Context, delivery *actors.RecordDelivery) {
	entry := d.begin(delivery.Record(), delivery.Epoch())
	go func() {
		if err := d.work(ctx, entry); err != nil {
			_ = delivery.Nack(err) // too late as well
			return
		}
		_ = delivery.Ack() // when it is too late, the record comes again
	}()
}

// worksSince reports whether the member has begun a record after a time.
func (i *incarnation) worksSince(t *testing.T, at time.Time) bool {
	t.Helper()
	if i.worker != nil {
		last := i.worker.lastTraced(t)
		return last.at.After(at)
	}
	i.diary.mu.Lock()
	defer i.diary.mu.Unlock()
	n := len(i.diary.handlings)
	return n > 0 && i.diary.handlings[n-1].start > at.UnixNano()
}

// handlings returns all that a member did, and when it lost its membership. It is for members that have ended.
func (i *incarnation) handlings(t *testing.T) (all []handling, lost []int64) {
	t.Helper()
	if i.worker == nil {
		i.diary.mu.Lock()
		defer i.diary.mu.Unlock()
		for _, h := range i.diary.handlings {
			h.by = i
			assert.NotZero(t, h.end, "%s has not returned from %s", i.name, h.place)
			all = append(all, h)
		}
		return all, i.diary.lost
	}
	type visit struct {
		place
		epoch uint64
	}
	open := make(map[visit]int)
	for _, line := range i.worker.trace(t) {
		v := visit{line.place, line.epoch}
		if line.what == "begin" {
			open[v] = len(all)
			all = append(all, handling{place: line.place, by: i, epoch: line.epoch, start: line.at.UnixNano(), end: i.worker.ended.UnixNano()})
			continue
		}
		if at, ok := open[v]; assert.True(t, ok, "%s ends %s, which it did not begin", i.name, line.place) {
			all[at].end, all[at].done = line.at.UnixNano(), line.what == "done"
		}
		delete(open, v)
	}
	for _, text := range i.worker.logged(`"event":"` + event.PartitionsLost{}.Name() + `"`) {
		var line struct {
			TS time.Time `json:"ts"`
		}
		require.NoError(t, json.Unmarshal([]byte(text), &line), "line %s of %s", text, i.name)
		lost = append(lost, line.TS.UnixNano())
	}
	return all, lost
}
