package kafkatest

import "github.com/troupego/troupe/pkg/kafka"

// What is read of a record that was given back, the same as on a real network.
const (
	poisonByte   = 0xDB
	poisonOffset = -0xDEAD
	poisonTopic  = "recycled"
)

// slabMemory is what the records of one slab lie in. They are copies of the run's, and what is overwritten are these copies'
// own bytes: a handler may have put bytes of its own into its records.
type slabMemory struct {
	records []kafka.Record
	bytes   [][]byte
}

// newSlabMemory takes over the records of a slab.
func newSlabMemory(records []kafka.Record) *slabMemory {
	m := &slabMemory{records: records}
	for i := range records {
		m.bytes = append(m.bytes, records[i].Key, records[i].Value)
		for _, value := range records[i].Headers.All() {
			m.bytes = append(m.bytes, value)
		}
	}
	return m
}

// Recycle implements the memory of an actors.Slab. Nothing is used again here, only overwritten.
func (m *slabMemory) Recycle() {
	for _, piece := range m.bytes {
		for i := range piece {
			piece[i] = poisonByte
		}
	}
	for i := range m.records {
		m.records[i] = kafka.Record{
			Topic: poisonTopic, Partition: -1, Offset: poisonOffset, TimestampMillis: poisonOffset, LeaderEpoch: kafka.NoLeaderEpoch,
		}
	}
}
