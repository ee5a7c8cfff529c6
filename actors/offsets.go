package actors

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// ArgumentError means that a call was given something that cannot be meant.
type ArgumentError struct {
	// Operation is what was asked for, such as "end offsets".
	Operation string
	// TopicPartition is what it was given for.
	TopicPartition kafka.TopicPartition
	// Got is what was given, Want what would be right.
	Got, Want string
}

// Error names operation, partition, what was given and what would be right.
func (e *ArgumentError) Error() string {
	return fmt.Sprintf("troupe: %s of %s: %s: want %s", e.Operation, partitionName(e.TopicPartition), e.Got, e.Want)
}

// PartitionLag is how far a partition is behind the end of its log, in offsets: among them may be some without a record.
type PartitionLag struct {
	// Position is the next offset to deliver to the handler.
	Position int64
	// Committed is the committed offset, kafka.NoOffset for none: as the coordinator confirmed it to this consumer, or as it says.
	Committed int64
	// End is the offset after the last record: of all records, or under read_committed of those before the first transaction
	// that is open (the last stable offset).
	End int64
	// Lag is End minus Position, CommittedLag is End minus Committed; neither is below 0, except that CommittedLag is -1 while
	// nothing is committed.
	Lag, CommittedLag int64
}

// checkNames returns an *ArgumentError for each partition that cannot be one, joined.
func checkNames(op string, named []kafka.TopicPartition) error {
	var errs []error
	for _, tp := range named {
		if tp.Topic == "" {
			errs = append(errs, &ArgumentError{Operation: op, TopicPartition: tp, Got: "no topic", Want: "the name of a topic"})
		}
		if tp.Partition < kafka.AnyPartition {
			errs = append(errs, &ArgumentError{
				Operation: op, TopicPartition: tp, Got: fmt.Sprintf("partition %d", tp.Partition),
				Want: "0 or more, or kafka.AnyPartition for all of the topic",
			})
		}
	}
	return errors.Join(errs...)
}

// positionOperation reads where owned partitions are.
type positionOperation struct {
	op    string
	named []kafka.TopicPartition
	cells []*cell
	// pending are those that do not know yet where they begin; held are those of them that wait for OnAssigning to return.
	pending, held []kafka.TopicPartition
}

func (o *positionOperation) word() string { return o.op }

func (o *positionOperation) run(_ actor.Context, g *group, m *request) {
	parts, err := g.pick(o.op, o.named)
	for _, p := range parts {
		o.cells = append(o.cells, p.cell)
		if p.cell.position.Load() >= 0 {
			continue
		}
		o.pending = append(o.pending, p.tp)
		if !p.told {
			o.held = append(o.held, p.tp)
		}
	}
	m.reply(err)
}

// places returns the cells of owned partitions once each knows its position.
func (t *Tree) places(ctx context.Context, op string, named []kafka.TopicPartition) ([]*cell, error) {
	if err := checkNames(op, named); err != nil {
		return nil, err
	}
	for {
		changed := t.shared.board.changes() // taken before the look: nothing is missed between the two
		o := &positionOperation{op: op, named: named}
		if err := t.repeat(ctx, func() operation {
			o = &positionOperation{op: op, named: named}
			return o
		}); err != nil {
			return nil, err
		}
		if len(o.pending) == 0 {
			return o.cells, nil
		}
		if len(o.held) > 0 && t.InCallback(ctx) { // callbacks run one after the other: it is this one, or waits for it
			token := t.within(ctx)
			return nil, &HeldError{
				Operation: op, Asker: string(token.holder), Holder: string(token.holder), Since: token.key.Since(),
				TopicPartition: o.held[0], Reason: ErrSelfWait,
			}
		}
		select {
		case <-changed:
		case <-t.done:
		case <-ctx.Done():
			return nil, fmt.Errorf("troupe: %s: %s does not know yet where it begins: %w", op, o.pending[0], endOf(ctx))
		}
	}
}

