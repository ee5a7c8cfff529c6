package actors

import (
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// resetLookup is a reset that is under way: the questions for its offset.
//
// A question by time may have no answer, since no record is that young. The end of the log is where to start then, as with
// the Java client. But a record that is written between that answer and the next must not be skipped: once the end is known
// the time is asked about again, and only if there is still no such record the end that was known before holds.
type resetLookup struct {
	rebalance.StartFromReset
	// endWanted is set when no record was young enough; end is nil until it is answered.
	endWanted bool
	end       *OffsetAnswer
}

func newResetLookup(decision rebalance.StartFromReset) *resetLookup {
	return &resetLookup{StartFromReset: decision}
}

// timestamp is what to ask for next.
func (r *resetLookup) timestamp() int64 {
	if r.endWanted && r.end == nil {
		return rebalance.TimestampLatest
	}
	return r.Timestamp
}

// answered takes the answer to the last question and returns what the look-up came to; false means that there is one more
// question to ask.
func (r *resetLookup) answered(answer OffsetAnswer) (OffsetAnswer, bool) {
	switch {
	case answer.Err != nil, r.Timestamp < 0:
		return answer, true
	case r.endWanted && r.end == nil:
		if answer.Offset < 0 {
			return answer, true
		}
		r.end = &answer
		return OffsetAnswer{}, false
	case answer.Offset >= 0:
		return answer, true
	case r.end != nil:
		return *r.end, true
	}
	r.endWanted = true
	return OffsetAnswer{}, false
}

// reason is why the position is set to offset, when it was from.
func (r *resetLookup) reason(from, offset int64) string {
	if r.Reason == rebalance.ReasonOutOfRange && from != kafka.NoOffset && offset < from {
		return rebalance.ReasonBeyondEnd
	}
	return r.Reason
}

// lookUp asks the leader for the offset to reset to, or for where the reading ends.
func (p *partition) lookUp(ctx actor.Context) {
	in := &p.intake
	if !p.lookingUp() || in.fetcher == nil || in.alarm.set {
		return
	}
	if in.leader.follower { // it does not know; leaderKnown comes
		ctx.Send(p.group, &replicaPreferred{tp: p.tp, epoch: p.epoch, broker: -1})
		return
	}
	in.lookupID++
	timestamp := int64(0)
	if in.reset != nil { // where to go on comes before where to end
		timestamp = in.reset.timestamp()
	} else {
		timestamp = p.search.Timestamp()
	}
	ctx.Send(in.fetcher, &offsetLookup{id: in.lookupID, epoch: p.epoch, from: p.self, query: OffsetQuery{
		TopicPartition: p.tp, LeaderEpoch: in.leader.leaderEpoch, Timestamp: timestamp,
	}})
}

func (p *partition) offsetFound(ctx actor.Context, m *offsetFound) {
	in := &p.intake
	if m.id != in.lookupID || !p.lookingUp() || p.machine.State() >= rebalance.PartitionRevoking {
		p.shared.staleMessage() // the question was given up, or took longer than the ownership
		return
	}
	if in.reset == nil {
		p.endFound(ctx, m.answer)
		return
	}
	answer, done := in.reset.answered(m.answer)
	if !done {
		p.lookUp(ctx)
		return
	}
	err := answer.Err
	if err == nil && answer.Offset < 0 {
		err = rebalance.ErrNoOffset
	}
	if err != nil {
		p.lookUpFailed(ctx, err)
		return
	}
	reason := in.reset.reason(in.fetchFrom, answer.Offset)
	in.reset, in.failures, in.lastEpoch = nil, 0, answer.LeaderEpoch
	if in.displaced <= 1 { // else the offsets before it were refused, and this one may be
		in.unread, in.unreadErr = time.Time{}, nil
	}
	if p.seek != nil {
		p.seekTo(ctx, answer.Offset, answer.LeaderEpoch)
		return
	}
	p.reposition(ctx, answer.Offset, reason, nil)
	if p.search != nil {
		p.lookUp(ctx)
	}
}

// lookUpFailed asks again later.
func (p *partition) lookUpFailed(ctx actor.Context, err error) {
	ctx.Send(p.group, &leaderDoubted{tp: p.tp, epoch: p.epoch, err: err})
	p.intake.unanswered(time.Now(), err)
	delay := p.retryIntake()
	p.shared.observe(event.FetchFailed{
		Member: p.shared.member(), TopicPartition: p.tp, Broker: p.intake.leader.broker, Offset: p.intake.fetchFrom, Err: err, RetryIn: delay,
	})
}
