//go:build unix

package integration

import (
	"context"
	"encoding/binary"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// chaosKeys is how many keys the records of a partition have.
const chaosKeys = 4

// noKey stands for a record that was not acknowledged.
const noKey = -1

// chaosProducer produces with acks=all and idempotence, by two clients, whatever happens to the brokers.
type chaosProducer struct {
	mu sync.Mutex
	// keys are those of the acknowledged records, by partition and offset.
	keys   [][]int8
	failed int
	// stop returns when every record is acknowledged or has failed.
	stop func()
}

func produceChaos(t *testing.T, s *stage) *chaosProducer {
	t.Helper()
	// Bursts, so that at any time many handlers are at work and have more to come.
	const clients, burst, every = 2, 10, 400 * time.Millisecond
	p := &chaosProducer{keys: make([][]int8, s.partitions)}
	ctx, cancel := context.WithCancel(context.Background())
	var producing sync.WaitGroup
	for n := range clients {
		client, err := kgo.NewClient(append(impatient(), kgo.SeedBrokers(s.brokers...), kgo.DefaultProduceTopic(s.topic),
			kgo.RequiredAcks(kgo.AllISRAcks()), kgo.MaxBufferedRecords(1<<20), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
		require.NoError(t, err)
		producing.Go(func() {
			defer client.Close()
			ticker := time.NewTicker(every)
			defer ticker.Stop()
			for ctx.Err() == nil {
				for i := range burst {
					for partition := int32(n); partition < s.partitions; partition += clients {
						key := []byte{'k', byte('0' + i%chaosKeys)}
						client.Produce(context.Background(), &kgo.Record{Partition: partition, Key: key, Value: []byte("chaos")}, p.note)
					}
				}
				select {
				case <-ticker.C:
				case <-ctx.Done():
				}
			}
			flush, end := context.WithTimeout(context.Background(), nodeLimit)
			defer end()
			assert.NoError(t, client.Flush(flush), "the last records are acknowledged")
		})
	}
	p.stop = func() {
		cancel()
		producing.Wait()
	}
	t.Cleanup(p.stop)
	return p
}

// note writes down what became of a record.
func (p *chaosProducer) note(record *kgo.Record, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.failed++
		return
	}
	keys := p.keys[record.Partition]
	for int64(len(keys)) <= record.Offset {
		keys = append(keys, noKey)
	}
	keys[record.Offset] = int8(record.Key[1] - '0')
	p.keys[record.Partition] = keys
}

// ends returns the end of what is acknowledged, by partition.
func (p *chaosProducer) ends() []int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	ends := make([]int64, len(p.keys))
	for partition, keys := range p.keys {
		ends[partition] = int64(len(keys))
	}
	return ends
}

// blocked reports whether nothing beyond these ends was acknowledged yet in a partition.
func (p *chaosProducer) blocked(ends []int64) bool {
	for partition, now := range p.ends() {
		if now <= ends[partition] {
			return true
		}
	}
	return false
}

// commitLog is what the brokers stored for a group, read from where they store it, in that order. So it has the commits
// of all members on all coordinators, with the coordinator's time.
type commitLog struct {
	mu sync.Mutex
	// commits are by partition.
	commits [][]stored
	stop    func()
}

// stored is one commit.
type stored struct {
	offset int64
	millis int64 // since 1970, rounded down
}

// readCommits reads all commits of a stage's group until the end of the test.
func readCommits(t *testing.T, s *stage) *commitLog {
	t.Helper()
	const topic = "__consumer_offsets" // which has one partition here
	client, err := kgo.NewClient(append(impatient(), kgo.SeedBrokers(s.brokers...), kgo.FetchMaxWait(500*time.Millisecond),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}))...)
	require.NoError(t, err)
	l := &commitLog{commits: make([][]stored, s.partitions)}
	ctx, cancel := context.WithCancel(context.Background())
	var reading sync.WaitGroup
	reading.Go(func() {
		for ctx.Err() == nil {
			client.PollFetches(ctx).EachRecord(func(r *kgo.Record) { l.add(t, s, r) })
		}
	})
	l.stop = sync.OnceFunc(func() {
		cancel()
		reading.Wait()
		client.Close()
	})
	t.Cleanup(l.stop)
	return l
}

// add notes a record of the offsets topic, if it is a commit of the stage's.
func (l *commitLog) add(t *testing.T, s *stage, r *kgo.Record) {
	const newestKey = 1 // of a commit; others are about the group
	key, value := kmsg.NewOffsetCommitKey(), kmsg.NewOffsetCommitValue()
	if len(r.Key) < 2 || binary.BigEndian.Uint16(r.Key) > newestKey || !assert.NoError(t, key.ReadFrom(r.Key)) {
		return
	}
	if key.Group != s.group || key.Topic != s.topic || r.Value == nil || !assert.NoError(t, value.ReadFrom(r.Value)) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.commits[key.Partition] = append(l.commits[key.Partition], stored{value.Offset, value.CommitTimestamp})
}

// latest returns the last commit of each partition, 0 for none.
func (l *commitLog) latest() []int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	latest := make([]int64, len(l.commits))
	for partition, commits := range l.commits {
		if n := len(commits); n > 0 {
			latest[partition] = commits[n-1].offset
		}
	}
	return latest
}

// of returns all commits of a partition.
func (l *commitLog) of(partition int32) []stored {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.commits[partition])
}
