package rebalance

import (
	"strconv"

	"github.com/troupego/troupe/pkg/kafka"
)

// RebalanceProtocol says what a member gives up before it joins again (KIP-429).
type RebalanceProtocol uint8

const (
	// Eager members give up every partition before JoinGroup.
	Eager RebalanceProtocol = iota
	// Cooperative members keep their partitions and give up only what moves, after SyncGroup.
	Cooperative
)

// String returns "eager" or "cooperative".
func (p RebalanceProtocol) String() string {
	switch p {
	case Eager:
		return "eager"
	case Cooperative:
		return "cooperative"
	}
	return "RebalanceProtocol(" + strconv.Itoa(int(p)) + ")"
}

// Assignor divides partitions among the members of a group. It is used by the group leader, is pure and keeps no state:
// what it must remember travels in the members' user data. [Range], [RoundRobin], [Sticky] and [CooperativeSticky] are
// Kafka's own; any other value of this interface may stand beside them.
//
// The leader sends out only what [CheckAssignment] lets pass; an assignor's tests should call it too. Of what an assignor
// gets nothing can be trusted: members are other programs, and what they claim to own may be stale, claimed twice, or of
// topics and partitions that do not exist.
//
// A [Cooperative] assignor owes one thing more. Its members go on working on what they own while the group rebalances, so a
// partition that moves must be given to nobody as long as another member says in Owned that it has it. The owner sees that
// it is missing, lets go of it and joins again; that next round gives it away. When nothing is claimed by two members, the
// rounds must come to rest: given the claims that follow from its own answer, an assignor must give the same answer again.
type Assignor interface {
	// Name is the protocol's name in JoinGroup, such as "range". All members of a group must share one.
	Name() string
	// Protocol says how members rebalance under this assignor.
	Protocol() RebalanceProtocol
	// UserData returns what a member sends along with its subscription, nil for nothing. owned was given in generation;
	// it is empty, and generation [kafka.NoGeneration], when the member was never given anything. Under an [Eager]
	// assignor owned is what the member had before it gave up everything in order to join.
	UserData(topics []string, owned []kafka.TopicPartition, generation kafka.Generation) []byte
	// Assign returns each member's partitions by member id. topics has the partition counts of the topics that exist.
	// A member may get only partitions of topics it asks for; one that is left out gets nothing. The result must not
	// depend on the order of members, and the arguments must be left as they are.
	Assign(members []AssignorMember, topics map[string]TopicInfo) map[string][]kafka.TopicPartition
}

// AssignmentAnnotator is an [Assignor] whose leader also sends user data with each assignment.
type AssignmentAnnotator interface {
	Assignor
	// AssignmentData returns the user data for a member that is given these partitions in this generation.
	AssignmentData(partitions []kafka.TopicPartition, generation kafka.Generation) []byte
}

// AssignorMember is one member as an assignor sees it.
type AssignorMember struct {
	// MemberID is the id the coordinator gave.
	MemberID string
	// GroupInstanceID is the static member's own name, empty for a dynamic member.
	GroupInstanceID string
	// Topics are what the member asks for.
	Topics []string
	// Owned are the partitions it still holds, given to it in Generation.
	Owned []kafka.TopicPartition
	// Generation is [kafka.NoGeneration] when the member does not say.
	Generation kafka.Generation
	// UserData is what the assignor put there with [Assignor.UserData].
	UserData []byte
	// Rack is where the member runs, empty when unknown.
	Rack string
}
