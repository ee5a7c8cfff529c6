package actors

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"github.com/troupego/troupe/internal/buffer"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// loudAfter is after how many failures in a row a partition that looks for its leader is reported, and no longer flows.
const loudAfter = 3

// maxChunks is how many answers a partition keeps undecoded: one to go on with while the next is on its way.
const maxChunks = 2

// intake is the partition's side of fetching: where it reads, what it has, and what it waits for.
type intake struct {
	fetcher *actor.PID
	leader  leaderKnown
	// fetchFrom is the next offset to ask for, lastEpoch the leader epoch of the last batch fetched; decodeFrom is the next
	// offset to decode.
	fetchFrom  int64
	lastEpoch  int32
	decodeFrom int64
	// wanting is true while a credit is out, chunks counts the answers not decoded to their end.
	wanting bool
	chunks  int
	// maxBytes is asked for, or less where the memory budget is shared by many; need is the size of the largest batch that
	// did not fit, lastSize that of the last answer.
	maxBytes, need, lastSize int
	surplus                  *buffer.Surplus[ChunkReader]
	// delivering is the bytes of slabs whose last records are being delivered.
	delivering int64
	// compressed and decoded are what the memory register has of the partition, as far as the partition has heard;
	// waitingMemory is true while it stands in line for the memory to decode into. expected is what a batch takes, going by
	// those before it; 0 before the first.
	compressed, decoded int
	waitingMemory       bool
	// merged is the room for records copied together, mergedOut true while a delivery has it.
	merged    []kafka.Record
	mergedOut bool
	// leaseSpace has the leases that takeRecords returned last.
	leaseSpace [8]*buffer.Lease
	expected   int

	// reset is the offset that is looked up, lookupID the question that is under way.
	reset    *resetLookup
	lookupID uint64
	// rewind is where to go on after the outstanding delivery, when that is before the position; nil for nowhere.
	rewind *int64
	// unproven is true when the commit was of another incarnation of the topic, until a fetch has shown that ours is the present
	// one. Metadata may be older than the commit, and one at our start would take its place: offsets are committed by name.
	unproven bool
	// stuck is true when only a new assignment can help.
	stuck bool
	// failed is true while a batch cannot be read; alarm is the next try of whatever failed, after failures in a row.
	failed   bool
	alarm    alarm
	failures int
	// displaced counts the times in a row that the leader did not have the position, with no fetch in between that succeeded.
	displaced int
	// unread is since when fetches of the partition fail, zero while they do not, and unreadErr what they failed with last.
	unread    time.Time
	unreadErr error
}

func newIntake(maxBytes int) intake {
	return intake{
		maxBytes: maxBytes, fetchFrom: kafka.NoOffset, lastEpoch: kafka.NoLeaderEpoch, surplus: buffer.NewSurplus(0, ChunkReader.Close),
	}
}

// restart empties the intake and goes on at offset.
func (in *intake) restart(offset int64) {
	in.fetchFrom, in.decodeFrom = offset, offset
	in.wanting, in.chunks = false, 0
	in.surplus.Drop()
	in.surplus = buffer.NewSurplus(offset, ChunkReader.Close)
}

// startDecided begins at the committed offset, or looks the first one up.
func (p *partition) startDecided(ctx actor.Context, m *startDecided) {
	if p.machine.State() != rebalance.PartitionAssigning {
		return
	}
	p.intake.unproven = m.anew
	if !p.awaitsEnd(ctx, m) {
		p.begin(ctx, m)
	}
}

