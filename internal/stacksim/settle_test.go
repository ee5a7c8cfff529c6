package stacksim

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/pkg/kafka"
)

// logged is a record that is to be handled: it is outside of transactions, or in one that was committed.
type logged struct {
	value string
	at    time.Time
}

// heal ends every fault.
func (w *world) heal() {
	w.ledger.note("FAULT", "all end", "")
	for _, e := range w.ends {
		e.end()
	}
	w.ends = nil
	w.broker.Thaw()
	close(w.over)
	if w.at(0) == nil {
		w.spawn(0)
	}
}

// live are the processes that are members.
func (w *world) live() (live []*process) {
	w.ledger.mu.Lock()
	defer w.ledger.mu.Unlock()
	for _, p := range w.processes {
		if p.closing.IsZero() && !p.dead {
			live = append(live, p)
		}
	}
	return live
}

// settle waits until the history is stable and caught up, and complains if it takes longer than T.
func (w *world) settle() {
	begun := time.Now()
	w.last()
	const step, steady = 500 * time.Millisecond, 8
	good, epoch, why := 0, int32(-1), ""
	for time.Since(begun) < settleTimeout {
		time.Sleep(step)
		now, generation := w.unsettled()
		if why = now; why != "" || generation != epoch {
			good, epoch = 0, generation
			continue
		}
		if good++; good == steady {
			w.result.settled = time.Since(begun)
			w.ledger.note("SETTLED", "after", w.result.settled)
			return
		}
	}
	w.ledger.violated("STABLE", "not stable after %v: %s", settleTimeout, why)
	for _, p := range w.live() {
		w.ledger.note(p.name, "stats", p.consumer.Stats())
	}
}

// last writes a record to each partition, so that each has something to handle and commit.
func (w *world) last() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for i, t := range w.plan.topics {
		var records []kafka.Record
		r := w.fate("last", "", kafka.TopicPartition{}, 0, int64(i))
		for partition := range w.broker.Cluster().PartitionInfos(t.name) {
			records = append(records, w.newRecord(r, t.name, int32(partition)))
		}
		if err := w.broker.Produce(ctx, t.name, records...); err != nil {
			w.ledger.note("PRODUCE", "last failed", err)
		}
	}
}

// unsettled says what is not as it should be at the end, and the group's generation.
func (w *world) unsettled() (why string, generation int32) {
	live := w.live()
	info := w.broker.Cluster().GroupInfo(group)
	if info == nil {
		return "no group", -1
	}
	w.evict(info)
	if info.State != "Stable" || len(info.Members) != len(live) {
		return fmt.Sprintf("group is %s with %d members, %d are alive", info.State, len(info.Members), len(live)), info.Epoch
	}
	owners := make(map[kafka.TopicPartition]*process)
	for _, p := range live {
		if err := p.consumer.Healthy(); err != nil {
			return fmt.Sprintf("%s: %v", p, err), info.Epoch
		}
		if p.plan.strategy != "opportunistic" {
			w.commitNow(p)
		}
		for _, s := range p.consumer.Stats().Partitions {
			if other := owners[s.TopicPartition]; other != nil {
				return fmt.Sprintf("%s and %s both own %s", p, other, s.TopicPartition), info.Epoch
			}
			owners[s.TopicPartition] = p
		}
	}
	ends, committed := w.endOffsets(), w.committed()
	if len(owners) != len(ends) {
		return fmt.Sprintf("%d of %d partitions are owned", len(owners), len(ends)), info.Epoch
	}
	for tp, end := range ends {
		if committed[tp] != end {
			return fmt.Sprintf("%s is committed to %d of %d (%s)", tp, committed[tp], end, owners[tp]), info.Epoch
		}
	}
	return "", info.Epoch
}

