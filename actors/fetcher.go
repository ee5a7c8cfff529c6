package actors

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/internal/buffer"
	"github.com/troupego/troupe/pkg/kafka"
)

// lanes is how many connections a fetcher has to its broker: while one waits in a long poll for partitions without data,
// the other serves those that have room.
const lanes = 2

// fetcher reads from one broker, for the partitions routed to it. It never waits for a handler and keeps no records: it
// asks only for what a partition wants and hands over what came.
type fetcher struct {
	shared *shared
	self   *actor.PID
	group  *actor.PID
	broker kafka.Broker

	demand *buffer.Demand
	alarm  alarm
	lane   [lanes]fetchLane
	routes map[kafka.TopicPartition]fetchRoute
	lookup lookups
}

// fetchLane is one connection and the fetch that is under way on it.
type fetchLane struct {
	client FetchClient
	work   *worker
	// plan is the fetch that is sent, or waits for memory; nil for none.
	plan *buffer.FetchPlan
	// wanted is the bytes it asks for, maxBytes what memory was reserved for, 0 while it waits.
	wanted, maxBytes int
	sentAt           time.Time
}

// fetchRoute is a partition routed here. ends are the log's ends last told to it.
type fetchRoute struct {
	epoch                           kafka.AssignmentEpoch
	pid                             *actor.PID
	highWatermark, lastStableOffset int64
}

// fetchDone: a lane's worker -> fetcher.
type fetchDone struct {
	silent
	lane     int
	response *FetchResponse
	err      error
	took     time.Duration
}

func newFetcher(s *shared, broker kafka.Broker, group *actor.PID) *fetcher {
	return &fetcher{shared: s, broker: broker, group: group, routes: make(map[kafka.TopicPartition]fetchRoute)}
}

// Receive implements actor.Actor.
func (f *fetcher) Receive(ctx actor.Context) {
	f.receive(ctx, ctx.Message())
}

func (f *fetcher) receive(ctx actor.Context, message any) {
	switch m := message.(type) {
	case *actor.Started:
		f.start(ctx)
		return
	case *actor.Stopping:
		f.stop()
		return
	case *workDone:
		f.receive(ctx, m.worker.finished(m))
		return
	case *alarmRang:
		if f.lookup.alarm.rang(m) {
			f.lookupNext()
		} else if !f.alarm.rang(m) {
			return
		}
	case *partitionRouted:
		f.routes[m.tp] = fetchRoute{epoch: m.epoch, pid: m.pid, highWatermark: kafka.NoOffset, lastStableOffset: kafka.NoOffset}
		f.demand.Assign(m.tp, m.epoch)
		f.lookup.expect(m.tp)
	case *partitionUnrouted:
		if f.routes[m.tp].epoch == m.epoch {
			delete(f.routes, m.tp)
			f.demand.Unassign(m.tp, m.epoch)
			f.lookup.forget(m.tp)
		}
	case *brokerMoved:
		f.moved(m.broker)
	case *recordsWanted:
		f.lookup.heard(m.want.TopicPartition)
		f.demand.Want(m.want)
	case *memoryFreed:
		f.sendWaiting()
	case *fetchDone:
		f.fetched(ctx, m)
	case *offsetLookup:
		f.lookup.heard(m.query.TopicPartition)
		f.lookup.add(m)
		f.lookupSoon()
	case *lookupDone:
		f.lookedUp(ctx, m)
	}
	f.pump()
}

func (f *fetcher) start(ctx actor.Context) {
	f.self = ctx.Self()
	f.demand = buffer.NewDemand(buffer.DemandConfig{
		Lanes: lanes, MaxWait: f.shared.settings.FetchMaxWait, Seed: f.shared.settings.Seed,
		BrokerBackoffInitial: f.shared.settings.Backoff.Initial, BrokerBackoffMax: f.shared.settings.Backoff.Max,
	})
	for i := range f.lane {
		f.lane[i].client = f.shared.network.Fetch(f.broker)
		f.lane[i].work = newWorker(f.shared.sys, f.self, &f.shared.workers)
	}
	f.lookup.client = f.shared.network.Lookup(f.broker)
	f.lookup.work = newWorker(f.shared.sys, f.self, &f.shared.workers)
}

func (f *fetcher) stop() {
	f.alarm.stop()
	f.lookup.alarm.stop()
	for i := range f.lane {
		f.lane[i].work.stop()
		f.lane[i].client.Close()
		f.shared.memory.drop(f.holder(i))
	}
	f.lookup.work.stop()
	f.lookup.client.Close()
}

func (f *fetcher) holder(lane int) holder { return holder{broker: f.broker.ID, lane: lane} }

// moved replaces the connections: the broker has another address.
func (f *fetcher) moved(broker kafka.Broker) {
	f.broker = broker
	for i := range f.lane {
		f.lane[i].client.Close()
		f.lane[i].client = f.shared.network.Fetch(broker)
	}
	f.lookup.client.Close()
	f.lookup.client = f.shared.network.Lookup(broker)
}

// pump gives every free lane what is wanted.
func (f *fetcher) pump() {
	now := time.Now()
	for i := range f.lane {
		lane := &f.lane[i]
		if lane.plan != nil {
			continue
		}
		settings := &f.shared.settings
		plan, ok := f.demand.Plan(now, i, math.MaxInt) // the broker keeps to FetchMaxBytes, whatever the partitions may take
		if !ok {
			break
		}
		lane.plan = &plan
		sum := 0
		for _, w := range plan.Wants {
			sum += int(w.MaxBytes)
		}
		lane.wanted = min(sum, settings.FetchMaxBytes)
		if lane.maxBytes = f.shared.memory.fetch(f.holder(i), lane.wanted, f.self); lane.maxBytes > 0 {
			f.send(i)
		}
	}
	at, ok := f.demand.Deadline()
	f.alarm.setAt(f.shared.sys, f.self, at, ok)
}

