package actors

import "github.com/troupego/troupe/pkg/kafka"

// RecordDelivery is one record in the hands of an asynchronous handler. Its methods are safe from any goroutine, may be
// called again, and also after the partition is gone or the consumer is closed.
type RecordDelivery struct {
	delivery *Delivery
	index    int
}

// Record returns the record. With api.RecycleRecords it is valid until Ack.
func (d *RecordDelivery) Record() *kafka.Record { return &d.delivery.records[d.index] }

// TopicPartition returns where the record comes from.
func (d *RecordDelivery) TopicPartition() kafka.TopicPartition { return d.delivery.tp }

// Epoch returns the assignment epoch the delivery belongs to.
func (d *RecordDelivery) Epoch() kafka.AssignmentEpoch { return d.delivery.epoch }

// Attempt returns how often the record was delivered under this ownership, this time included.
func (d *RecordDelivery) Attempt() int { return d.delivery.attempt }

// Ack acknowledges the record: it is finished and may be committed. Acknowledging again does nothing. It returns ErrStale,
// and counts, when the ownership or the delivery has ended.
func (d *RecordDelivery) Ack() error { return d.delivery.Ack(d.Record().Offset) }

// Nack says that the record failed with cause: it is delivered again, after a backoff, and counts against the restart
// budget. A record that has its verdict already keeps it.
func (d *RecordDelivery) Nack(cause error) error { return d.delivery.Nack(d.Record().Offset, cause) }