// begin follows the decision where to start.
func (p *partition) begin(ctx actor.Context, m *startDecided) {
	switch d := m.decision.(type) {
	case rebalance.StartAt:
		ours := p.adoptMap(m)
		// Epoch 0 is also what clients write that do not know the epoch; taken at their word it would look like a truncation.
		if d.LeaderEpoch > 0 || d.LeaderEpoch == 0 && ours {
			p.intake.lastEpoch = d.LeaderEpoch
		}
		p.feed(ctx, rebalance.PositionKnown{Offset: d.Offset})
	case rebalance.StartFromReset:
		p.intake.reset = newResetLookup(d)
		p.lookUp(ctx)
	case rebalance.StartFails:
		p.startFails(kafka.NoOffset, d.Err)
	case rebalance.AskLeader:
	}
}

// startFails stands still, loudly: only a person can say where to start.
func (p *partition) startFails(offset int64, err error) {
	p.intake.failed, p.intake.stuck = true, true
	p.cell.condition.Store(int32(conditionFailed))
	p.shared.observe(event.PartitionFailed{Member: p.shared.member(), TopicPartition: p.tp, Offset: offset, Err: err})
	p.shared.logger.Error("partition cannot start", zap.String("topic", p.tp.Topic), zap.Int32("partition", p.tp.Partition), zap.Error(err))
	p.cannotEnd(err)
}

func (p *partition) leaderKnown(ctx actor.Context, m *leaderKnown) {
	in := &p.intake
	if before := in.leader.topicID; !before.IsZero() && !m.topicID.IsZero() && before != m.topicID {
		p.recreated(ctx, before, m.topicID)
		return
	}
	if !in.failed && (in.fetcher == nil || in.leader.leaderEpoch != m.leaderEpoch) {
		in.alarm.stop() // what failed may have failed because of the old leader
	}
	in.fetcher, in.leader = m.fetcher, *m
	p.cell.topicID.Store(&m.topicID)
	in.wanting = false
	if p.lookingUp() {
		p.lookUp(ctx)
		return
	}
	p.pump(ctx)
}

// recreated stands still: the topic was deleted and made anew, so neither position nor acknowledgments mean anything in it.
// The group's leader sees the new id, too, and has all partitions assigned anew.
func (p *partition) recreated(ctx actor.Context, before, now kafka.TopicID) {
	p.intake.fetcher, p.orphaned = nil, true
	p.dropSurplus()
	if p.committer != nil {
		ctx.Send(p.committer, &partitionFenced{tp: p.tp, epoch: p.epoch})
	}
	p.shared.observe(event.Refused{Member: p.shared.member(), Err: fmt.Errorf("%w: %s: id was %s, is %s", errTopicRecreated, p.tp, before, now)})
}

// errTopicRecreated is why nothing is committed for a partition of a topic that was made anew.
var errTopicRecreated = errors.New("troupe: the topic was deleted and made anew")

// want asks for more when there is room. One want is one credit.
func (p *partition) want(ctx actor.Context) {
	in := &p.intake
	if !p.machine.CanDeliver() || in.fetcher == nil || in.wanting || in.stuck || in.alarm.set || p.lookingUp() || in.rewind != nil ||
		p.seek != nil || in.chunks >= maxChunks || p.limit.Reached(in.fetchFrom) {
		return
	}
	bytes, ok := p.fetchSize()
	if !ok {
		return
	}
	in.wanting = true
	ctx.Send(in.fetcher, &recordsWanted{want: buffer.Want{
		TopicPartition: p.tp, Epoch: p.epoch, TopicID: in.leader.topicID, Offset: in.fetchFrom,
		LeaderEpoch: in.leader.leaderEpoch, LastFetchedEpoch: in.lastEpoch, MaxBytes: int32(bytes), ToEnd: p.limit.End() != kafka.NoOffset,
	}})
}

// fetchSize is how many bytes to ask for. It reports false when that would be more than the partition may fetch ahead: one
// that waits for its handler must leave room for the others. One that holds nothing may always ask.
func (p *partition) fetchSize() (bytes int, ok bool) {
	in := &p.intake
	share := p.shared.memory.share() / 2 // the rest is for fetches on their way, and for answers larger than asked for
	bytes = max(min(in.maxBytes, max(share/maxChunks, p.shared.memory.least)), in.need)
	compressed, decoded := in.surplus.Bytes()
	if compressed == 0 && decoded == 0 && in.delivering == 0 {
		return bytes, true
	}
	return bytes, compressed+max(bytes, in.lastSize) <= share // a broker sends a batch that is larger than asked for
}

