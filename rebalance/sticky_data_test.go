package rebalance

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/pkg/kafka"
)

// stickyTwin writes the same user data with kmsg.
func stickyTwin(partitions []kafka.TopicPartition, generation kafka.Generation) []byte {
	metadata := kmsg.NewStickyMemberMetadata()
	metadata.Generation = int32(generation)
	for _, p := range partitions {
		if n := len(metadata.CurrentAssignment); n > 0 && metadata.CurrentAssignment[n-1].Topic == p.Topic {
			metadata.CurrentAssignment[n-1].Partitions = append(metadata.CurrentAssignment[n-1].Partitions, p.Partition)
			continue
		}
		topic := kmsg.NewStickyMemberMetadataCurrentAssignment()
		topic.Topic, topic.Partitions = p.Topic, []int32{p.Partition}
		metadata.CurrentAssignment = append(metadata.CurrentAssignment, topic)
	}
	return metadata.AppendTo(nil)
}

// The golden bytes are what the Java client 4.4.0 writes.
func TestStickyUserDataIsWrittenAsTheJavaClientWritesIt(t *testing.T) {
	two := []kafka.TopicPartition{tp("clicks", 3), tp("orders", 0), tp("orders", 1)}
	for name, c := range map[string]struct {
		assignor   Assignor
		owned      []kafka.TopicPartition
		generation kafka.Generation
		golden     string
	}{
		"never had any":              {Sticky(), nil, kafka.NoGeneration, ""},
		"nothing":                    {Sticky(), nil, 8, "0000000000000008"},
		"one topic":                  {Sticky(), two[1:], 7, "0000000100066f726465727300000002000000000000000100000007"},
		"two topics":                 {Sticky(), two, 7, "000000020006636c69636b73000000010000000300066f726465727300000002000000000000000100000007"},
		"cooperative, never had any": {CooperativeSticky(), nil, kafka.NoGeneration, "ffffffff"},
		"cooperative":                {CooperativeSticky(), two, 7, "00000007"},
	} {
		got := c.assignor.UserData([]string{"orders"}, c.owned, c.generation)
		if hex.EncodeToString(got) != c.golden {
			t.Errorf("%s: %x", name, got)
		}
		if c.assignor == Sticky() && got != nil && !bytes.Equal(got, stickyTwin(c.owned, c.generation)) {
			t.Errorf("%s: kmsg writes %x", name, stickyTwin(c.owned, c.generation))
		}
	}
	if got := Sticky().UserData(nil, []kafka.TopicPartition{tp(string(make([]byte, 1<<15)), 0)}, 1); got != nil {
		t.Errorf("%d bytes with a topic that does not fit", len(got))
	}
	annotator, ok := Sticky().(AssignmentAnnotator)
	if !ok || !bytes.Equal(annotator.AssignmentData(two, 7), Sticky().UserData(nil, two, 7)) {
		t.Error("the leader does not send what members of the sarama client send back")
	}
}

func TestBothVersionsOfStickyUserDataAreRead(t *testing.T) {
	want := []kafka.TopicPartition{tp("clicks", 3), tp("orders", 0), tp("orders", 1)}
	whole := stickyTwin(want, 7)
	for name, c := range map[string]struct {
		data       []byte
		generation kafka.Generation
	}{
		"version 1":       {whole, 7},
		"version 0":       {whole[:len(whole)-4], kafka.NoGeneration},
		"trailing bytes":  {append(slices.Clone(whole), 1, 2), 7},
		"half generation": {whole[:len(whole)-2], kafka.NoGeneration},
	} {
		got, err := decodeStickyData(c.data)
		if err != nil || got.generation != c.generation || !reflect.DeepEqual(got.partitions, want) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for n := range len(whole) - 4 {
		if got, err := decodeStickyData(whole[:n]); !errors.Is(err, ErrMalformed) || got.partitions != nil {
			t.Errorf("%d bytes: %+v, %v", n, got, err)
		}
	}
}

// A member keeps what it had when a member of the sarama client leads, and one of theirs when we lead.
func TestSaramaAndWeReadEachOthersStickyUserData(t *testing.T) {
	had := map[string][]int32{"a": {3, 1}, "b": {0}, "c": {2, 4}}
	theirs := sarama.NewBalanceStrategySticky()
	metadata := make(map[string]sarama.ConsumerGroupMemberMetadata)
	var members []AssignorMember
	for id, numbers := range had {
		var owned []kafka.TopicPartition
		for _, p := range numbers {
			owned = append(owned, tp("t", p))
		}
		metadata[id] = sarama.ConsumerGroupMemberMetadata{Topics: []string{"t"}, UserData: Sticky().UserData(nil, owned, 5)}
		data, err := theirs.AssignmentData(id, map[string][]int32{"t": numbers}, 5)
		if err != nil {
			t.Fatal(err)
		}
		members = append(members, AssignorMember{MemberID: id, Topics: []string{"t"}, UserData: data})
	}
	plan, err := theirs.Plan(metadata, map[string][]int32{"t": {0, 1, 2, 3, 4, 5}})
	if err != nil {
		t.Fatal(err)
	}
	ours := Sticky().Assign(members, map[string]TopicInfo{"t": {Partitions: 6}})
	for id, numbers := range had {
		for _, p := range numbers {
			if !slices.Contains(plan[id]["t"], p) {
				t.Errorf("sarama leads: %s keeps %v of %v", id, plan[id]["t"], numbers)
			}
			if !slices.Contains(ours[id], tp("t", p)) {
				t.Errorf("we lead: %s keeps %v of %v", id, ours[id], numbers)
			}
		}
	}
}

func FuzzStickyUserData(f *testing.F) {
	f.Add(stickyTwin([]kafka.TopicPartition{tp("t", 0), tp("u", 4)}, 3))
	f.Add([]byte{0, 0, 0, 0})
	f.Add([]byte{0, 0, 0, 1, 0, 1, 't', 0x7f, 0xff, 0xff, 0xff})
	topics := map[string]TopicInfo{"t": {Partitions: 3}, "u": {Partitions: 5}}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := decodeStickyData(data)
		if err == nil {
			if cap(c.partitions) > len(data) {
				t.Fatalf("%d bytes became room for %d partitions", len(data), cap(c.partitions))
			}
			encoded, err := encodeStickyData(c.partitions, c.generation)
			if err != nil {
				t.Fatal(err)
			}
			again, err := decodeStickyData(encoded)
			slices.SortFunc(c.partitions, kafka.TopicPartition.Compare)
			if err != nil || again.generation != c.generation || !slices.Equal(again.partitions, c.partitions) {
				t.Fatalf("%+v became %+v: %v", c, again, err)
			}
		}
		members := []AssignorMember{
			{MemberID: "a", Topics: []string{"t", "u"}, UserData: data, Owned: c.partitions, Generation: kafka.NoGeneration},
			{MemberID: "b", Topics: []string{"t"}, UserData: stickyTwin([]kafka.TopicPartition{tp("t", 0)}, 3)},
		}
		checkComplete(t, members, topics, Sticky().Assign(members, topics))
		if err := CheckAssignment(members, topics, CooperativeSticky().Assign(members, topics)); err != nil {
			t.Fatal(err)
		}
	})
}
