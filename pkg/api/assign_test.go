package api

import (
	"context"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

func partitionOf(topic string, partition int32) kafka.TopicPartition {
	return kafka.TopicPartition{Topic: topic, Partition: partition}
}

func alone() Config { return Config{Brokers: []string{"localhost:9092"}} }

func TestAssignTakesThePlaceOfAGroup(t *testing.T) {
	settings, err := Resolve(alone(),
		Handle([]string{"orders", "clicks"}, nothing),
		Assign(Assignment{Partition: partitionOf("orders", 3), Start: rebalance.StartAtOffset(7)}, Assignment{Partition: partitionOf("orders", 0)}),
		Assign(Assignment{Partition: partitionOf("orders", 1), Start: rebalance.StartBy(rebalance.ResetAt(1000))}),
		AssignTopic("clicks", rebalance.StartBy(rebalance.ResetByDuration(time.Hour))),
	)
	if err != nil {
		t.Fatal(err)
	}
	want := &rebalance.StandaloneConfig{
		Partitions: map[kafka.TopicPartition]rebalance.StartPosition{
			partitionOf("orders", 3): rebalance.StartAtOffset(7), partitionOf("orders", 0): {},
			partitionOf("orders", 1): rebalance.StartBy(rebalance.ResetAt(1000)),
		},
		Topics: map[string]rebalance.StartPosition{"clicks": rebalance.StartBy(rebalance.ResetByDuration(time.Hour))},
	}
	if !reflect.DeepEqual(settings.Standalone, want) || settings.GroupID != "" || !commit.IsManual(settings.Strategy) {
		t.Errorf("%+v, group %q, strategy %v", settings.Standalone, settings.GroupID, settings.Strategy)
	}
	if _, err := rebalance.NewStandalone(*settings.Standalone); err != nil {
		t.Error(err)
	}
	if settings, err := Resolve(validConfig(), Handle("orders", nothing)); err != nil || settings.Standalone != nil {
		t.Errorf("in a group: %+v, %v", settings.Standalone, err)
	}
	config := alone()
	config.CommitStrategy = commit.Manual() // says the same
	config.CloseTimeout, config.MaxInTransit, config.Reset = time.Second, 10, rebalance.ResetNone
	if _, err := Resolve(config, Handle("orders", nothing), AssignTopic("orders", rebalance.StartPosition{})); err != nil {
		t.Error(err)
	}
}

func TestASettingOfTheGroupBesideAssignIsAnErrorThatNamesIt(t *testing.T) {
	config := alone()
	config.GroupID, config.GroupInstanceID = "billing", "one"
	config.SessionTimeout, config.HeartbeatInterval = time.Minute, time.Second
	config.RebalanceTimeout, config.DrainTimeout = -time.Minute, time.Second
	config.MaxProcessingTime, config.Assignors = time.Minute, []rebalance.Assignor{nil}
	config.CommitStrategy, config.OffsetMap = commit.Opportunistic(), true
	config.MaxInTransit = -1
	var fields []string
	for _, p := range problemsOf(t, config, Handle("orders", nothing), AssignTopic("orders", rebalance.StartPosition{})) {
		fields = append(fields, p.Field)
		if p.Want == "" {
			t.Errorf("%s does not say what would be right", p.Field)
		}
	}
	want := []string{
		"GroupID", "GroupInstanceID", "SessionTimeout", "HeartbeatInterval", "RebalanceTimeout", "DrainTimeout", "MaxProcessingTime", "Assignors",
		"CommitStrategy", "OffsetMap", "MaxInTransit",
	}
	if !slices.Equal(fields, want) {
		t.Errorf("problems of %v, want %v", fields, want)
	}
}

// TestEveryFieldOfConfigIsKnownToAssign: a new setting has to be looked at, whether it is one of the group.
func TestEveryFieldOfConfigIsKnownToAssign(t *testing.T) {
	ofTheGroup := []string{
		"GroupID", "GroupInstanceID", "SessionTimeout", "HeartbeatInterval", "RebalanceTimeout", "DrainTimeout", "MaxProcessingTime", "Assignors",
		"CommitStrategy", "OffsetMap",
	}
	ofAll := []string{
		"Brokers", "ClientID", "Rack", "CloseTimeout", "TokenTimeout", "Reset", "IsolationLevel", "BlockedAfter", "StuckAfter", "MaxInTransit", "ResumeBelow",
		"MemoryBudget", "FetchMinBytes", "FetchMaxWait", "FetchMaxBytes", "PartitionMaxBytes", "MaxBatchBytes", "MetadataMaxAge",
		"ConnectTimeout", "RequestTimeout", "Backoff", "Restart", "Concurrency",
	}
	for i := range reflect.TypeFor[Config]().NumField() {
		name := reflect.TypeFor[Config]().Field(i).Name
		if slices.Contains(ofTheGroup, name) == slices.Contains(ofAll, name) {
			t.Errorf("%s: is it a setting of the group?", name)
		}
	}
}

func TestEachRuleOfAssignNamesWhatIsWrongAndWhatWouldBeRight(t *testing.T) {
	one := func(topic string, partition int32, start rebalance.StartPosition) Part {
		return Assign(Assignment{Partition: partitionOf(topic, partition), Start: start})
	}
	var begin rebalance.StartPosition
	handled := Handle("orders", nothing)
	for name, tt := range map[string]struct {
		parts []Part
		want  []Problem
	}{
		"nothing": {[]Part{Assign(), Handle("orders", nothing)}, []Problem{
			{"Assign", "", "at least one partition"}, {`Handle("orders").topics`, `"orders"`, "a topic that Assign, AssignTopic or ReadRange has"}}},
		"no topic":           {[]Part{handled, one("orders", 0, begin), one("", 0, begin)}, []Problem{{"Assign[1]", `""`, topicNameWant}}},
		"negative partition": {[]Part{handled, one("orders", -1, begin)}, []Problem{{"Assign[0]", "-1", "a partition of at least 0"}}},
		"negative offset": {[]Part{handled, one("orders", 0, rebalance.StartAtOffset(-5))}, []Problem{
			{"Assign[0].Start", "offset:-5", "an offset of at least 0"}}},
		"bad time": {[]Part{handled, one("orders", 0, rebalance.StartBy(rebalance.ResetAt(-1)))}, []Problem{
			{"Assign[0].Start", "timestamp:-1", "a timestamp of at least 0 ms"}}},
		"none without stored offsets": {[]Part{handled, one("orders", 0, rebalance.StartBy(rebalance.ResetNone))}, []Problem{
			{"Assign[0].Start", "none", "a position, or WithPositions beside ResetNone"}}},
		"twice": {[]Part{handled, one("orders", 4, begin), one("orders", 4, rebalance.StartAtOffset(1))}, []Problem{
			{"Assign[1]", `"orders-4"`, "each partition once"}}},
		"not handled": {[]Part{handled, one("orders", 0, begin), one("clicks", 0, begin), one("clicks", 1, begin)}, []Problem{
			{"Assign[1]", `"clicks"`, "a topic that a registration handles"}}},
		"not assigned": {[]Part{handled, Handle([]string{"clicks", "bad topic"}, nothing), one("orders", 0, begin)}, []Problem{
			{`Handle("clicks", "bad topic").topics`, `"clicks"`, "a topic that Assign, AssignTopic or ReadRange has"},
			{`Handle("clicks", "bad topic").topics`, `"bad topic"`, topicNameWant}}},
		"a pattern": {[]Part{Handle(Matching("o.*"), nothing), handled, one("orders", 0, begin)}, []Problem{
			{`Handle(Matching("o.*")).topics`, `Matching("o.*")`, "names of topics beside Assign: patterns are for groups"}}},
		"both ways": {[]Part{handled, one("orders", 0, begin), AssignTopic("orders", begin)}, []Problem{
			{"Assign[0]", `"orders-0"`, "a topic whole or some of its partitions, not both"}}},
		"topic twice": {[]Part{handled, AssignTopic("orders", begin), AssignTopic("orders", begin)}, []Problem{
			{`AssignTopic("orders")`, "", "each topic once"}}},
		"an offset for a topic": {[]Part{handled, AssignTopic("orders", rebalance.StartAtOffset(3))}, []Problem{
			{`AssignTopic("orders").Start`, "offset:3", "a policy (rebalance.StartBy); an offset is one partition's, see Assign"}}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := problemsOf(t, alone(), tt.parts...); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("problems are %q, want %q", got, tt.want)
			}
		})
	}
	stored := WithPositions(func(context.Context, []kafka.TopicPartition) (map[kafka.TopicPartition]int64, error) { return nil, nil })
	if _, err := Resolve(alone(), handled, stored, one("orders", 0, rebalance.StartBy(rebalance.ResetNone))); err != nil {
		t.Error(err)
	}
}