// recordsFetched takes an answer over, or judges what went wrong.
func (p *partition) recordsFetched(ctx actor.Context, m *recordsFetched) {
	in, answer := &p.intake, &m.answer
	size := len(answer.Chunk.Data)
	// Whoever is not read from any more has no say: a follower's error must not be taken for the leader's.
	if m.epoch != p.epoch || m.offset != in.fetchFrom || m.broker.ID != in.leader.broker.ID || !p.machine.CanDeliver() {
		p.shared.staleMessage()
		return
	}
	switch {
	case answer.Err != nil:
		in.unanswered(time.Now(), answer.Err)
	case answer.Diverging == nil:
		in.unread, in.unreadErr, in.displaced = time.Time{}, nil, 0
	}
	if end := answer.HighWatermark; answer.Err == nil && end >= 0 {
		if p.shared.settings.Isolation == kafka.ReadCommitted && answer.LastStableOffset >= 0 {
			end = answer.LastStableOffset
		}
		p.cell.end.Store(end)
		if m.empty {
			p.foundNothing(ctx, end)
		}
	}
	if in.unproven && answer.Err == nil {
		in.unproven = false
		p.offer(ctx)
	}
	if !m.consumed {
		return
	}
	in.wanting = false
	switch {
	case answer.Err != nil:
		p.fetchFailed(ctx, m.broker, answer)
	case answer.Diverging != nil:
		p.truncated(ctx, *answer.Diverging)
	case answer.PreferredReadReplica >= 0 && size == 0:
		ctx.Send(p.group, &replicaPreferred{tp: p.tp, epoch: p.epoch, broker: answer.PreferredReadReplica})
	default:
		chunk := answer.Chunk
		chunk.Recycle = p.registration.Recycle
		in.surplus.Push(p.shared.network.Decode(chunk), size)
		in.chunks++
		in.lastSize = size
		p.settleMemory()
		if answer.Chunk.NextOffset >= 0 {
			in.fetchFrom, in.lastEpoch = p.limit.Next(answer.Chunk.NextOffset), answer.Chunk.LastEpoch
		} else {
			in.chunks = maxChunks // nothing more until it is known what is wrong with it
		}
		if !in.failed {
			in.failures = 0
		}
		p.pump(ctx)
	}
}

// fetchFailed follows the verdict on a partition's error.
func (p *partition) fetchFailed(ctx actor.Context, broker kafka.Broker, answer *FetchedPartition) {
	in := &p.intake
	switch judgeFetch(answer.Err) {
	case fetchElsewhere:
		ctx.Send(p.group, &leaderDoubted{tp: p.tp, epoch: p.epoch, leader: answer.CurrentLeader, err: answer.Err})
		if delay := p.retryIntake(); in.failures >= loudAfter { // a move heals by itself; what does not is news
			p.shared.observe(event.FetchFailed{
				Member: p.shared.member(), TopicPartition: p.tp, Broker: broker, Offset: in.fetchFrom, Err: answer.Err, RetryIn: delay,
			})
		}
	case fetchOutOfRange:
		p.outOfRange(ctx)
	case fetchLater:
		delay := p.retryIntake()
		p.shared.observe(event.FetchFailed{
			Member: p.shared.member(), TopicPartition: p.tp, Broker: broker, Offset: in.fetchFrom, Err: answer.Err, RetryIn: delay,
		})
		if in.leader.follower {
			ctx.Send(p.group, &replicaPreferred{tp: p.tp, epoch: p.epoch, broker: -1})
		}
	}
}

