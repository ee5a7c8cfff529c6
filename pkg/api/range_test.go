package api

import (
	"reflect"
	"slices"
	"testing"

	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

func TestReadRangeIsAnAssignmentWithAnEnd(t *testing.T) {
	day := rebalance.StartBy(rebalance.ResetAt(1000))
	settings, err := Resolve(alone(),
		Handle([]string{"orders", "clicks"}, nothing),
		ReadRange(partitionOf("orders", 3), rebalance.StartAtOffset(7), rebalance.EndAtOffset(9)),
		ReadRange(partitionOf("orders", 0), day, rebalance.EndOfLog()),
		ReadRange(kafka.WholeTopic("clicks"), day, rebalance.EndAt(2000)),
	)
	if err != nil {
		t.Fatal(err)
	}
	want := &rebalance.StandaloneConfig{
		Partitions: map[kafka.TopicPartition]rebalance.StartPosition{
			partitionOf("orders", 3): rebalance.StartAtOffset(7), partitionOf("orders", 0): day,
		},
		Topics: map[string]rebalance.StartPosition{"clicks": day},
		Ends: map[kafka.TopicPartition]rebalance.EndPosition{
			partitionOf("orders", 3): rebalance.EndAtOffset(9), partitionOf("orders", 0): {}, kafka.WholeTopic("clicks"): rebalance.EndAt(2000),
		},
	}
	if !reflect.DeepEqual(settings.Standalone, want) {
		t.Errorf("%+v", settings.Standalone)
	}
	if _, err := rebalance.NewStandalone(*settings.Standalone); err != nil {
		t.Error(err)
	}
}

func TestABadRangeIsAnErrorThatNamesIt(t *testing.T) {
	end := rebalance.EndOfLog()
	start := rebalance.StartPosition{}
	for name, c := range map[string]struct {
		parts []Part
		want  []Problem
	}{
		"from beyond to": {
			[]Part{ReadRange(partitionOf("orders", 0), rebalance.StartAtOffset(9), rebalance.EndAtOffset(7))},
			[]Problem{{`ReadRange("orders", 0).To`, "offset:7", "an offset of at least 9, where the range begins"}},
		},
		"times the wrong way": {
			[]Part{ReadRange(kafka.WholeTopic("orders"), rebalance.StartBy(rebalance.ResetAt(9)), rebalance.EndAt(7))},
			[]Problem{{`ReadRange("orders").To`, "timestamp:7", "a timestamp of at least 9 ms, where the range begins"}},
		},
		"offsets of a whole topic": {
			[]Part{ReadRange(kafka.WholeTopic("orders"), rebalance.StartAtOffset(1), rebalance.EndAtOffset(2))},
			[]Problem{
				{`ReadRange("orders").From`, "offset:1", "a policy (rebalance.StartBy); an offset is one partition's, see Assign"},
				{`ReadRange("orders").To`, "offset:2", "a time or the end; an offset is one partition's"},
			},
		},
		"bad positions": {
			[]Part{ReadRange(partitionOf("orders", 0), rebalance.StartAtOffset(-9), rebalance.EndAtOffset(-7))},
			[]Problem{
				{`ReadRange("orders", 0).From`, "offset:-9", "an offset of at least 0"}, {`ReadRange("orders", 0).To`, "offset:-7", "an offset of at least 0"},
			},
		},
		"twice": {
			[]Part{ReadRange(partitionOf("orders", 0), start, end), ReadRange(partitionOf("orders", 0), start, end)},
			[]Problem{{`ReadRange("orders", 0)`, `"orders-0"`, "each partition once"}},
		},
		"whole and in part": {
			[]Part{ReadRange(kafka.WholeTopic("orders"), start, end), ReadRange(partitionOf("orders", 0), start, end)},
			[]Problem{{`ReadRange("orders", 0)`, `"orders-0"`, "a topic whole or some of its partitions, not both"}},
		},
		"beside Assign": {
			[]Part{ReadRange(partitionOf("orders", 0), start, end), Assign(Assignment{Partition: partitionOf("orders", 1)})},
			[]Problem{{"ReadRange", "", "Assign or ReadRange, not both: one never ends, the other does"}},
		},
		"a topic that nobody handles": {
			[]Part{ReadRange(kafka.WholeTopic("orders"), start, end), ReadRange(partitionOf("clicks", -7), start, end)},
			[]Problem{
				{`ReadRange("clicks", -7)`, `"clicks"`, "a topic that a registration handles"}, {`ReadRange("clicks", -7)`, "-7", "a partition of at least 0"},
			},
		},
		"nothing to start from": {
			[]Part{ReadRange(partitionOf("orders", 0), rebalance.StartBy(rebalance.ResetNone), end)},
			[]Problem{{`ReadRange("orders", 0).From`, "none", "a position, or WithPositions beside ResetNone"}},
		},
	} {
		if got := problemsOf(t, alone(), append(c.parts, Handle("orders", nothing))...); !slices.Equal(got, c.want) {
			t.Errorf("%s:\n got  %v\n want %v", name, got, c.want)
		}
	}
	config := alone()
	config.GroupID = "billing"
	if got := problemsOf(t, config, Handle("orders", nothing), ReadRange(kafka.WholeTopic("orders"), start, end)); len(got) != 1 || got[0].Field != "GroupID" {
		t.Errorf("in a group: %v", got)
	}
}
