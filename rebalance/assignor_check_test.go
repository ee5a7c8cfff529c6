package rebalance

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/troupego/troupe/pkg/kafka"
)

func TestCheckAssignmentNamesTheRuleThatIsBroken(t *testing.T) {
	members := []AssignorMember{{MemberID: "a", Topics: []string{"t", "missing"}}, {MemberID: "b", Topics: []string{"t", "u"}}}
	topics := map[string]TopicInfo{"t": {Partitions: 2}, "u": {Partitions: 1}}
	for name, c := range map[string]struct {
		result map[string][]kafka.TopicPartition
		want   error
		text   string
	}{
		"all":            {map[string][]kafka.TopicPartition{"a": {tp("t", 0)}, "b": {tp("t", 1), tp("u", 0)}}, nil, ""},
		"nothing":        {nil, nil, ""},
		"unknown member": {map[string][]kafka.TopicPartition{"c": nil}, ErrUnknownMember, `member "c"`},
		"unasked topic":  {map[string][]kafka.TopicPartition{"a": {tp("u", 0)}}, ErrForeignPartition, `"a": u-0`},
		"number":         {map[string][]kafka.TopicPartition{"b": {tp("t", 2)}}, ErrUnknownPartition, `"b": t-2`},
		"negative":       {map[string][]kafka.TopicPartition{"b": {tp("t", -1)}}, ErrUnknownPartition, `"b": t--1`},
		"missing topic":  {map[string][]kafka.TopicPartition{"a": {tp("missing", 0)}}, ErrUnknownPartition, "missing-0"},
		"to two":         {map[string][]kafka.TopicPartition{"a": {tp("t", 0)}, "b": {tp("t", 0)}}, ErrGivenTwice, `"b": t-0`},
		"twice to one":   {map[string][]kafka.TopicPartition{"a": {tp("t", 0), tp("t", 0)}}, ErrGivenTwice, `"a": t-0`},
	} {
		err := CheckAssignment(members, topics, c.result)
		if c.want == nil {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		var fault *AssignmentError
		if !errors.Is(err, c.want) || !errors.As(err, &fault) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := CheckAssignment(members, topics, (greedy{}).Assign(members, topics)); !errors.Is(err, ErrForeignPartition) {
		t.Errorf("greedy: %v", err)
	}
}

func TestAssignorsOfNobodyAndNothing(t *testing.T) {
	for _, assignor := range []Assignor{Range(), RoundRobin(), Sticky(), CooperativeSticky()} {
		if got := assignor.Assign(nil, map[string]TopicInfo{"t": {Partitions: 1}}); len(got) != 0 {
			t.Errorf("%s: %v", assignor.Name(), got)
		}
		lonely := []AssignorMember{{MemberID: "a"}, {MemberID: "b", Topics: []string{"t"}}}
		for _, topics := range []map[string]TopicInfo{nil, {"t": {}}, {"t": {Partitions: -3}}, {"t": {Racks: [][]string{{"r"}}}}} {
			got := assignor.Assign(lonely, topics)
			if len(got) != 2 || len(got["a"])+len(got["b"]) != 0 {
				t.Errorf("%s: %v", assignor.Name(), got)
			}
		}
	}
}

func TestRoundRobinDealsAround(t *testing.T) {
	topics := map[string]TopicInfo{"t": {Partitions: 3}, "u": {Partitions: 3}}
	got := RoundRobin().Assign([]AssignorMember{
		{MemberID: "c", Topics: []string{"u", "t", "t"}}, {MemberID: "a", Topics: []string{"t"}}, {MemberID: "b", Topics: []string{"u", "gone"}},
	}, topics)
	want := map[string][]kafka.TopicPartition{
		"a": {tp("t", 0), tp("t", 2)}, "b": {tp("u", 0), tp("u", 2)}, "c": {tp("t", 1), tp("u", 1)},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v", got)
	}
}

// Members in one rack each, partitions with replicas in one or two: everybody gets near ones, as many as without racks, and the
// same numbers of topics that are cut alike.
func TestRangeGivesWhatIsNearAndKeepsTopicsTogether(t *testing.T) {
	racks := [][]string{{"c", "a"}, {"b", "c"}, {"c"}, {"a", "b"}, {"b"}, {"b", "c"}}
	topics := map[string]TopicInfo{"t": {Partitions: 6, Racks: racks}, "u": {Partitions: 6, Racks: racks}}
	var members []AssignorMember
	for _, rack := range []string{"a", "b", "c"} {
		members = append(members, AssignorMember{MemberID: rack, Topics: []string{"t", "u"}, Rack: rack})
	}
	got := Range().Assign(members, topics)
	if err := CheckAssignment(members, topics, got); err != nil {
		t.Fatal(err)
	}
	for rack, partitions := range got {
		if len(partitions) != 4 {
			t.Errorf("%s has %v", rack, partitions)
			continue
		}
		for i, p := range partitions[:2] {
			if partitions[i+2] != tp("u", p.Partition) {
				t.Errorf("%s has %v", rack, partitions)
			}
			if !topics["t"].inRack(p.Partition, rack) {
				t.Errorf("%s is not in rack %s", p, rack)
			}
		}
	}
}