// outOfRange applies the reset policy, but never on a follower's word: it may only be behind.
func (p *partition) outOfRange(ctx actor.Context) {
	source := rebalance.FromLeader
	if p.intake.leader.follower {
		source = rebalance.FromFollower
	}
	switch d := rebalance.DecideOutOfRange(time.Now().UnixMilli(), p.tp, p.intake.fetchFrom, source, p.registration.Reset).(type) {
	case rebalance.AskLeader:
		p.retryIntake() // the leader may send us to the same follower again
		ctx.Send(p.group, &replicaPreferred{tp: p.tp, epoch: p.epoch, broker: -1})
	case rebalance.StartFromReset:
		p.intake.reset = newResetLookup(d)
		p.misplaced(kafka.OffsetOutOfRange)
		p.lookUp(ctx)
	case rebalance.StartFails:
		p.startFails(p.intake.fetchFrom, d.Err)
	case rebalance.StartAt:
	}
}

// misplaced is called when the leader does not have the position. One that does not have the position that it named itself is
// asked again later: else nothing but the network would hold the next try up.
func (p *partition) misplaced(err error) {
	in := &p.intake
	in.displaced++
	if in.displaced > 1 {
		in.unanswered(time.Now(), err)
		in.failures = in.displaced - 2
		p.retryIntake()
	}
}

// retryIntake sets the next try, later after each failure in a row.
func (p *partition) retryIntake() time.Duration {
	in := &p.intake
	in.failures++
	backoff := p.shared.settings.Backoff
	delay := min(backoff.Initial<<min(in.failures-1, 16), backoff.Max)
	in.alarm.setAt(p.shared.sys, p.self, time.Now().Add(delay), true)
	return delay
}

func (p *partition) intakeRetry(ctx actor.Context) {
	if p.lookingUp() {
		p.lookUp(ctx)
		return
	}
	p.pump(ctx)
}

// mergeEnough is how many records of one batch are delivered to a function per record without more: beyond that, copying
// several batches together costs more than another delivery.
const mergeEnough = 64

// takeRecords returns up to limit records to deliver, and the holds on their memory where it is recycled. They come out of
// one batch without copying when it has enough of them; smaller batches, as a producer makes that does not linger, are
// copied together: a delivery costs more than that. An engine takes them as they are. It returns none while it waits for
// memory to decode into: pump is called again when its turn has come. The leases are valid until the next call.
func (p *partition) takeRecords(ctx actor.Context, limit int) ([]kafka.Record, []*buffer.Lease) {
	defer p.settleMemory()
	leases := p.intake.leaseSpace[:0]
	hold := func(lease *buffer.Lease) {
		if lease != nil {
			leases = append(leases, lease)
		}
	}
	records, lease := p.takePart(ctx, limit, true)
	hold(lease)
	enough := (limit + 1) / 2
	switch {
	case p.registration.Order != OrderPartition:
		enough = 1
	case p.registration.Record != nil:
		enough = min(enough, mergeEnough)
	}
	if len(records) == 0 || len(records) >= enough {
		return records, leases
	}
	var merged []kafka.Record
	for len(merged) < enough {
		more, lease := p.takePart(ctx, limit-max(len(merged), len(records)), false)
		if len(more) == 0 {
			break
		}
		hold(lease)
		if merged == nil {
			merged = append(p.mergeSpace(limit), records...)
		}
		merged = append(merged, more...)
	}
	if merged == nil {
		return records, leases
	}
	return merged, leases
}

// mergeSpace returns room for records that are copied together: where records are recycled, the room of the delivery before,
// if that has ended.
func (p *partition) mergeSpace(limit int) []kafka.Record {
	in := &p.intake
	if !p.registration.Recycle || in.mergedOut {
		return make([]kafka.Record, 0, limit)
	}
	in.mergedOut = true
	if cap(in.merged) < limit {
		in.merged = make([]kafka.Record, 0, limit)
	}
	return in.merged
}

