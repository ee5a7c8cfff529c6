package rebalance

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"unicode/utf16"

	"github.com/troupego/troupe/pkg/kafka"
)

func TestRangeCutsEachTopicIntoRuns(t *testing.T) {
	dynamic := func(id string, topics ...string) AssignorMember { return AssignorMember{MemberID: id, Topics: topics} }
	static := func(id, instance string, topics ...string) AssignorMember {
		return AssignorMember{MemberID: id, GroupInstanceID: instance, Topics: topics}
	}
	run := func(topic string, from, to int32) (out []kafka.TopicPartition) {
		for ; from <= to; from++ {
			out = append(out, tp(topic, from))
		}
		return out
	}
	for name, c := range map[string]struct {
		members []AssignorMember
		topics  map[string]int32
		want    map[string][]kafka.TopicPartition
	}{
		"nobody": {nil, map[string]int32{"t": 3}, map[string][]kafka.TopicPartition{}},
		"the first get one more": {
			[]AssignorMember{dynamic("c", "t"), dynamic("a", "t"), dynamic("b", "t")}, map[string]int32{"t": 8},
			map[string][]kafka.TopicPartition{"a": run("t", 0, 2), "b": run("t", 3, 5), "c": run("t", 6, 7)},
		},
		"more members than partitions": {
			[]AssignorMember{dynamic("a", "t"), dynamic("b", "t"), dynamic("c", "t")}, map[string]int32{"t": 2},
			map[string][]kafka.TopicPartition{"a": run("t", 0, 0), "b": run("t", 1, 1), "c": nil},
		},
		"each topic by itself": {
			[]AssignorMember{dynamic("a", "t", "u"), dynamic("b", "u"), dynamic("c", "t")}, map[string]int32{"t": 3, "u": 3},
			map[string][]kafka.TopicPartition{
				"a": append(run("t", 0, 1), run("u", 0, 1)...), "b": run("u", 2, 2), "c": run("t", 2, 2),
			},
		},
		"topic that does not exist, topic asked for twice": {
			[]AssignorMember{dynamic("a", "x", "t", "t")}, map[string]int32{"t": 1}, map[string][]kafka.TopicPartition{"a": run("t", 0, 0)},
		},
		"static members first, by instance": {
			[]AssignorMember{dynamic("a", "t"), static("z", "1", "t"), static("y", "2", "t")}, map[string]int32{"t": 3},
			map[string][]kafka.TopicPartition{"z": run("t", 0, 0), "y": run("t", 1, 1), "a": run("t", 2, 2)},
		},
	} {
		topics := make(map[string]TopicInfo)
		for topic, n := range c.topics {
			topics[topic] = TopicInfo{Partitions: n}
		}
		if got := Range().Assign(c.members, topics); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s\n got  %v\n want %v", name, got, c.want)
		}
	}
	if Range().Name() != "range" || Range().Protocol() != Eager || Range().UserData(nil, nil, 0) != nil {
		t.Error("not Kafka's range")
	}
}

func TestStaticMemberKeepsItsRunUnderANewMemberID(t *testing.T) {
	topics := map[string]TopicInfo{"t": {Partitions: 7}}
	assign := func(id string) []kafka.TopicPartition {
		return Range().Assign([]AssignorMember{
			{MemberID: id, GroupInstanceID: "two", Topics: []string{"t"}}, {MemberID: "m", GroupInstanceID: "one", Topics: []string{"t"}},
		}, topics)[id]
	}
	if !slices.Equal(assign("a"), assign("z")) {
		t.Error("moved")
	}
}

func TestRangeGivesEveryPartitionToOneWhoAskedForIt(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		topics := make(map[string]TopicInfo)
		for i := range 1 + random.IntN(4) {
			topics[fmt.Sprint("t", i)] = TopicInfo{Partitions: int32(random.IntN(20))}
		}
		var members []AssignorMember
		asked := make(map[string]map[string]bool)
		for i := range 1 + random.IntN(6) {
			member := AssignorMember{MemberID: fmt.Sprint("m", i)}
			asked[member.MemberID] = make(map[string]bool)
			for topic := range topics {
				if random.IntN(2) == 0 {
					member.Topics = append(member.Topics, topic)
					asked[member.MemberID][topic] = true
				}
			}
			members = append(members, member)
		}
		plan := Range().Assign(members, topics)
		random.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
		if !reflect.DeepEqual(plan, Range().Assign(members, topics)) {
			t.Fatal("the order of members matters")
		}
		owners := make(map[kafka.TopicPartition]string)
		for id, partitions := range plan {
			for _, p := range partitions {
				if owners[p] != "" || !asked[id][p.Topic] || p.Partition >= topics[p.Topic].Partitions {
					t.Fatalf("%s given to %q", p, id)
				}
				owners[p] = id
			}
		}
		for topic, info := range topics {
			wanted := slices.ContainsFunc(members, func(m AssignorMember) bool { return slices.Contains(m.Topics, topic) })
			for p := range info.Partitions {
				if wanted != (owners[tp(topic, p)] != "") {
					t.Fatalf("%s-%d has owner %q", topic, p, owners[tp(topic, p)])
				}
			}
		}
	}
}

func TestMembersAreOrderedAsInJava(t *testing.T) {
	words := []string{"", "a", "ab", "b", "é", "中", "\uffee", "\U0001f600", "\U0001f601", "\U00010000x"}
	for _, a := range words {
		for _, b := range words {
			want := slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b)))
			if got := compareJava(a, b); got != want {
				t.Errorf("%q and %q: %d, want %d", a, b, got, want)
			}
		}
	}
}

func TestRebalanceProtocolsHaveKafkasWords(t *testing.T) {
	if Eager.String() != "eager" || Cooperative.String() != "cooperative" || RebalanceProtocol(9).String() != "RebalanceProtocol(9)" {
		t.Error("wrong words")
	}
}