// interruptions is how often a call that changes nothing is repeated when it was interrupted by failures of ours.
const interruptions = 3

// repeat is do for an operation that changes nothing, and may be asked again of the next group actor.
func (t *Tree) repeat(ctx context.Context, next func() operation) error {
	for tries := 1; ; tries++ {
		err := t.do(ctx, nil, next())
		if !errors.Is(err, ErrInterrupted) || tries == interruptions {
			return err
		}
	}
}

// inquiryOperation asks brokers for offsets.
type inquiryOperation struct {
	op        string
	committed bool
	// named is what is asked for, with a timestamp each; all that is owned when it is empty, at the timestamp everything.
	named      map[kafka.TopicPartition]int64
	everything int64
	// inquiry is set when the operation begins. Of a call that has ended only its trouble may be read.
	inquiry chan *inquiry
}

func (o *inquiryOperation) word() string { return o.op }

func (o *inquiryOperation) run(ctx actor.Context, g *group, m *request) {
	if g.finishing || g.member.State() == rebalance.StateFatal {
		m.reply(ErrClosing)
		return
	}
	asked := o.named
	if len(asked) == 0 {
		parts, err := g.pick(o.op, nil)
		if err != nil {
			m.reply(err)
			return
		}
		asked = make(map[kafka.TopicPartition]int64, len(parts))
		for _, p := range parts {
			asked[p.tp] = o.everything
		}
	}
	q := newInquiry(o.op, g.shared.settings.Backoff, m, asked)
	q.committed = o.committed
	o.inquiry <- q
	g.inquiries = append(slices.DeleteFunc(g.inquiries, (*inquiry).ended), q)
	if pid := g.Lookup(inquirerKey); pid != nil {
		g.inquire(ctx, pid, q)
	}
}

// ended reports whether nobody waits for it any more.
func (q *inquiry) ended() bool { return q.request.answered.Load() }

// inquire hands an inquiry to the inquirer, with what is known here of the cluster.
func (g *group) inquire(ctx actor.Context, inquirer *actor.PID, q *inquiry) {
	m := &inquiryAsked{inquiry: q, brokers: g.metadata.brokers, topics: make(map[string]TopicMetadata)}
	for _, name := range q.topics() {
		if t := g.metadata.topics[name]; t != nil && t.missed == 0 && len(t.Partitions) > 0 {
			known := t.TopicMetadata
			known.Partitions = slices.Clone(known.Partitions) // leaders are changed in place
			m.topics[name] = known
		}
	}
	if g.stable {
		coordinator := g.broker
		m.coordinator = &coordinator
	}
	ctx.Send(inquirer, m)
}

// inquirerFailed keeps what was asked of an inquirer that died for the next one, unless it has killed one before.
func (g *group) inquirerFailed() {
	g.inquiries = slices.DeleteFunc(g.inquiries, func(q *inquiry) bool {
		if q.crashes++; q.crashes > 1 {
			q.request.reply(ErrInquirerFailed)
		}
		return q.ended()
	})
}

// ErrInquirerFailed means that the actor which asks brokers for offsets failed twice while it carried out a call. The consumer goes
// on.
var ErrInquirerFailed = errors.New("troupe: the consumer's questions to brokers failed by an error of its own")

// inquire asks brokers until there is an answer or ctx ends; the error then says what stood in the way.
func (t *Tree) inquire(ctx context.Context, o inquiryOperation) (*inquiry, error) {
	if err := checkNames(o.op, slices.SortedFunc(maps.Keys(o.named), kafka.TopicPartition.Compare)); err != nil {
		return nil, err
	}
	var asked chan *inquiry
	err := t.repeat(ctx, func() operation {
		again := o
		asked = make(chan *inquiry, 1)
		again.inquiry = asked
		return &again
	})
	var q *inquiry
	select {
	case q = <-asked:
	default: // it has not begun
	}
	if err != nil && ctx.Err() != nil && q != nil {
		if trouble := q.trouble.Load(); trouble != nil {
			err = fmt.Errorf("%w: %w", err, trouble)
		}
	}
	return q, err
}