// sendWaiting sends the fetches whose memory was granted meanwhile.
func (f *fetcher) sendWaiting() {
	for i := range f.lane {
		lane := &f.lane[i]
		if lane.plan == nil || !lane.sentAt.IsZero() {
			continue
		}
		if lane.maxBytes = f.shared.memory.fetchGranted(f.holder(i), lane.wanted); lane.maxBytes > 0 {
			f.send(i)
		}
	}
}

func (f *fetcher) send(i int) {
	lane, settings := &f.lane[i], &f.shared.settings
	plan := lane.plan
	lane.sentAt = time.Now()
	request := &FetchRequest{
		MaxWaitMillis: int32(plan.MaxWait.Milliseconds()), MinBytes: int32(settings.FetchMinBytes), MaxBytes: int32(lane.maxBytes),
		Isolation: settings.Isolation, Rack: settings.Rack, Partitions: make([]FetchPartition, len(plan.Wants)),
	}
	for n, w := range plan.Wants {
		request.Partitions[n] = FetchPartition{
			TopicPartition: w.TopicPartition, TopicID: w.TopicID, Offset: w.Offset, LeaderEpoch: w.LeaderEpoch,
			LastFetchedEpoch: w.LastFetchedEpoch, MaxBytes: w.MaxBytes,
		}
	}
	client, sent := lane.client, lane.sentAt
	lane.work.do(func(call context.Context) any {
		response, err := client.Fetch(call, request)
		return &fetchDone{lane: i, response: response, err: err, took: time.Since(sent)}
	})
}

// fetched hands an answer over, partition by partition. The bytes reserved for it are given back; each partition counts
// what it keeps.
func (f *fetcher) fetched(ctx actor.Context, m *fetchDone) {
	lane := &f.lane[m.lane]
	plan, sent := lane.plan, lane.sentAt
	lane.plan, lane.sentAt = nil, time.Time{}
	now := time.Now()
	if m.err != nil {
		f.shared.memory.drop(f.holder(m.lane))
		f.demand.Failed(now, m.lane)
		if !errors.Is(m.err, context.Canceled) {
			f.shared.trouble("fetch from "+f.broker.String(), m.err, f.shared.settings.Backoff.Initial)
			ctx.Send(f.group, &brokerDoubted{broker: f.broker, err: m.err})
			f.unanswered(ctx, plan, sent, m.err)
		}
		return
	}
	var got []buffer.Got
	empty := !slices.ContainsFunc(m.response.Partitions, func(p FetchedPartition) bool { return len(p.Chunk.Data) > 0 })
	for i := range m.response.Partitions {
		answer := &m.response.Partitions[i]
		want := plan.Wants[answer.Index]
		route, routed := f.routes[answer.TopicPartition]
		if !routed || route.epoch != want.Epoch {
			f.shared.staleMessage()
			continue
		}
		if part := f.handOver(ctx, want, route, answer, empty); part.Bytes > 0 || part.Failed {
			got = append(got, part)
		}
	}
	f.shared.memory.drop(f.holder(m.lane))
	f.demand.Answered(now, m.lane, m.took, got)
	if m.response.ThrottleMillis > 0 {
		f.demand.Throttled(now.Add(time.Duration(m.response.ThrottleMillis) * time.Millisecond))
	}
}

// unanswered tells the partitions of a fetch that failed as a whole.
func (f *fetcher) unanswered(ctx actor.Context, plan *buffer.FetchPlan, since time.Time, err error) {
	for _, want := range plan.Wants {
		if route, routed := f.routes[want.TopicPartition]; routed && route.epoch == want.Epoch {
			route.highWatermark = kafka.NoOffset // whatever the next answer says is news
			f.routes[want.TopicPartition] = route
			ctx.Send(route.pid, &fetchUnanswered{epoch: want.Epoch, since: since, err: err})
		}
	}
}

// handOver sends a partition what came for it: records, a failure, or news of the log's ends. An answer without any of
// these is not worth a message, and its want stays open. empty is true when there were no records for anybody.
func (f *fetcher) handOver(ctx actor.Context, want buffer.Want, route fetchRoute, answer *FetchedPartition, empty bool) buffer.Got {
	size := len(answer.Chunk.Data)
	used := size > 0 || answer.Err != nil || answer.Diverging != nil || answer.PreferredReadReplica >= 0
	news := answer.HighWatermark != route.highWatermark || answer.LastStableOffset != route.lastStableOffset
	empty = empty && want.ToEnd && !used
	if used || news || empty {
		route.highWatermark, route.lastStableOffset = answer.HighWatermark, answer.LastStableOffset
		if answer.Err != nil { // whatever the next answer says is news
			route.highWatermark = kafka.NoOffset
		}
		f.routes[want.TopicPartition] = route
		answer.Chunk.MaxBatchBytes = f.shared.settings.MaxBatchBytes
		ctx.Send(route.pid, &recordsFetched{epoch: want.Epoch, offset: want.Offset, broker: f.broker, answer: *answer, consumed: used, empty: empty})
	}
	return buffer.Got{TopicPartition: want.TopicPartition, Epoch: want.Epoch, Bytes: size, Failed: used && size == 0}
}
