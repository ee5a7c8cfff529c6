package actors

import (
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/internal/buffer"
	"github.com/troupego/troupe/internal/capability"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// The catalog of messages between the actors of the tree. All are pointers, immutable once sent. Whatever crosses an
// asynchronous border carries an epoch, a generation or a sequence number, and its receiver drops what is stale.
//
// The comment of each says: from -> to, when, and what answers it.

// silent keeps protoactor from printing a message that cannot be delivered: it may hold records.
type silent struct{}

// IgnoreDeadLetterLogging marks the message for protoactor's dead-letter log.
func (silent) IgnoreDeadLetterLogging() {}

// alarmRang: time -> the actor that set the alarm. Older sequence numbers are stale.
type alarmRang struct {
	silent
	alarm *alarm
	seq   uint64
}

// workDone: a worker goroutine -> the actor that owns it, with the outcome as a message of its own.
type workDone struct {
	silent
	worker *worker
	result any
}

// shutdown: Tree.Close, Tree.Abandon -> root -> group. Answered by groupEnded.
type shutdown struct {
	silent
	drainUntil time.Time
	deadline   time.Time
}

// groupEnded: group -> root, when the member has left or failed for good and all its children are gone.
type groupEnded struct {
	silent
	err    error
	report closeReport
}

// --- group and its own workers

// metadataAnswered, coordinatorAnswered, joinAnswered and syncAnswered: a worker of the group -> group.
type metadataAnswered struct {
	silent
	metadata *ClusterMetadata
	err      error
}

type coordinatorAnswered struct {
	silent
	seq    uint64
	broker kafka.Broker
	err    error
}

type joinAnswered struct {
	silent
	broker kafka.Broker
	answer rebalance.JoinAnswered
}

type syncAnswered struct {
	silent
	broker kafka.Broker
	answer rebalance.SyncAnswered
}

// --- group and heartbeat

// coordinatorKnown: group -> heartbeat, committer, whenever the link becomes or stops being STABLE.
type coordinatorKnown struct {
	silent
	// broker is valid when stable.
	broker kafka.Broker
	stable bool
}

// coordinatorDoubted: heartbeat, committer -> group: the coordinator is not one, or cannot be reached.
type coordinatorDoubted struct {
	silent
	broker kafka.Broker
	err    error
}

// generationEntered: group -> heartbeat, committer, after SyncGroup.
type generationEntered struct {
	silent
	generation kafka.Generation
	memberID   string
	// since is when it is known to have been joined at the latest: in a frozen process the answer may be old.
	since time.Time
	// early asks for heartbeats soon: another rebalance is likely to follow.
	early bool
}

// generationJoined: group -> heartbeat, after JoinGroup, while a generation entered before is in force.
type generationJoined struct {
	silent
	generation kafka.Generation
	memberID   string
}

// generationLeft: group -> heartbeat, committer: membership is gone.
type generationLeft struct {
	silent
	cause error
}

// heartbeatAnswered: heartbeat -> group, after every heartbeat.
type heartbeatAnswered struct {
	silent
	generation kafka.Generation
	err        error
}

// sessionLapsed: heartbeat -> group: no heartbeat was answered for the session timeout.
type sessionLapsed struct {
	silent
	generation kafka.Generation
}

// leaveGroup: group -> heartbeat. Answered by leaveAnswered with the same seq.
type leaveGroup struct {
	silent
	seq     uint64
	request rebalance.LeaveRequest
}

// leaveAnswered: heartbeat -> group.
type leaveAnswered struct {
	silent
	seq uint64
	err error
}

// --- group and committer

// commitsHeld: group -> committer: a JoinGroup goes out, queue the commits.
type commitsHeld struct{ silent }

// partitionOpened: group -> committer: commits of this epoch are welcome from here on.
type partitionOpened struct {
	silent
	tp        kafka.TopicPartition
	epoch     kafka.AssignmentEpoch
	committed int64
	// metadata is what the coordinator has beside the committed offset.
	metadata string
	cell     *cell
}

// partitionFenced: group -> committer: nothing of this epoch any more.
type partitionFenced struct {
	silent
	tp    kafka.TopicPartition
	epoch kafka.AssignmentEpoch
}

// membershipDoubted: committer -> group: a commit was refused with a code that puts membership in doubt.
type membershipDoubted struct {
	silent
	generation kafka.Generation
	err        error
}

// offsetsWanted: group -> committer. Answered by one or more offsetsFetched with the same id, until every partition had
// its answer. A newer id replaces it.
type offsetsWanted struct {
	silent
	id         uint64
	partitions []kafka.TopicPartition
}

// offsetsFetched: committer -> group. Partitions that failed are in failed and asked for again by the committer.
type offsetsFetched struct {
	silent
	id      uint64
	offsets map[kafka.TopicPartition]CommittedOffset
	failed  map[kafka.TopicPartition]error
}

// keyLent: group -> committer: the consumer's key, as a standing loan. The sender no longer has it.
type keyLent struct {
	silent
	key *capability.Key
}

// keyRecalled: group -> committer. Answered by keyReturned at once.
type keyRecalled struct{ silent }

// keyReturned: committer -> group.
type keyReturned struct {
	silent
	key *capability.Key
}

// --- partition and committer

// offsetOffered: partition -> committer: the contiguous point moved. The offset is taken from the cell, so that one message
// per partition waits at most, however fast its handler is.
type offsetOffered struct {
	silent
	cell *cell
}

// flushWanted: partition -> committer: commit what was offered now. Answered by flushed with the same id.
type flushWanted struct {
	silent
	id       uint64
	tp       kafka.TopicPartition
	epoch    kafka.AssignmentEpoch
	deadline time.Time
	from     *actor.PID
}

// offsetPlaced: partition -> committer: commit this very offset. Answered by flushed with the same id.
type offsetPlaced struct {
	silent
	id       uint64
	offset   commit.Offset
	deadline time.Time
	from     *actor.PID
	cell     *cell
	call     *placing
}

// flushed: committer -> partition.
type flushed struct {
	silent
	result commit.Flushed
}

// --- group and partition

// startDecided: group -> partition: where to start, and what was committed (kafka.NoOffset for nothing).
type startDecided struct {
	silent
	epoch     kafka.AssignmentEpoch
	decision  rebalance.StartDecision
	committed int64
	// metadata came with the committed offset.
	metadata string
	// anew is true when the group's commits on the topic are of another incarnation than the metadata says it is.
	anew bool
}

// deliveryHeld: group -> partition: nothing may be delivered before OnAssigned has returned, or it has.
type deliveryHeld struct {
	silent
	epoch kafka.AssignmentEpoch
	held  bool
}

// committerKnown: group -> partition, at its start and whenever there is a new committer: offer again.
type committerKnown struct {
	silent
	epoch kafka.AssignmentEpoch
	pid   *actor.PID
}

// leaderKnown: group -> partition: whom to fetch from. A nil fetcher means that there is no leader now.
type leaderKnown struct {
	silent
	epoch       kafka.AssignmentEpoch
	fetcher     *actor.PID
	broker      kafka.Broker
	leaderEpoch int32
	topicID     kafka.TopicID
	follower    bool
}

// leaderDoubted: partition -> group: the broker says that it is not the leader, or the epoch is wrong.
type leaderDoubted struct {
	silent
	tp    kafka.TopicPartition
	epoch kafka.AssignmentEpoch
	// leader is the newer leader the broker named, nil when it named none.
	leader *PartitionLeader
	err    error
}

// replicaPreferred: partition -> group: read from this replica instead (KIP-392); -1 goes back to the leader.
type replicaPreferred struct {
	silent
	tp     kafka.TopicPartition
	epoch  kafka.AssignmentEpoch
	broker int32
}

// drainWanted: group -> partition: REVOKING begins. Answered by partitionReleased.
type drainWanted struct {
	silent
	epoch      kafka.AssignmentEpoch
	drainUntil time.Time
	deadline   time.Time
	closing    bool
	// consulted is true while OnRevoking runs, which may commit still: the final commit waits for callbackReturned.
	consulted bool
}

// callbackReturned: group -> partition: OnRevoking has returned, the final commit may go out.
type callbackReturned struct {
	silent
	epoch kafka.AssignmentEpoch
}

// ownershipLost: group -> partition. Answered by partitionReleased.
type ownershipLost struct {
	silent
	epoch kafka.AssignmentEpoch
	cause error
}

// processingOverdue: group -> partition: its handler takes too long; nothing more begins here. Sent again, alone, when nothing
// else is at work.
type processingOverdue struct {
	silent
	epoch kafka.AssignmentEpoch
	// cause is what the handler's context ends with.
	cause error
	// alone is true when nothing else is at work: the context ends now, and the drain waits no longer.
	alone bool
}

// givenUpReturned: the gate register -> group: a handler that was given up has returned.
type givenUpReturned struct{ silent }

// partitionReleased: partition -> group: REVOKED. Nothing of the epoch happens any more.
type partitionReleased struct {
	silent
	tp          kafka.TopicPartition
	epoch       kafka.AssignmentEpoch
	committed   int64
	pending     int64
	uncommitted int
	err         error
}

// rangeRead: partition -> group: all of its range is read and finished, and nothing more is read; or, undone, no longer so.
type rangeRead struct {
	silent
	tp     kafka.TopicPartition
	epoch  kafka.AssignmentEpoch
	undone bool
}

// consumerFailed: partition -> group: the policy says to stop the whole consumer.
type consumerFailed struct {
	silent
	err error
}

// --- group and fetcher

// partitionRouted: group -> fetcher: this partition is read here from now on.
type partitionRouted struct {
	silent
	tp    kafka.TopicPartition
	epoch kafka.AssignmentEpoch
	pid   *actor.PID
}

// partitionUnrouted: group -> fetcher: no longer.
type partitionUnrouted struct {
	silent
	tp    kafka.TopicPartition
	epoch kafka.AssignmentEpoch
}

// brokerMoved: group -> fetcher: the broker has another address.
type brokerMoved struct {
	silent
	broker kafka.Broker
}

// brokerDoubted: fetcher -> group: the broker cannot be reached; ask for fresh metadata.
type brokerDoubted struct {
	silent
	broker kafka.Broker
	err    error
}

// --- partition and fetcher

// recordsWanted: partition -> fetcher: one credit, there is room for one answer. Answered by recordsFetched, unless the
// partition is routed elsewhere first.
type recordsWanted struct {
	silent
	want buffer.Want
}

// recordsFetched: fetcher -> partition: data, a failure, or news of the log's end.
type recordsFetched struct {
	silent
	epoch    kafka.AssignmentEpoch
	offset   int64
	broker   kafka.Broker
	answer   FetchedPartition
	consumed bool // the credit is used up
	// empty is true when the whole answer had no data, for no partition, and the want is ToEnd.
	empty bool
}

// fetchUnanswered: fetcher -> partition: the broker gave no answer to a fetch of it, which was sent at that time. The want
// stays open. An answer after it is told in any case, also when it has nothing.
type fetchUnanswered struct {
	silent
	epoch kafka.AssignmentEpoch
	since time.Time
	err   error
}

// offsetLookup: partition -> fetcher. Answered by offsetFound with the same id.
type offsetLookup struct {
	silent
	id    uint64
	epoch kafka.AssignmentEpoch
	query OffsetQuery
	from  *actor.PID
}

// offsetFound: fetcher -> partition.
type offsetFound struct {
	silent
	id     uint64
	epoch  kafka.AssignmentEpoch
	answer OffsetAnswer
}

// memoryFreed: the memory register -> a fetcher, or a partition that has something to decode, when its turn has come.
type memoryFreed struct{ silent }

// --- group and inquirer

// inquiryAsked: group -> inquirer: one call's question, and what the group knows of the cluster. Answered through the call.
type inquiryAsked struct {
	silent
	inquiry *inquiry
	brokers map[int32]kafka.Broker
	topics  map[string]TopicMetadata
	// coordinator is nil while it is not known.
	coordinator *kafka.Broker
}

// --- partition and its handler

// deliver: partition -> runner. Answered by delivered.
type deliver struct {
	silent
	delivery *Delivery
}

// deliveryRecalled: partition -> runner, when the flow stops: a delivery that still waits for its turn is given back, by
// delivered.
type deliveryRecalled struct {
	silent
	delivery *Delivery
}

// delivered: runner -> partition: the handler returned without an error.
type delivered struct {
	silent
	delivery *Delivery
	// failure is one that changes nothing: the partition goes away, and the record to its next owner.
	failure *HandlerError
}

// ackSignal: a delivery -> partition: something was acknowledged since the last signal.
type ackSignal struct {
	silent
	delivery *Delivery
}

// placeFree: the gate or slot register, or the session -> a runner, partition or committer that waited for its turn.
type placeFree struct{ silent }

// ran: a runner's worker goroutine -> runner.
type ran struct {
	silent
	delivery *Delivery
	err      *HandlerError
}