// sameTime gives each partition the same timestamp.
func sameTime(named []kafka.TopicPartition, timestamp int64) map[kafka.TopicPartition]int64 {
	out := make(map[kafka.TopicPartition]int64, len(named))
	for _, tp := range named {
		out[tp] = timestamp
	}
	return out
}

// CurrentAssignment returns the partitions owned now, in order; see api.Consumer.CurrentAssignment.
func (t *Tree) CurrentAssignment() []kafka.TopicPartition {
	owned := t.shared.board.owned()
	out := make([]kafka.TopicPartition, len(owned))
	for i, c := range owned {
		out[i] = c.tp
	}
	return out
}

// Position returns the next offset to deliver of owned partitions; see api.Consumer.Position.
func (t *Tree) Position(ctx context.Context, named []kafka.TopicPartition) (map[kafka.TopicPartition]int64, error) {
	cells, err := t.places(ctx, "position", named)
	if err != nil {
		return nil, err
	}
	out := make(map[kafka.TopicPartition]int64, len(cells))
	for _, c := range cells {
		out[c.tp] = c.position.Load()
	}
	return out, nil
}

// Lag returns how far owned partitions are behind; see api.Consumer.Lag.
func (t *Tree) Lag(ctx context.Context, named []kafka.TopicPartition) (map[kafka.TopicPartition]PartitionLag, error) {
	cells, err := t.places(ctx, "lag", named)
	if err != nil {
		return nil, err
	}
	out, asked := make(map[kafka.TopicPartition]PartitionLag, len(cells)), make(map[kafka.TopicPartition]int64, len(cells))
	var unsaid []kafka.TopicPartition
	for _, c := range cells { // before the ends are asked for, which so are never below
		if c.committed.Load() < 0 && t.shared.standalone == nil {
			unsaid = append(unsaid, c.tp)
		}
		out[c.tp] = PartitionLag{Position: c.position.Load(), Committed: c.committed.Load(), CommittedLag: kafka.NoOffset}
		asked[c.tp] = rebalance.TimestampLatest
	}
	q, err := t.inquire(ctx, inquiryOperation{op: "lag", named: asked})
	if err != nil {
		return nil, err
	}
	committed := make(map[kafka.TopicPartition]kafka.CommittedOffset)
	if len(unsaid) > 0 { // nothing is, or nothing was since the position was set anew
		if committed, err = t.Committed(ctx, unsaid); err != nil {
			return nil, err
		}
	}
	for tp, lag := range out {
		if c, asked := committed[tp]; asked {
			lag.Committed = c.Offset
		}
		lag.End = q.offsets[tp].Offset
		lag.Lag = max(0, lag.End-lag.Position)
		if lag.Committed >= 0 {
			lag.CommittedLag = max(0, lag.End-lag.Committed)
		}
		out[tp] = lag
	}
	return out, nil
}

// Committed returns what the coordinator has; see api.Consumer.Committed.
func (t *Tree) Committed(ctx context.Context, named []kafka.TopicPartition) (map[kafka.TopicPartition]kafka.CommittedOffset, error) {
	if t.shared.standalone != nil {
		return nil, ErrNoGroup
	}
	q, err := t.inquire(ctx, inquiryOperation{op: "committed", committed: true, named: sameTime(named, 0)})
	if err != nil {
		return nil, err
	}
	out := make(map[kafka.TopicPartition]kafka.CommittedOffset, len(q.commits))
	for tp, c := range q.commits {
		if c.Offset < 0 {
			c = CommittedOffset{Offset: kafka.NoOffset, LeaderEpoch: kafka.NoLeaderEpoch}
		}
		out[tp] = kafka.CommittedOffset{Offset: c.Offset, LeaderEpoch: c.LeaderEpoch, Metadata: given(c), Text: c.Metadata}
	}
	return out, nil
}

