package rebalance

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/troupego/troupe/pkg/kafka"
)

// What an assignor can do wrong beside [ErrForeignPartition]. These come wrapped in an [AssignmentError].
var (
	// ErrUnknownMember means that partitions were given to a member id that is not in the group.
	ErrUnknownMember = errors.New("no such member in the group")
	// ErrUnknownPartition means that a partition was given that the topic does not have, or of a topic that does not exist.
	ErrUnknownPartition = errors.New("no such partition")
	// ErrGivenTwice means that a partition was given to two members, or twice to one.
	ErrGivenTwice = errors.New("partition given twice")
)

// AssignmentError says which part of an assignor's answer breaks the rules.
type AssignmentError struct {
	// MemberID is who was given the partition.
	MemberID string
	// Partition is what was given; it has no topic when the member itself is the fault.
	Partition kafka.TopicPartition
	// Err is the rule: ErrUnknownMember, ErrForeignPartition, ErrUnknownPartition or ErrGivenTwice.
	Err error
}

// Error names the member, the partition and the rule.
func (e *AssignmentError) Error() string {
	if e.Partition.Topic == "" {
		return fmt.Sprintf("rebalance: assignment of member %q: %v", e.MemberID, e.Err)
	}
	return fmt.Sprintf("rebalance: assignment of member %q: %s: %v", e.MemberID, e.Partition, e.Err)
}

// Unwrap returns the rule.
func (e *AssignmentError) Unwrap() error { return e.Err }

// CheckAssignment returns nil when result is one that [Assignor.Assign] may return for these members and topics: it names
// only members of the group, gives each only partitions that exist of topics it asks for, and none twice. Otherwise it
// returns an [*AssignmentError] for the first fault, by member id and in the order of the answer. That every partition was
// given is not checked: a cooperative assignor holds some back.
func CheckAssignment(members []AssignorMember, topics map[string]TopicInfo, result map[string][]kafka.TopicPartition) error {
	asked := make(map[string]map[string]bool, len(members))
	for _, member := range members {
		mine := make(map[string]bool, len(member.Topics))
		for _, topic := range member.Topics {
			mine[topic] = true
		}
		asked[member.MemberID] = mine
	}
	given := make(map[kafka.TopicPartition]bool)
	for _, id := range slices.Sorted(maps.Keys(result)) {
		mine, known := asked[id]
		if !known {
			return &AssignmentError{MemberID: id, Err: ErrUnknownMember}
		}
		for _, tp := range result[id] {
			switch {
			case !mine[tp.Topic]:
				return &AssignmentError{MemberID: id, Partition: tp, Err: ErrForeignPartition}
			case tp.Partition < 0 || tp.Partition >= topics[tp.Topic].Partitions:
				return &AssignmentError{MemberID: id, Partition: tp, Err: ErrUnknownPartition}
			case given[tp]:
				return &AssignmentError{MemberID: id, Partition: tp, Err: ErrGivenTwice}
			}
			given[tp] = true
		}
	}
	return nil
}
