package commit

import (
	"testing"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

func BenchmarkRoundsOffer(b *testing.B) {
	const partitions = 1000
	shapes := []struct {
		name     string
		strategy Strategy
		entered  bool
	}{
		{name: "Outside"},
		{name: "WaitingForTheSpacing", entered: true},
		{name: "EveryRecords", strategy: EveryRecords(1 << 40), entered: true},
		{name: "EveryHour", strategy: Every(time.Hour), entered: true},
	}
	for _, shape := range shapes {
		b.Run(shape.name, func(b *testing.B) {
			b.ReportAllocs()
			rounds := NewRounds(RoundsConfig{Strategy: shape.strategy})
			step := func(in Input) {
				if _, err := rounds.Step(simStart, in); err != nil {
					b.Fatal(err)
				}
			}
			for i := range int32(partitions) {
				step(Assigned{TopicPartition: kafka.TopicPartition{Topic: "t", Partition: i}, Epoch: 1})
			}
			if shape.entered {
				step(Entered{Generation: 1, MemberID: "m"})
				step(Offered{Offset{TopicPartition: kafka.TopicPartition{Topic: "t"}, Epoch: 1, Offset: 1, Finished: 1}})
				step(Answered{ID: 1, Results: map[kafka.TopicPartition]error{{Topic: "t"}: nil}})
			}
			offset := int64(1)
			for b.Loop() {
				offset++
				tp := kafka.TopicPartition{Topic: "t", Partition: int32(offset % partitions)}
				step(Offered{Offset{TopicPartition: tp, Epoch: 1, Offset: offset, Finished: uint64(offset)}})
			}
		})
	}
}