// takePart returns up to limit records of one batch, decoding as needed. Batches without deliverable records move the
// position only. With wait, it stands in line when there is no memory to decode into.
func (p *partition) takePart(ctx actor.Context, limit int, wait bool) ([]kafka.Record, *buffer.Lease) {
	in := &p.intake
	for limit > 0 {
		records, lease, freed := in.surplus.Take(limit)
		if len(records) > 0 {
			if err := p.tracker.Deliver(records); err != nil {
				panic(err)
			}
			in.delivering += int64(freed)
			p.cell.delivered.Add(uint64(len(records)))
			p.advance(ctx, records[len(records)-1].LeaderEpoch)
			return records, lease
		}
		reader, ok := in.surplus.Front()
		if ok && p.limit.Reached(in.decodeFrom) { // the rest lies beyond the end
			p.dropSurplus()
			ok = false
		}
		if !ok {
			p.passOver(ctx)
			return nil, nil
		}
		if !p.decodeTurn(reader, wait) || !p.decode(ctx, reader) {
			return nil, nil
		}
	}
	return nil, nil
}

// passOver moves the position over what the log has lost at its start, once everything that was fetched before is delivered:
// left where it is, the committed offset would be outside of the log until the next record comes.
func (p *partition) passOver(ctx actor.Context) {
	if p.intake.rewind == nil && p.intake.fetchFrom > p.tracker.Position() {
		p.tracker.AdvanceIn(p.intake.fetchFrom, p.intake.lastEpoch)
		p.offer(ctx)
	}
}

// advance moves the position past markers and empty batches of a leader epoch.
func (p *partition) advance(ctx actor.Context, epoch int32) {
	p.tracker.AdvanceIn(p.intake.surplus.Position(), epoch)
	p.offer(ctx)
}

// decode reads the next batch of the front chunk and reports whether there may be more to take.
func (p *partition) decode(ctx actor.Context, reader ChunkReader) bool {
	in := &p.intake
	slab, err := reader.Next(in.decodeFrom)
	switch {
	case errors.Is(err, io.EOF):
		in.surplus.Finish()
		in.chunks--
	case err != nil:
		p.unreadable(ctx, err)
		return false
	default:
		slab.Records, slab.NextOffset = p.limit.Cut(slab.Records), p.limit.Next(slab.NextOffset)
		in.decodeFrom = max(in.decodeFrom, slab.NextOffset)
		in.failed, in.failures = false, 0
		if slab.Bytes > 0 {
			in.expected = max(slab.Bytes, in.expected-in.expected/8)
		}
		if err := in.surplus.Decoded(slab.Records, slab.NextOffset, slab.Bytes, slab.Consumed, slab.Memory); err != nil {
			panic(err)
		}
		if len(slab.Records) == 0 {
			p.advance(ctx, slab.LeaderEpoch)
		}
	}
	return true
}

// unreadable stands before a batch that cannot be read, and tries again later: it may be the network's fault, or be mended
// on the broker. A batch that did not fit is asked for whole.
func (p *partition) unreadable(ctx actor.Context, err error) {
	in := &p.intake
	p.dropSurplus()
	in.restart(in.decodeFrom)
	if partial, ok := errors.AsType[*kafka.PartialBatchError](err); ok && partial.Need <= p.shared.settings.FetchMaxBytes {
		in.need = max(in.need, partial.Need)
		p.want(ctx)
		return
	}
	in.failed = true
	delay := p.retryIntake()
	p.shared.observe(event.PartitionFailed{Member: p.shared.member(), TopicPartition: p.tp, Offset: in.decodeFrom, Err: err, RetryIn: delay})
	p.shared.logger.Error("batch cannot be read", zap.String("topic", p.tp.Topic), zap.Int32("partition", p.tp.Partition),
		zap.Int64("offset", in.decodeFrom), zap.Duration("retry_in", delay), zap.Error(err))
}
