package rebalance

import (
	"testing"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// memberInputs are one fresh example of every input, for a member in any state.
var memberInputs = map[string]func(r *rig) Input{
	"Start":               func(*rig) Input { return Start{} },
	"JoinAnswered":        func(r *rig) Input { return r.joinOK(6, "other") },
	"TopicsKnown":         func(r *rig) Input { return TopicsKnown{Seq: r.m.seq, Partitions: r.counts(2, 2)} },
	"SyncAnswered":        func(r *rig) Input { return r.syncOK(tp("t", 0)) },
	"HeartbeatAnswered":   func(r *rig) Input { return HeartbeatAnswered{Generation: 5, Err: kafka.RebalanceInProgress} },
	"SessionExpired":      func(*rig) Input { return SessionExpired{Generation: 5} },
	"CommitFenced":        func(*rig) Input { return CommitFenced{Generation: 5, Err: kafka.UnknownMemberID} },
	"PartitionStarted":    func(*rig) Input { return PartitionStarted{TopicPartition: tp("t", 0), Epoch: 1} },
	"PartitionReleased":   func(*rig) Input { return PartitionReleased{TopicPartition: tp("t", 0), Epoch: 1} },
	"RangeRead":           func(*rig) Input { return RangeRead{TopicPartition: tp("t", 0), Epoch: 1} },
	"TopicsChanged":       func(r *rig) Input { return TopicsChanged{Partitions: r.counts(9, 2)} },
	"TopicRecreated":      func(*rig) Input { return TopicRecreated{Topic: "t"} },
	"SubscriptionChanged": func(*rig) Input { return SubscriptionChanged{Topics: []string{"t", "u"}} },
	"Rejoin":              func(*rig) Input { return Rejoin{Cause: "test"} },
	"Leave": func(r *rig) Input {
		return Leave{DrainUntil: r.now.Add(time.Second), Deadline: r.now.Add(2 * time.Second)}
	},
	"GiveUp": func(r *rig) Input {
		return GiveUp{DrainUntil: r.now.Add(time.Second), Deadline: r.now.Add(2 * time.Second), Reason: "test"}
	},
	"LeaveAnswered": func(r *rig) Input { return LeaveAnswered{Seq: r.m.seq} },
	"Tick":          func(*rig) Input { return Tick{} },
}

// memberTable is the member's behavior: every input in every state. A follower that owns t-0 and t-1 in generation 5.
const memberTable = `
UNJOINED CommitFenced: -
UNJOINED GiveUp: -
UNJOINED HeartbeatAnswered: -
UNJOINED JoinAnswered: -
UNJOINED Leave: >LEAVING >UNJOINED Left
UNJOINED LeaveAnswered: -
UNJOINED PartitionReleased: -
UNJOINED PartitionStarted: -
UNJOINED RangeRead: error
UNJOINED Rejoin: error
UNJOINED SessionExpired: -
UNJOINED Start: >JOINING SendJoin
UNJOINED SubscriptionChanged: -
UNJOINED SyncAnswered: -
UNJOINED Tick: -
UNJOINED TopicRecreated: -
UNJOINED TopicsChanged: -
UNJOINED TopicsKnown: -
JOINING CommitFenced: -
JOINING GiveUp: >LEAVING >UNJOINED GaveUp
JOINING HeartbeatAnswered: -
JOINING JoinAnswered: >SYNCING SendSync
JOINING Leave: >LEAVING >UNJOINED Left
JOINING LeaveAnswered: -
JOINING PartitionReleased: -
JOINING PartitionStarted: -
JOINING RangeRead: error
JOINING Rejoin: -
JOINING SessionExpired: -
JOINING Start: error
JOINING SubscriptionChanged: -
JOINING SyncAnswered: -
JOINING Tick: -
JOINING TopicRecreated: -
JOINING TopicsChanged: -
JOINING TopicsKnown: -
SYNCING CommitFenced: -
SYNCING GiveUp: >LEAVING SendLeave
SYNCING HeartbeatAnswered: -
SYNCING JoinAnswered: -
SYNCING Leave: >LEAVING SendLeave
SYNCING LeaveAnswered: -
SYNCING PartitionReleased: -
SYNCING PartitionStarted: -
SYNCING RangeRead: error
SYNCING Rejoin: -
SYNCING SessionExpired: -
SYNCING Start: error
SYNCING SubscriptionChanged: -
SYNCING SyncAnswered: EnterGeneration >ASSIGNING AssignPartitions(1)
SYNCING Tick: -
SYNCING TopicRecreated: -
SYNCING TopicsChanged: -
SYNCING TopicsKnown: -
ASSIGNING CommitFenced: LosePartitions(2) LeaveGeneration >UNJOINED >JOINING SendJoin
ASSIGNING GiveUp: >LEAVING RevokePartitions(2)
ASSIGNING HeartbeatAnswered: >REVOKING RevokePartitions(2)
ASSIGNING JoinAnswered: -
ASSIGNING Leave: >LEAVING RevokePartitions(2)
ASSIGNING LeaveAnswered: -
ASSIGNING PartitionReleased: error
ASSIGNING PartitionStarted: -
ASSIGNING RangeRead: error
ASSIGNING Rejoin: >REVOKING RevokePartitions(2)
ASSIGNING SessionExpired: LosePartitions(2) LeaveGeneration >UNJOINED >JOINING SendJoin
ASSIGNING Start: error
ASSIGNING SubscriptionChanged: >REVOKING RevokePartitions(2)
ASSIGNING SyncAnswered: -
ASSIGNING Tick: -
ASSIGNING TopicRecreated: >REVOKING RevokePartitions(2)
ASSIGNING TopicsChanged: -
ASSIGNING TopicsKnown: -
ASSIGNED CommitFenced: LosePartitions(2) LeaveGeneration >UNJOINED >JOINING SendJoin
ASSIGNED GiveUp: >LEAVING RevokePartitions(2)
ASSIGNED HeartbeatAnswered: >REVOKING RevokePartitions(2)
ASSIGNED JoinAnswered: -
ASSIGNED Leave: >LEAVING RevokePartitions(2)
ASSIGNED LeaveAnswered: -
ASSIGNED PartitionReleased: error
ASSIGNED PartitionStarted: -
ASSIGNED RangeRead: error
ASSIGNED Rejoin: >REVOKING RevokePartitions(2)
ASSIGNED SessionExpired: LosePartitions(2) LeaveGeneration >UNJOINED >JOINING SendJoin
ASSIGNED Start: error
ASSIGNED SubscriptionChanged: >REVOKING RevokePartitions(2)
ASSIGNED SyncAnswered: -
ASSIGNED Tick: -
ASSIGNED TopicRecreated: >REVOKING RevokePartitions(2)
ASSIGNED TopicsChanged: -
ASSIGNED TopicsKnown: -
REVOKING CommitFenced: LosePartitions(2) LeaveGeneration >UNJOINED >JOINING SendJoin
REVOKING GiveUp: >LEAVING RevokePartitions(2)
REVOKING HeartbeatAnswered: -
REVOKING JoinAnswered: -
REVOKING Leave: >LEAVING RevokePartitions(2)
REVOKING LeaveAnswered: -
REVOKING PartitionReleased: -
REVOKING PartitionStarted: -
REVOKING RangeRead: error
REVOKING Rejoin: -
REVOKING SessionExpired: LosePartitions(2) LeaveGeneration >UNJOINED >JOINING SendJoin
REVOKING Start: error
REVOKING SubscriptionChanged: -
REVOKING SyncAnswered: -
REVOKING Tick: -
REVOKING TopicRecreated: -
REVOKING TopicsChanged: -
REVOKING TopicsKnown: -
REVOKED CommitFenced: LeaveGeneration >UNJOINED >JOINING SendJoin
REVOKED GiveUp: >LEAVING SendLeave
REVOKED HeartbeatAnswered: -
REVOKED JoinAnswered: -
REVOKED Leave: >LEAVING SendLeave
REVOKED LeaveAnswered: -
REVOKED PartitionReleased: -
REVOKED PartitionStarted: -
REVOKED RangeRead: error
REVOKED Rejoin: -
REVOKED SessionExpired: LeaveGeneration >UNJOINED >JOINING SendJoin
REVOKED Start: error
REVOKED SubscriptionChanged: -
REVOKED SyncAnswered: -
REVOKED Tick: -
REVOKED TopicRecreated: -
REVOKED TopicsChanged: -
REVOKED TopicsKnown: -
LEAVING CommitFenced: LosePartitions(2) LeaveGeneration
LEAVING GiveUp: -
LEAVING HeartbeatAnswered: -
LEAVING JoinAnswered: -
LEAVING Leave: RevokePartitions(2)
LEAVING LeaveAnswered: -
LEAVING PartitionReleased: -
LEAVING PartitionStarted: -
LEAVING RangeRead: error
LEAVING Rejoin: -
LEAVING SessionExpired: LosePartitions(2) LeaveGeneration SendLeave
LEAVING Start: error
LEAVING SubscriptionChanged: -
LEAVING SyncAnswered: -
LEAVING Tick: -
LEAVING TopicRecreated: -
LEAVING TopicsChanged: -
LEAVING TopicsKnown: -
FATAL CommitFenced: -
FATAL GiveUp: -
FATAL HeartbeatAnswered: -
FATAL JoinAnswered: -
FATAL Leave: >LEAVING >UNJOINED Left
FATAL LeaveAnswered: -
FATAL PartitionReleased: -
FATAL PartitionStarted: -
FATAL RangeRead: error
FATAL Rejoin: error
FATAL SessionExpired: -
FATAL Start: error
FATAL SubscriptionChanged: -
FATAL SyncAnswered: -
FATAL Tick: -
FATAL TopicRecreated: -
FATAL TopicsChanged: -
FATAL TopicsKnown: -
`

func TestEveryInputHasAnOutcomeInEveryState(t *testing.T) {
	names := make([]string, 0, len(memberInputs))
	for name := range memberInputs {
		names = append(names, name)
	}
	inputs := implementers(t, "memberInput")
	sameNames(t, "member inputs", names, inputs)
	checkTable(t, memberTable, len(memberMoves), inputs, func(state State, input string) string {
		r := newRig(t, nil).to(state)
		if state == StateRevoked {
			effects, err := r.m.Step(r.now, memberInputs[input](r))
			return outcome(summary(effects), err)
		}
		err := r.try(memberInputs[input](r))
		return outcome(summary(r.effects), err)
	})
}

func outcome(words string, err error) string {
	switch {
	case err != nil && words != "":
		return words + " error"
	case err != nil:
		return "error"
	case words == "":
		return "-"
	}
	return words
}
