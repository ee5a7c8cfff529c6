package rebalance

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/pkg/kafka"
)

func sampleSubscription() Subscription {
	return Subscription{
		Version: 3, Topics: []string{"orders", "clicks"}, UserData: []byte{1, 2},
		Owned: []kafka.TopicPartition{tp("clicks", 3), tp("orders", 0), tp("orders", 1)}, Generation: 7, Rack: "r1",
	}
}

// twin writes the same subscription with kmsg in any version.
func twin(s Subscription, version int16) []byte {
	metadata := kmsg.NewConsumerMemberMetadata()
	metadata.Version, metadata.Topics, metadata.UserData = version, s.Topics, s.UserData
	metadata.Generation = int32(s.Generation)
	if s.Rack != "" {
		metadata.Rack = &s.Rack
	}
	for _, owned := range s.Owned {
		if n := len(metadata.OwnedPartitions); n > 0 && metadata.OwnedPartitions[n-1].Topic == owned.Topic {
			metadata.OwnedPartitions[n-1].Partitions = append(metadata.OwnedPartitions[n-1].Partitions, owned.Partition)
			continue
		}
		topic := kmsg.NewConsumerMemberMetadataOwnedPartition()
		topic.Topic, topic.Partitions = owned.Topic, []int32{owned.Partition}
		metadata.OwnedPartitions = append(metadata.OwnedPartitions, topic)
	}
	return metadata.AppendTo(nil)
}

func TestSubscriptionIsWrittenAsKafkaWritesVersion3(t *testing.T) {
	for _, s := range []Subscription{sampleSubscription(), {Topics: []string{"t"}, Generation: kafka.NoGeneration}, {}} {
		got, err := EncodeSubscription(s)
		if err != nil || !bytes.Equal(got, twin(s, 3)) {
			t.Errorf("%+v\n got  %x\n want %x\n %v", s, got, twin(s, 3), err)
		}
	}
}

// The layout by hand: version, topics, user data, owned partitions by topic, generation, rack.
func TestSubscriptionBytes(t *testing.T) {
	const golden = "0003" + "00000001" + "000174" + "ffffffff" + "00000001" + "000174" + "00000002" + "00000000" + "00000001" + "00000005" + "00027231"
	got, err := EncodeSubscription(Subscription{Topics: []string{"t"}, Owned: []kafka.TopicPartition{tp("t", 1), tp("t", 0)}, Generation: 5, Rack: "r1"})
	if err != nil || hex.EncodeToString(got) != golden {
		t.Errorf("%x, %v", got, err)
	}
}

// The golden bytes are what the Java client 4.4.0 writes in each version; kmsg must write them too.
func TestEveryVersionIsWrittenAsTheJavaClientWritesIt(t *testing.T) {
	full := sampleSubscription()
	full.Topics = []string{"clicks", "orders"}
	least := Subscription{Topics: []string{"orders"}, Generation: kafka.NoGeneration}
	const head, owned = "000000020006636c69636b7300066f7264657273000000020102", "000000020006636c69636b73000000010000000300066f726465727300000002" + "0000000000000001"
	const leastHead = "0000000100066f7264657273ffffffff"
	for version, golden := range []struct{ full, least, assignment string }{
		{"0000" + head, "0000" + leastHead, "0000" + owned + "0000000105"},
		{"0001" + head + owned, "0001" + leastHead + "00000000", "0001" + owned + "0000000105"},
		{"0002" + head + owned + "00000007", "0002" + leastHead + "00000000" + "ffffffff", "0002" + owned + "0000000105"},
		{"0003" + head + owned + "00000007" + "00027231", "0003" + leastHead + "00000000" + "ffffffff" + "ffff", "0003" + owned + "0000000105"},
	} {
		version := int16(version)
		for _, c := range []struct {
			subscription Subscription
			golden       string
		}{{full, golden.full}, {least, golden.least}} {
			got, err := EncodeSubscriptionVersion(c.subscription, version)
			if err != nil || hex.EncodeToString(got) != c.golden || !bytes.Equal(got, twin(c.subscription, version)) {
				t.Errorf("version %d\n got  %x\n want %s\n kmsg %x\n %v", version, got, c.golden, twin(c.subscription, version), err)
			}
		}
		got, err := EncodeAssignmentVersion(Assignment{Partitions: full.Owned, UserData: []byte{5}}, version)
		if err != nil || hex.EncodeToString(got) != golden.assignment {
			t.Errorf("assignment version %d: %x, %v", version, got, err)
		}
		if got, err := EncodeAssignmentVersion(Assignment{}, version); err != nil || hex.EncodeToString(got) != fmt.Sprintf("%04x00000000ffffffff", version) {
			t.Errorf("empty assignment version %d: %x, %v", version, got, err)
		}
	}
	for _, version := range []int16{-1, 4} {
		if _, err := EncodeSubscriptionVersion(full, version); err == nil {
			t.Errorf("subscription version %d was written", version)
		}
		if _, err := EncodeAssignmentVersion(Assignment{}, version); err == nil {
			t.Errorf("assignment version %d was written", version)
		}
	}
}

