package rebalance

import (
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/troupego/troupe/pkg/kafka"
)

func TestRangeAndRoundRobinAssignAsTheJavaClientDoes(t *testing.T) {
	text, err := os.ReadFile("testdata/java_assignors.txt")
	if err != nil {
		t.Fatal(err)
	}
	assignors := map[string]Assignor{"range": Range(), "roundrobin": RoundRobin()}
	compared := 0
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Split(line, ";")
		members, topics := javaMembers(fields[1]), javaTopics(t, fields[2])
		got, want := assignors[fields[0]].Assign(members, topics), javaResult(t, fields[3])
		if err := CheckAssignment(members, topics, got); err != nil {
			t.Errorf("%s\n%v", line, err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s\n got  %v\n want %v", line, got, want)
		}
		compared++
	}
	if compared < 300 {
		t.Errorf("only %d lines", compared)
	}
}

func javaMembers(text string) (members []AssignorMember) {
	for word := range strings.FieldsSeq(text) {
		parts := strings.Split(word, "/")
		members = append(members, AssignorMember{
			MemberID: parts[0], GroupInstanceID: parts[1], Rack: parts[2], Topics: strings.Split(parts[3], "+"),
		})
	}
	return members
}

func javaTopics(t *testing.T, text string) map[string]TopicInfo {
	t.Helper()
	topics := make(map[string]TopicInfo)
	for word := range strings.FieldsSeq(text) {
		name, partitions, _ := strings.Cut(word, "=")
		var info TopicInfo
		for racks := range strings.SplitSeq(partitions, ",") {
			info.Partitions++
			if racks == "-" {
				info.Racks = append(info.Racks, nil)
				continue
			}
			info.Racks = append(info.Racks, strings.Split(racks, "+"))
		}
		topics[name] = info
	}
	return topics
}

func javaResult(t *testing.T, text string) map[string][]kafka.TopicPartition {
	t.Helper()
	result := make(map[string][]kafka.TopicPartition)
	for word := range strings.FieldsSeq(text) {
		id, partitions, _ := strings.Cut(word, "=")
		result[id] = nil
		for partition := range strings.SplitSeq(partitions, "+") {
			topic, number, found := strings.Cut(partition, ":")
			if !found {
				continue
			}
			p, err := strconv.ParseInt(number, 10, 32)
			if err != nil {
				t.Fatal(err)
			}
			result[id] = append(result[id], tp(topic, int32(p)))
		}
	}
	return result
}
