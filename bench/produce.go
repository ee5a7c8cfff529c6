package main

import (
	"context"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// stampedSize is the size of the records of the latency mode.
const stampedSize = 100

// produce writes Warmup+Count records at Rate, Burst at a time, to the partitions in turn, each stamped with its number and
// its time.
func produce(ctx context.Context, t task) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(t.Brokers...), kgo.DefaultProduceTopic(t.Topic.Name), kgo.ProducerLinger(0),
		kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite(), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return err
	}
	defer client.Close()
	failed := make(chan error, 1)
	next, burst := time.Now(), max(1, t.Burst)
	for i := range t.Warmup + t.Count {
		record := &kgo.Record{Partition: int32(i % int(t.Topic.Partitions)), Value: stamp(i, time.Now())}
		client.Produce(ctx, record, func(_ *kgo.Record, err error) {
			if err != nil {
				select {
				case failed <- err:
				default:
				}
			}
		})
		select {
		case err := <-failed:
			return err
		default:
		}
		if (i+1)%burst == 0 {
			next = next.Add(time.Second * time.Duration(burst) / time.Duration(t.Rate))
			time.Sleep(time.Until(next))
		}
	}
	return client.Flush(ctx)
}

// stamp returns a value that says which record it is and when it was made.
func stamp(number int, at time.Time) []byte {
	v := strconv.AppendInt(make([]byte, 0, stampedSize), int64(number), 10)
	v = append(v, ' ')
	v = strconv.AppendInt(v, at.UnixMicro(), 10)
	v = append(v, ' ')
	return v[:stampedSize]
}

// readStamp is the reverse of stamp; micros is microseconds since the Unix epoch.
func readStamp(value []byte) (number int, micros int64) {
	fields := [2]int64{}
	field := 0
	for _, c := range value {
		if c < '0' || c > '9' {
			if field++; field == len(fields) {
				break
			}
			continue
		}
		fields[field] = fields[field]*10 + int64(c-'0')
	}
	return int(fields[0]), fields[1]
}