// evict takes members out of a stable group that nobody speaks for. kfake starts a member's session when its JoinGroup is
// answered, and forgets to when the connection is gone by then: such a member stays for ever, which is not what Kafka does.
func (w *world) evict(info *kfake.GroupInfo) {
	if info.State != "Stable" {
		return
	}
	known := make(map[string]bool)
	for _, p := range w.live() {
		known[p.consumer.Stats().MemberID] = true
	}
	for _, m := range info.Members {
		w.ledger.mu.Lock()
		silent := time.Since(w.heard[m.MemberID])
		w.ledger.mu.Unlock()
		if known[m.MemberID] || silent < 2*sessionTimeout {
			continue
		}
		w.ledger.note("RIG", "evicts", m.MemberID)
		w.result.counts.ghosts++
		req := kmsg.NewPtrLeaveGroupRequest()
		req.Group, req.MemberID = group, m.MemberID
		leaves := kmsg.NewLeaveGroupRequestMember()
		leaves.MemberID = m.MemberID
		req.Members = append(req.Members, leaves)
		client, err := kgo.NewClient(kgo.SeedBrokers(w.broker.Addrs()...), kgo.Dialer(w.broker.Dial))
		if err != nil {
			panic(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		if _, err := req.RequestWith(ctx, client); err != nil {
			w.ledger.note("RIG", "not evicted", err)
		}
		cancel()
		client.Close()
	}
}

func (w *world) endOffsets() map[kafka.TopicPartition]int64 {
	ends := make(map[kafka.TopicPartition]int64)
	for _, t := range w.plan.topics {
		of, err := w.broker.EndOffsets(t.name)
		if err != nil {
			panic(err)
		}
		maps.Copy(ends, of)
	}
	return ends
}

func (w *world) committed() map[kafka.TopicPartition]int64 {
	committed, err := w.broker.Committed(group)
	if err != nil {
		panic(err)
	}
	return committed
}

// closeAll closes every member and demands that it ends in good order.
func (w *world) closeAll() {
	live := w.live()
	w.random.Shuffle(len(live), func(i, j int) { live[i], live[j] = live[j], live[i] })
	for _, p := range live {
		w.closeProcess(p)
		time.Sleep(between(w.random, 0, 2*time.Second))
	}
	time.Sleep(closeTimeout + 2*time.Second)
	for _, p := range w.processes {
		select {
		case <-p.consumer.Done():
		default:
			w.ledger.violated("G8", "%s has not ended", p)
		}
	}
	w.ledger.mu.Lock()
	for _, p := range live {
		if p.closed.IsZero() || p.closeErr != nil {
			w.ledger.violatedLocked("CLOSE", "Close of %s in a healthy group: %v", p, p.closeErr)
		}
	}
	w.ledger.mu.Unlock()
	if len(w.ledger.broken) > 0 {
		return
	}
	ends, committed := w.endOffsets(), w.committed()
	for tp, end := range ends {
		if committed[tp] != end {
			w.ledger.violated("G1", "%s is committed to %d of %d at the end", tp, committed[tp], end)
		}
	}
}

// readLog reads what was to be handled.
func (w *world) readLog() {
	w.log = make(map[spot]logged)
	ends := w.endOffsets()
	offsets, left := make(map[string]map[int32]kgo.Offset), 0
	for tp, end := range ends {
		if offsets[tp.Topic] == nil {
			offsets[tp.Topic] = make(map[int32]kgo.Offset)
		}
		offsets[tp.Topic][tp.Partition] = kgo.NewOffset().At(0)
		if end > 0 {
			left++
		}
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(w.broker.Addrs()...), kgo.Dialer(w.broker.Dial), kgo.ConsumePartitions(offsets),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(), kgo.FetchMaxWait(500*time.Millisecond))
	if err != nil {
		panic(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	reached := make(map[kafka.TopicPartition]int64)
	for ctx.Err() == nil {
		fetches := client.PollFetches(ctx)
		fetches.EachRecord(func(r *kgo.Record) {
			tp := kafka.TopicPartition{Topic: r.Topic, Partition: r.Partition}
			reached[tp] = r.Offset + 1
			if !r.Attrs.IsControl() {
				w.log[spot{tp, r.Offset}] = logged{string(r.Value), r.Timestamp}
			}
		})
		if !slices.ContainsFunc(slices.Collect(maps.Keys(ends)), func(tp kafka.TopicPartition) bool { return reached[tp] < ends[tp] }) {
			return
		}
	}
	w.ledger.violated("RIG", "the log cannot be read: %v of %v", reached, ends)
}

// tap notes the offsets of a commit, as it comes to a broker.
func (w *world) tap(req *kmsg.OffsetCommitRequest) {
	l := w.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	p := w.members[req.MemberID]
	if p == nil {
		l.violatedLocked("RIG", "a commit by %q", req.MemberID)
		return
	}
	for _, t := range req.Topics {
		for _, part := range t.Partitions {
			tp := kafka.TopicPartition{Topic: t.Topic, Partition: part.Partition}
			c := commitSeen{
				seq: l.next(), at: time.Now(), p: p, member: req.MemberID, generation: kafka.Generation(req.Generation), tp: tp, offset: part.Offset,
				tenure: p.tenure[tp], owned: p.owns[tp], revokedIn: p.revokedIn[tp],
			}
			l.commits = append(l.commits, c)
			l.noteLocked(p.name, "commit", fmt.Sprintf("%s %d generation %d, which is %v, tenure %d", tp, part.Offset, req.Generation, c.owned, c.tenure))
		}
	}
}