// given returns what a user gave along with a committed offset: of a text that is ours without what we put there.
func given(c CommittedOffset) string {
	metadata, err := commit.ParseMetadata(c.Metadata, c.Offset)
	if err == nil && metadata.Foreign {
		return c.Metadata
	}
	return metadata.User
}

// BeginningOffsets returns where logs begin; see api.Consumer.BeginningOffsets.
func (t *Tree) BeginningOffsets(ctx context.Context, named []kafka.TopicPartition) (map[kafka.TopicPartition]int64, error) {
	return t.ends(ctx, "beginning offsets", named, rebalance.TimestampEarliest)
}

// EndOffsets returns where logs end; see api.Consumer.EndOffsets.
func (t *Tree) EndOffsets(ctx context.Context, named []kafka.TopicPartition) (map[kafka.TopicPartition]int64, error) {
	return t.ends(ctx, "end offsets", named, rebalance.TimestampLatest)
}

func (t *Tree) ends(ctx context.Context, op string, named []kafka.TopicPartition, timestamp int64) (map[kafka.TopicPartition]int64, error) {
	q, err := t.inquire(ctx, inquiryOperation{op: op, named: sameTime(named, timestamp), everything: timestamp})
	if err != nil {
		return nil, err
	}
	out := make(map[kafka.TopicPartition]int64, len(q.offsets))
	for tp, answer := range q.offsets {
		out[tp] = answer.Offset
	}
	return out, nil
}

// OffsetsForTimes returns the first record at or after a time; see api.Consumer.OffsetsForTimes.
func (t *Tree) OffsetsForTimes(ctx context.Context, times map[kafka.TopicPartition]time.Time) (map[kafka.TopicPartition]kafka.OffsetAndTimestamp, error) {
	const op = "offsets for times"
	named, errs := make(map[kafka.TopicPartition]int64, len(times)), []error(nil)
	for _, tp := range slices.SortedFunc(maps.Keys(times), kafka.TopicPartition.Compare) {
		if named[tp] = ceilMillis(times[tp]); named[tp] < 0 { // Kafka has meanings of its own for them
			errs = append(errs, &ArgumentError{
				Operation: op, TopicPartition: tp, Got: "the time " + times[tp].Format(time.RFC3339Nano), Want: "a time from 1970 on",
			})
		}
	}
	names := slices.SortedFunc(maps.Keys(named), kafka.TopicPartition.Compare)
	if err := errors.Join(append(errs, checkNames(op, names))...); err != nil {
		return nil, err
	}
	if len(named) == 0 { // nothing is asked for, which is not the same as everything owned
		return map[kafka.TopicPartition]kafka.OffsetAndTimestamp{}, nil
	}
	q, err := t.inquire(ctx, inquiryOperation{op: op, named: named})
	if err != nil {
		return nil, err
	}
	out := make(map[kafka.TopicPartition]kafka.OffsetAndTimestamp, len(q.offsets))
	for tp, answer := range q.offsets {
		found := kafka.OffsetAndTimestamp{Offset: kafka.NoOffset, LeaderEpoch: kafka.NoLeaderEpoch}
		if answer.Offset >= 0 {
			found = kafka.OffsetAndTimestamp{Offset: answer.Offset, Timestamp: time.UnixMilli(answer.Timestamp).UTC(), LeaderEpoch: answer.LeaderEpoch}
		}
		out[tp] = found
	}
	return out, nil
}

// ceilMillis rounds up to the milliseconds that records have: one of the millisecond that a time lies in may be before it.
func ceilMillis(at time.Time) int64 {
	millis := at.UnixMilli()
	if time.UnixMilli(millis).Before(at) {
		millis++
	}
	return millis
}
