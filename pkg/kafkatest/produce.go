package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/troupego/troupe/pkg/kafka"
)

// AnyPartition as the Partition of a record to produce lets its key choose, by the hash that Kafka's own producers use
// (murmur2): records of one key go to one partition. Records without a key go to all partitions in turn.
const AnyPartition int32 = -1

// Produce writes records to a topic and returns when the broker has all of them. Key, Value, Headers and TimestampMillis
// (0 = now) are taken from the records. Partition is where a record goes, [AnyPartition] leaves that to its key; the zero
// value is partition 0. The order of the records is kept inside each partition.
func (b *Broker) Produce(ctx context.Context, topic string, records ...kafka.Record) error {
	return b.use(func() error {
		client, err := b.clients.producer(topic)
		if err != nil {
			return err
		}
		return produce(ctx, client, topic, records)
	})
}

func produce(ctx context.Context, client *kgo.Client, topic string, records []kafka.Record) error {
	out := make([]*kgo.Record, len(records))
	for i := range records {
		out[i] = toKgo(topic, &records[i])
	}
	if err := client.ProduceSync(ctx, out...).FirstErr(); err != nil {
		return fmt.Errorf("kafkatest: produce to %q: %w", topic, err)
	}
	return nil
}

func toKgo(topic string, rec *kafka.Record) *kgo.Record {
	out := &kgo.Record{Topic: topic, Partition: rec.Partition, Key: rec.Key, Value: rec.Value}
	if rec.TimestampMillis != 0 {
		out.Timestamp = rec.Timestamp()
	}
	for key, value := range rec.Headers.All() {
		out.Headers = append(out.Headers, kgo.RecordHeader{Key: key, Value: value})
	}
	return out
}

// codec is kgo's codec of Kafka's name.
func codec(name string) kgo.CompressionCodec {
	switch name {
	case "gzip":
		return kgo.GzipCompression()
	case "snappy":
		return kgo.SnappyCompression()
	case "lz4":
		return kgo.Lz4Compression()
	case "zstd":
		return kgo.ZstdCompression()
	}
	return kgo.NoCompression()
}

// partitioner honors the record's partition and lets the key choose where it is AnyPartition.
func partitioner() kgo.Partitioner {
	return kgo.BasicConsistentPartitioner(func(topic string) func(*kgo.Record, int) int {
		byKey := kgo.StickyKeyPartitioner(nil).ForTopic(topic)
		next := 0
		return func(r *kgo.Record, partitions int) int {
			switch {
			case r.Partition >= 0:
				return int(r.Partition) // kgo refuses one that does not exist
			case r.Key != nil:
				return byKey.Partition(r, partitions)
			}
			next++
			return (next - 1) % partitions
		}
	})
}

// transactions numbers the transactional ids of this process.
var transactions atomic.Int64

// Transaction is an open transaction. It must be ended by Commit or Abort, and is used by one goroutine at a time.
type Transaction struct {
	broker *Broker
	client *kgo.Client
	ended  bool
}

// BeginTransaction begins a transaction of a new producer. Its records are visible to read_uncommitted consumers at once,
// and hold back read_committed ones until it ends.
func (b *Broker) BeginTransaction() (*Transaction, error) {
	tx := &Transaction{broker: b}
	err := b.use(func() error {
		id := "kafkatest-" + strconv.FormatInt(transactions.Add(1), 10)
		var err error
		if tx.client, err = b.clients.add(kgo.TransactionalID(id)); err != nil {
			return err
		}
		if err := tx.client.BeginTransaction(); err != nil {
			b.clients.remove(tx.client)
			return fmt.Errorf("kafkatest: begin transaction: %w", err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return tx, nil
}

// Produce writes records inside the transaction, as [Broker.Produce] does.
func (tx *Transaction) Produce(ctx context.Context, topic string, records ...kafka.Record) error {
	if tx.ended {
		return errors.New("kafkatest: transaction has ended")
	}
	return tx.broker.use(func() error { return produce(ctx, tx.client, topic, records) })
}

// Commit makes the records visible to all consumers.
func (tx *Transaction) Commit(ctx context.Context) error { return tx.end(ctx, kgo.TryCommit) }

// Abort makes the records invisible to read_committed consumers for good. Their offsets stay taken.
func (tx *Transaction) Abort(ctx context.Context) error { return tx.end(ctx, kgo.TryAbort) }

func (tx *Transaction) end(ctx context.Context, how kgo.TransactionEndTry) error {
	if tx.ended {
		return errors.New("kafkatest: transaction has ended")
	}
	tx.ended = true
	defer tx.broker.clients.remove(tx.client)
	return tx.broker.use(func() error {
		if err := tx.client.EndTransaction(ctx, how); err != nil {
			return fmt.Errorf("kafkatest: end transaction: %w", err)
		}
		return nil
	})
}

// ProduceTransaction writes records in a transaction of their own and commits it, or aborts it when commit is false.
func (b *Broker) ProduceTransaction(ctx context.Context, commit bool, topic string, records ...kafka.Record) error {
	tx, err := b.BeginTransaction()
	if err != nil {
		return err
	}
	if err := tx.Produce(ctx, topic, records...); err != nil {
		return errors.Join(err, tx.Abort(ctx))
	}
	if commit {
		return tx.Commit(ctx)
	}
	return tx.Abort(ctx)
}
