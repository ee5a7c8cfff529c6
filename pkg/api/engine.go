package api

import (
	"fmt"
	"strconv"
	"time"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// PartitionOrder handles the records of each partition one after the other, in offset order. It is the default.
func PartitionOrder() HandlerOption {
	return handlerOption(func(r *Registration) { r.order, r.workers = actors.OrderPartition, 0 })
}

// KeyOrder handles records of different keys at the same time, by that many workers over all partitions of the
// registration; those of one key of one partition one after the other, in offset order, whatever retries, restarts and
// rebalances happen. Workers go to partitions in turn, and to the records of a partition by their offset. Records without
// a key (nil, which is not the empty key) are one order class of their own in each partition, as if they had the same key;
// [OrderBy] can tell them apart.
//
// A record that fails stops its own key only: it comes again after a backoff, under a budget of its own ([Restart]). A
// batch handler gets, of each key it is given, the first records in order; when it fails, those keys come again together
// once, and after that one by one. workers is at least 1; a worker costs nothing
// while there is nothing to do.
func KeyOrder(workers int) HandlerOption { return parallel("KeyOrder", actors.OrderKey, workers) }

// Unordered handles any records of a partition at the same time, by that many workers over all partitions of the
// registration, begun in offset order. For the rest see [KeyOrder].
func Unordered(workers int) HandlerOption { return parallel("Unordered", actors.OrderNone, workers) }

func parallel(name string, order actors.Order, workers int) HandlerOption {
	return handlerOption(func(r *Registration) {
		r.order, r.workers = order, workers
		r.flawed = append(r.flawed, r.flaws(name, strconv.Itoa(workers), workers >= 1, "at least 1 worker")...)
	})
}

// OrderBy sets what orders records under [KeyOrder] in place of their key, such as a part of it or a header. It is called
// once for each record, must depend on nothing else, and must not keep or change the record. Nil is the class of records
// without a key. A panic in it stops the partition, with an event, as a batch does that cannot be read.
func OrderBy(key func(record *kafka.Record) []byte) HandlerOption {
	return handlerOption(func(r *Registration) {
		r.keyFunc = key
		r.flawed = append(r.flawed, r.flaws("OrderBy", "nil", key != nil, "a function")...)
	})
}

// MaxWait lets a batch that is not full wait for more records, for d at most from when its first record was there. Default
// 0: a batch never waits. Not negative.
func MaxWait(d time.Duration) BatchOption {
	return batchOption(func(r *Registration) {
		r.maxWait = d
		r.flawed = append(r.flawed, r.flaws("MaxWait", d.String(), d >= 0 && d <= maxDuration, fmt.Sprintf("from 0 to %v", maxDuration))...)
	})
}

// RecycleRecords gives the memory of records back as soon as they are acknowledged: key, value and headers are valid until
// then, and must not be kept beyond it; kafka.Record.Clone keeps one. It saves most of the garbage collector's work. With a
// program built with -race, and in kafkatest, what was given back is overwritten at once, so that misuse shows.
func RecycleRecords() HandlerOption {
	return handlerOption(func(r *Registration) { r.recycle = true })
}

// ResetTo sets where a partition of this registration starts that has no usable position, in place of Config.Reset.
func ResetTo(policy rebalance.ResetPolicy) HandlerOption {
	return handlerOption(func(r *Registration) { r.reset = &policy })
}

// flaws is a problem of an option's value, none when it is good.
func (r *Registration) flaws(option, value string, good bool, want string) []Problem {
	if good {
		return nil
	}
	return []Problem{r.problem(option, value, want)}
}
