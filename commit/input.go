package commit

import (
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// Offset is one partition's offset to commit: the next one to read after a restart.
type Offset struct {
	TopicPartition kafka.TopicPartition
	// Epoch is the grant under which the records below Offset were finished.
	Epoch kafka.AssignmentEpoch
	// PositionEpoch numbers the runs of positions inside one assignment epoch. A higher one begins after the position was
	// set back (truncation, a new topic id, Seek), and with an offset that the user commits ([Place]): only then may a lower
	// offset follow a higher one.
	PositionEpoch uint32
	Offset        int64
	LeaderEpoch   int32
	// Metadata is the text beside the offset, see [Metadata.Encode].
	Metadata string
	// Finished is how many records were finished under Epoch in all, for strategies that count them. A count below the last
	// one began anew.
	Finished uint64
	// Start says that the partition starts here and that nothing is stored: it is committed at once, whatever the strategy
	// says, [Manual] excepted, as a restart might start elsewhere.
	Start bool
}

// Round is the content of one OffsetCommit.
type Round struct {
	// ID numbers the rounds of one committer, from 1.
	ID              uint64
	GroupID         string
	MemberID        string
	GroupInstanceID string
	Generation      kafka.Generation
	// Offsets is ordered by topic and partition, each partition once.
	Offsets []Offset
}

// Input is one thing that happened, given to [Rounds.Step].
type Input interface{ roundsInput() }

// Assigned opens a partition under a new epoch. Committed is what the broker has for it, kafka.NoOffset for nothing:
// offers at or below it need no commit. Where the position was reset below what the broker has (truncation, a topic made
// anew), give kafka.NoOffset, or the new offsets are never sent. An older epoch of the same partition is closed by it; an
// epoch not above the present or last closed one is stale.
type Assigned struct {
	TopicPartition kafka.TopicPartition
	Epoch          kafka.AssignmentEpoch
	Committed      int64
	// Metadata is the text beside Committed at the broker: an offset map that is there already is not sent again.
	Metadata string
}

// Offered says that everything below Offset is finished. An offset below the last one offered is ignored, as is one of an
// epoch that is not open (counted as stale). The same offset with another Metadata replaces it: a changed offset map is
// committed as well. Offset.Offset must not be negative.
type Offered struct{ Offset Offset }

// Rewound begins a new position epoch before it is known where: what was offered in the one before, and is not confirmed, is
// sent no more. Open flushes of the partition have nothing to wait for. An epoch that is not open is counted as stale, as is a
// position epoch that has begun.
type Rewound struct {
	TopicPartition kafka.TopicPartition
	Epoch          kafka.AssignmentEpoch
	PositionEpoch  uint32
}

// Entered opens a generation: rounds go out with it, those held back by [Held] included. Generation must not be negative.
type Entered struct {
	Generation kafka.Generation
	MemberID   string
}

// Held queues everything until [Entered] or [Departed]: a JoinGroup is under way. A round already in flight may still be
// answered; ILLEGAL_GENERATION and REBALANCE_IN_PROGRESS then mean "later".
type Held struct{}

// Departed ends the membership: nothing is sent until [Entered]; open flushes fail with Cause (nil is ErrDeparted), as do
// later ones until [Held] or [Entered]. Partitions stay open until [Fenced].
type Departed struct{ Cause error }

// Flush asks that what was offered for a partition so far be committed now, without spacing, whatever the strategy says
// ([Manual] excepted, under which there is nothing to be done), with retries until Deadline. It is answered by exactly one
// [Flushed] with the same ID, in the same Step when nothing is to be done or the epoch is not open. IDs of open flushes
// differ.
//
// The offset is what it waits for. An offset map that was offered goes along; where only a map is not confirmed, one round
// is sent with it, if rounds may be sent now, and the flush succeeds whatever becomes of that round.
type Flush struct {
	ID             uint64
	TopicPartition kafka.TopicPartition
	Epoch          kafka.AssignmentEpoch
	Deadline       time.Time
}

// Place asks that this very offset be committed now, because the user says so: it is sent as it is, without spacing, whatever
// the strategy says ([Manual] excepted), and repeated until it is confirmed, replaced by another Place or a higher position
// epoch, or refused for its metadata. It begins a new position epoch, so Offset.PositionEpoch must be above the one before;
// what was offered before is forgotten, and what is offered meanwhile waits until the placed offset is confirmed, and then for
// the strategy. It must not lie above what is finished.
//
// It is answered by exactly one [Flushed] with the same ID, of which those of open flushes differ. After [ErrFlushDeadline] it
// stays due, as an offset after a Flush does. One that another Place replaces is answered with that.
type Place struct {
	ID       uint64
	Offset   Offset
	Deadline time.Time
	// Call, when it is not 0, says that others with the same number follow, to go out in one round: this one waits for them
	// for GatherWait at most. Last is the one that ends the waiting.
	Call uint64
	Last bool
}

// GatherWait is how long a placed offset waits at most for others of the same call.
const GatherWait = 20 * time.Millisecond

// Fenced closes a partition's epoch, and any older one: nothing of it is sent any more, by any timer, and its open flushes
// fail.
type Fenced struct {
	TopicPartition kafka.TopicPartition
	Epoch          kafka.AssignmentEpoch
}

// Answered carries the outcome of the round with that ID; of another one it is stale and ignored.
type Answered struct {
	ID uint64
	// Results has each partition's own error, nil for committed. A partition that is missing was not answered.
	Results map[kafka.TopicPartition]error
	// Err is the whole request's error. With a *kafka.RequestError that is Unanswered the result is unknown: the round's
	// offsets are repeated until confirmed.
	Err error
	// NotSent means that the round never went out, with Err saying why: no flush has had its try.
	NotSent bool
}

// Tick says that the time [Rounds.Deadline] named has come.
type Tick struct{}

func (Assigned) roundsInput() {}
func (Offered) roundsInput()  {}
func (Rewound) roundsInput()  {}
func (Entered) roundsInput()  {}
func (Held) roundsInput()     {}
func (Departed) roundsInput() {}
func (Flush) roundsInput()    {}
func (Place) roundsInput()    {}
func (Fenced) roundsInput()   {}
func (Answered) roundsInput() {}
func (Tick) roundsInput()     {}

// Effect is one thing the shell must do after [Rounds.Step], in the order given.
type Effect interface{ roundsEffect() }

// SendRound: send this round; answer with [Answered]. Never emitted while another one is in flight.
type SendRound struct{ Round Round }

// Committed reports that the coordinator confirmed an offset: a new one, or the last one with another Metadata.
type Committed struct{ Offset Offset }

// Flushed answers a [Flush] or a [Place]. Committed is the last confirmed offset (kafka.NoOffset for none), Pending the highest one
// offered and not confirmed (kafka.NoOffset when all is confirmed, under [Manual] always), Err why what the flush asked for
// was not: a *FlushError. With Err nil, Pending can only be an offset offered after the flush.
type Flushed struct {
	ID             uint64
	TopicPartition kafka.TopicPartition
	Epoch          kafka.AssignmentEpoch
	Committed      int64
	Pending        int64
	Err            error
}

// RoundFailed reports that a round, or some partitions of it, was not confirmed. Partitions whose epoch was closed
// meanwhile are left out; with none left there is no report. Attempt counts failures in a row, the highest of the
// partitions'. RetryAt is when the first of them is tried again, the zero time while no membership allows it or the
// strategy does not ask for it.
type RoundFailed struct {
	Round Round
	// Partitions are those not confirmed, with their errors: Err, the partition's code, or ErrUnanswered.
	Partitions map[kafka.TopicPartition]error
	Err        error
	Attempt    int
	RetryAt    time.Time
}

// MembershipDoubted reports a code that puts membership in doubt for that generation, once. Nothing is sent with that
// generation any more until [Entered]; offsets stay pending.
type MembershipDoubted struct {
	Generation kafka.Generation
	Err        error
}

// CoordinatorDoubted reports NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE or a broken connection: the coordinator must be
// found again. The round is tried again by itself.
type CoordinatorDoubted struct{ Err error }

// StrategyFailed reports, once, that the strategy of that name panicked and that [Opportunistic] takes its place. Err wraps
// ErrStrategyPanicked.
type StrategyFailed struct {
	Name string
	Err  error
}

func (SendRound) roundsEffect()          {}
func (Committed) roundsEffect()          {}
func (Flushed) roundsEffect()            {}
func (RoundFailed) roundsEffect()        {}
func (MembershipDoubted) roundsEffect()  {}
func (CoordinatorDoubted) roundsEffect() {}
func (StrategyFailed) roundsEffect()     {}
