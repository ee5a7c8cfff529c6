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
// what it must remember travels in the members' user data.
type Assignor interface {
	// Name is the protocol's name in JoinGroup, such as "range". All members of a group must share one.
	Name() string
	// Protocol says how members rebalance under this assignor.
	Protocol() RebalanceProtocol
	// UserData returns what a member sends along with its subscription, nil for nothing. owned was given in generation;
	// it is empty, and generation [kafka.NoGeneration], when the member holds nothing.
	UserData(topics []string, owned []kafka.TopicPartition, generation kafka.Generation) []byte
	// Assign returns each member's partitions by member id. topics has the partition counts of the topics that exist.
	// A member may get only partitions of topics it asks for; one that is left out gets nothing.
	Assign(members []AssignorMember, topics map[string]TopicInfo) map[string][]kafka.TopicPartition
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
