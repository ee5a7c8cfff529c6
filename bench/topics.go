package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	partitions = 12
	// loadBatchBytes is the size of the batches on the broker.
	loadBatchBytes = 64 << 10
	// maxBatchBytes bounds what may be asked for.
	maxBatchBytes = 64 << 20
	loadLinger    = 50 * time.Millisecond
	// loadLingerLarge is long enough that batches of a size that was asked for are full.
	loadLingerLarge = 10 * time.Second
	loadBuffered    = 200_000
)

// How many records a topic has when -records does not say.
const (
	recordsSmall = 1_200_000 // below 1 KB
	recordsLarge = 300_000
)

var codecs = []string{"none", "lz4", "zstd"}

// allTopics is what -topics all means.
const allTopics = "100:none,100:lz4,100:zstd,1024:none,1024:lz4,1024:zstd"

// parseTopics reads a list of SIZE:CODEC. records is how many each has, 0 for the default.
func parseTopics(list string, records int64) ([]topic, error) {
	if list == "all" {
		list = allTopics
	}
	var topics []topic
	for spec := range strings.SplitSeq(list, ",") {
		size, codec, _ := strings.Cut(spec, ":")
		n, err := strconv.Atoi(size)
		if err != nil || n < 1 || !slices.Contains(codecs, codec) {
			return nil, fmt.Errorf("topic %q: want SIZE:CODEC, with a codec of %q", spec, codecs)
		}
		t := topic{Name: fmt.Sprintf("bench-%d-%s", n, codec), Partitions: partitions, Records: records, Size: n, Codec: codec}
		if t.Records == 0 && n < 1000 {
			t.Records = recordsSmall
		} else if t.Records == 0 {
			t.Records = recordsLarge
		}
		topics = append(topics, t)
	}
	return topics, nil
}

// loaded is what a loader says about the topic it filled.
type loaded struct {
	// Ends are the end offsets by partition.
	Ends []int64 `json:"ends"`
}

// load creates the topic and fills it, the records going to the partitions in turn.
func load(ctx context.Context, t task) (*loaded, error) {
	batch, linger := int32(loadBatchBytes), loadLinger
	if t.Topic.Batch > 0 {
		batch, linger = t.Topic.Batch, loadLingerLarge
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(t.Brokers...), kgo.DefaultProduceTopic(t.Topic.Name),
		kgo.ProducerBatchCompression(codecOf(t.Topic.Codec)), kgo.ProducerBatchMaxBytes(batch),
		kgo.ProducerLinger(linger), kgo.MaxBufferedRecords(loadBuffered), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	inSync := "1" // a cluster's default may be more than the one replica
	configs := map[string]*string{"min.insync.replicas": &inSync}
	if _, err := admin.CreateTopic(ctx, t.Topic.Partitions, 1, configs, t.Topic.Name); err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		return nil, fmt.Errorf("create %s: %w", t.Topic.Name, err)
	}
	words := newText()
	keys := rand.New(rand.NewPCG(3, 4))
	failed := make(chan error, 1)
	for i := range t.Topic.Records {
		key := i
		if t.Topic.Keys > 0 {
			key = keys.Int64N(int64(t.Topic.Keys))
		}
		record := &kgo.Record{Partition: int32(i % int64(t.Topic.Partitions)), Key: strconv.AppendInt(nil, key, 10)}
		if t.Topic.Uniform {
			record.Value = uniform(t.Topic.Size)
		} else {
			record.Value = words.value(t.Topic.Size)
		}
		client.Produce(ctx, record, func(_ *kgo.Record, err error) {
			if err != nil {
				select {
				case failed <- err:
				default:
				}
			}
		})
	}
	if err := client.Flush(ctx); err != nil {
		return nil, err
	}
	select {
	case err := <-failed:
		return nil, err
	default:
	}
	return ends(ctx, admin, t.Topic)
}

// ends asks for the end offsets and checks that they add up to what was produced.
func ends(ctx context.Context, admin *kadm.Client, t topic) (*loaded, error) {
	offsets, err := admin.ListEndOffsets(ctx, t.Name)
	if err == nil {
		err = offsets.Error()
	}
	if err != nil {
		return nil, err
	}
	out := &loaded{Ends: make([]int64, t.Partitions)}
	sum := int64(0)
	offsets.Each(func(o kadm.ListedOffset) {
		out.Ends[o.Partition] = o.Offset
		sum += o.Offset
	})
	if sum != t.Records {
		return nil, fmt.Errorf("%s has %d records, %d were produced", t.Name, sum, t.Records)
	}
	return out, nil
}

func codecOf(name string) kgo.CompressionCodec {
	switch name {
	case "lz4":
		return kgo.Lz4Compression()
	case "zstd":
		return kgo.ZstdCompression()
	}
	return kgo.NoCompression()
}

// text makes semi-random text: mostly words of a fixed list, some random ones, always the same sequence.
type text struct {
	random *rand.Rand
	words  [256]string
}

func newText() *text {
	t := &text{random: rand.New(rand.NewPCG(1, 2))}
	for i := range t.words {
		word := make([]byte, 3+t.random.IntN(8))
		for j := range word {
			word[j] = byte('a' + t.random.IntN(26))
		}
		t.words[i] = string(word)
	}
	return t
}

func (t *text) value(size int) []byte {
	v := make([]byte, 0, size+16)
	for len(v) < size {
		if t.random.IntN(4) == 0 {
			v = strconv.AppendUint(v, t.random.Uint64(), 36)
		} else {
			v = append(v, t.words[t.random.IntN(len(t.words))]...)
		}
		v = append(v, ' ')
	}
	return v[:size]
}

// uniform is a value that compresses well.
func uniform(size int) []byte { return bytes.Repeat([]byte{'u'}, size) }

// checkCommitted asks the broker whether the group has committed the end of every partition.
func checkCommitted(ctx context.Context, brokers []string, group string, t topic, ends []int64) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		return err
	}
	defer client.Close()
	offsets, err := kadm.NewClient(client).FetchOffsets(ctx, group)
	if err != nil {
		return err
	}
	for p, end := range ends {
		if got, ok := offsets.Lookup(t.Name, int32(p)); end > 0 && (!ok || got.At != end) {
			return fmt.Errorf("group %s has committed %d of partition %d, its end is %d", group, got.At, p, end)
		}
	}
	return nil
}
