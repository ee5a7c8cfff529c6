package integration

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"sync"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// truncatedLog answers fetches of one partition as a leader does that was elected uncleanly: its log agrees with the old one
// up to an offset and goes on with other records under a higher epoch. The embedded broker cannot shorten a log.
type truncatedLog struct {
	partition int32
	// oldEpoch is that of the records below agrees, newEpoch that of the others.
	oldEpoch, newEpoch int32
	agrees             int64

	mu sync.Mutex
	on bool
	// added is how many records the new leader has written; diverging counts the answers that said so.
	added     int64
	diverging int
}

// Values of records, by the log they are of.
func oldValue(offset int64) string { return fmt.Sprintf("old %d", offset) }
func newValue(offset int64) string { return fmt.Sprintf("new %d", offset) }

// elect puts the new leader in charge.
func (l *truncatedLog) elect() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.on = true
}

// add has the new leader write records.
func (l *truncatedLog) add(n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.added += n
}

func (l *truncatedLog) divergingAnswers() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.diverging
}

// serve answers the fetches of the partition, which must be alone on its node, from the election on.
func (l *truncatedLog) serve(b *embeddedBroker) {
	b.Cluster().ControlKey(kmsg.Fetch.Int16(), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		b.Cluster().KeepControl()
		req := kreq.(*kmsg.FetchRequest)
		l.mu.Lock()
		defer l.mu.Unlock()
		if !l.on || len(req.Topics) != 1 || len(req.Topics[0].Partitions) != 1 || req.Topics[0].Partitions[0].Partition != l.partition {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.FetchResponse)
		topic := kmsg.NewFetchResponseTopic()
		topic.Topic, topic.TopicID = req.Topics[0].Topic, req.Topics[0].TopicID
		topic.Partitions = append(topic.Partitions, l.answer(&req.Topics[0].Partitions[0]))
		resp.Topics = append(resp.Topics, topic)
		return resp, nil, true
	})
}

func (l *truncatedLog) answer(req *kmsg.FetchRequestTopicPartition) kmsg.FetchResponseTopicPartition {
	p := kmsg.NewFetchResponseTopicPartition()
	p.Partition = req.Partition
	end := l.agrees + l.added
	p.HighWatermark, p.LastStableOffset, p.LogStartOffset = end, end, 0
	switch {
	case req.CurrentLeaderEpoch < l.newEpoch:
		p.ErrorCode = kerr.FencedLeaderEpoch.Code
	case req.LastFetchedEpoch >= 0 && req.LastFetchedEpoch < l.newEpoch && req.FetchOffset > l.agrees:
		l.diverging++
		p.DivergingEpoch.Epoch, p.DivergingEpoch.EndOffset = l.oldEpoch, l.agrees
	case req.FetchOffset > end:
		p.ErrorCode = kerr.OffsetOutOfRange.Code
	case req.FetchOffset < l.agrees:
		p.RecordBatches = batchOf(req.FetchOffset, min(l.agrees, req.FetchOffset+10), l.oldEpoch, oldValue)
	case req.FetchOffset < end:
		p.RecordBatches = batchOf(req.FetchOffset, min(end, req.FetchOffset+10), l.newEpoch, newValue)
	}
	return p
}

// batchOf is a batch with the records from an offset up to another one.
func batchOf(from, to int64, epoch int32, value func(offset int64) string) []byte {
	const lengthEnd, checksum, attributes, records = 12, 17, 21, 61 // where in a batch
	var payload []byte
	for offset := from; offset < to; offset++ {
		r := kmsg.NewRecord()
		r.OffsetDelta, r.Key, r.Value = int32(offset-from), fmt.Appendf(nil, "key %d", offset%5), []byte(value(offset))
		body := r.AppendTo(nil)[1:] // after the length, which is 0
		payload = append(binary.AppendVarint(payload, int64(len(body))), body...)
	}
	batch := kmsg.RecordBatch{
		FirstOffset: from, Length: int32(records - lengthEnd + len(payload)), PartitionLeaderEpoch: epoch, Magic: 2,
		LastOffsetDelta: int32(to-from) - 1, ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, NumRecords: int32(to - from), Records: payload,
	}
	raw := batch.AppendTo(nil)
	binary.BigEndian.PutUint32(raw[checksum:], crc32.Checksum(raw[attributes:], crc32.MakeTable(crc32.Castagnoli)))
	return raw
}