func TestEveryVersionOfASubscriptionIsRead(t *testing.T) {
	full := sampleSubscription()
	for version := range int16(4) {
		want := full
		want.Version = version
		if version < 3 {
			want.Rack = ""
		}
		if version < 2 {
			want.Generation = kafka.NoGeneration
		}
		if version < 1 {
			want.Owned = nil
		}
		for name, tail := range map[string][]byte{"exact": nil, "trailing bytes": {9, 9, 9}} {
			got, err := DecodeSubscription(append(twin(full, version), tail...))
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("version %d, %s\n got  %+v\n want %+v\n %v", version, name, got, want, err)
			}
		}
	}
}

func TestNewerVersionIsReadAsFarAsItIsKnown(t *testing.T) {
	encoded := append(twin(sampleSubscription(), 3), 0xde, 0xad)
	encoded[1] = 12
	want := sampleSubscription()
	want.Version = 12
	if got, err := DecodeSubscription(encoded); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestSubscriptionThatEndsBetweenFieldsIsRead(t *testing.T) {
	short := twin(sampleSubscription(), 0)
	short[1] = 3 // says version 3 and holds only what version 0 has
	got, err := DecodeSubscription(short)
	if err != nil || got.Generation != kafka.NoGeneration || got.Owned != nil || len(got.Topics) != 2 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestEveryCutOfASubscriptionIsReadOrRefused(t *testing.T) {
	full := twin(sampleSubscription(), 3)
	for n := range full {
		if _, err := DecodeSubscription(full[:n]); err != nil && !errors.Is(err, ErrMalformed) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	if _, err := DecodeSubscription(nil); !errors.Is(err, ErrMalformed) {
		t.Errorf("no bytes: %v", err)
	}
}

func TestFalseCountsCostNoMemory(t *testing.T) {
	huge, _ := hex.DecodeString("0003" + "7fffffff" + "000174")
	hugeOwned, _ := hex.DecodeString("0003" + "00000000" + "ffffffff" + "00000001" + "000174" + "7fffffff")
	hugeData, _ := hex.DecodeString("0003" + "00000000" + "7fffffff")
	for _, data := range [][]byte{huge, hugeOwned, hugeData} {
		if cost := testing.AllocsPerRun(10, func() {
			if _, err := DecodeSubscription(data); !errors.Is(err, ErrMalformed) {
				t.Errorf("%x: %v", data, err)
			}
		}); cost > 20 {
			t.Errorf("%x: %v allocations", data, cost)
		}
	}
}

func TestAssignmentOfAnyVersionIsRead(t *testing.T) {
	want := []kafka.TopicPartition{tp("clicks", 3), tp("orders", 0), tp("orders", 1)}
	encoded, err := EncodeAssignment(Assignment{Partitions: []kafka.TopicPartition{want[2], want[0], want[1]}, UserData: []byte{5}})
	if err != nil {
		t.Fatal(err)
	}
	var reference kmsg.ConsumerMemberAssignment
	if err := reference.ReadFrom(encoded); err != nil || reference.Version != 1 || len(reference.Topics) != 2 || !bytes.Equal(reference.UserData, []byte{5}) {
		t.Fatalf("kmsg reads %+v, %v", reference, err)
	}
	if !bytes.Equal(reference.AppendTo(nil), encoded) {
		t.Error("kmsg writes it differently")
	}
	for _, version := range []byte{0, 1, 2, 3, 9} {
		encoded[1] = version
		got, err := DecodeAssignment(append(bytes.Clone(encoded), 1, 2, 3))
		if err != nil || got.Version != int16(version) || !reflect.DeepEqual(got.Partitions, want) || !bytes.Equal(got.UserData, []byte{5}) {
			t.Errorf("version %d: %+v, %v", version, got, err)
		}
	}
	withoutData := encoded[:len(encoded)-5]
	if got, err := DecodeAssignment(withoutData); err != nil || len(got.Partitions) != 3 || got.UserData != nil {
		t.Errorf("without user data: %+v, %v", got, err)
	}
}

func TestNoBytesAreAnEmptyAssignment(t *testing.T) {
	for _, data := range [][]byte{nil, {}, {0, 0}, {0, 1, 0, 0, 0, 0}, {0, 1, 0xff, 0xff, 0xff, 0xff}} {
		if got, err := DecodeAssignment(data); err != nil || len(got.Partitions) != 0 {
			t.Errorf("%x: %+v, %v", data, got, err)
		}
	}
}

func TestStringThatDoesNotFitIsRefused(t *testing.T) {
	long := string(make([]byte, 1<<15))
	for _, s := range []Subscription{{Topics: []string{long}}, {Rack: long}, {Owned: []kafka.TopicPartition{tp(long, 0)}}} {
		if _, err := EncodeSubscription(s); err == nil {
			t.Error("encoded")
		}
	}
	if _, err := EncodeAssignment(Assignment{Partitions: []kafka.TopicPartition{tp(long, 0)}}); err == nil {
		t.Error("encoded")
	}
}

func FuzzDecodeSubscription(f *testing.F) {
	for version := range int16(4) {
		f.Add(twin(sampleSubscription(), version))
	}
	f.Add([]byte{0, 3, 0x7f, 0xff, 0xff, 0xff, 0, 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := DecodeSubscription(data)
		if err != nil {
			return
		}
		if cap(s.Topics) > len(data) || cap(s.UserData) > len(data) {
			t.Fatalf("%d bytes became %d topics, %d of user data", len(data), cap(s.Topics), cap(s.UserData))
		}
		first, err := EncodeSubscription(s)
		if err != nil {
			t.Fatal(err)
		}
		again, err := DecodeSubscription(first)
		if err != nil {
			t.Fatal(err)
		}
		second, err := EncodeSubscription(again)
		if err != nil || !bytes.Equal(first, second) {
			t.Fatalf("%x became %x: %v", first, second, err)
		}
	})
}

func FuzzDecodeAssignment(f *testing.F) {
	f.Add(assignmentOf(tp("t", 0), tp("u", 4)))
	f.Add([]byte{})
	f.Add([]byte{0, 0, 0, 0, 0, 1, 0, 1, 't', 0x7f, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := DecodeAssignment(data)
		if err != nil {
			return
		}
		if cap(a.Partitions) > len(data) {
			t.Fatalf("%d bytes became room for %d partitions", len(data), cap(a.Partitions))
		}
		first, err := EncodeAssignment(a)
		if err != nil {
			t.Fatal(err)
		}
		again, err := DecodeAssignment(first)
		if err != nil || len(again.Partitions) != len(a.Partitions) {
			t.Fatalf("%d partitions became %d: %v", len(a.Partitions), len(again.Partitions), err)
		}
		second, err := EncodeAssignment(again)
		if err != nil || !bytes.Equal(first, second) {
			t.Fatalf("%x became %x: %v", first, second, err)
		}
	})
}
