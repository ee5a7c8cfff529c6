package actors

import (
	"context"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// The messages a handler actor (api.HandleActor) receives, in this order: Assigning, Assigned, any number of Deliver, then Revoking
// and the end, or Lost and the end. After a restart the new actor gets Assigned again. All other messages that it sees are
// protoactor's own, the user's, or [TokenHanded]. An actor that is too busy to get to Revoking or Lost before its time is over
// hears it all the same, right before its Stopping; what else waits in its mailbox then is dropped.

// Assigning is the first message of an actor that is there before it is decided where its partition starts: it can prepare itself
// meanwhile. Nothing waits for it; what has to be waited for is for api.Callbacks. An actor that comes later, after a restart or
// an earlier owner's handler that returned late, begins with Assigned.
type Assigning struct {
	TopicPartition kafka.TopicPartition
	Epoch          kafka.AssignmentEpoch
}

// Assigned says that the partition is this actor's, and where it starts.
type Assigned struct {
	TopicPartition kafka.TopicPartition
	Epoch          kafka.AssignmentEpoch
	// Position is the offset of the first record that will come, unless the log has a hole there.
	Position int64
	// Restarts is how many actors this ownership has used up before.
	Restarts int
}

// Deliver brings records. The next Deliver of the partition comes when every record of this one is acknowledged.
type Deliver struct {
	// Delivery acknowledges the records, from any goroutine.
	*Delivery
}

// Revoking says that the partition is being given up: no further Deliver comes. What is acknowledged before Until is
// committed.
type Revoking struct {
	TopicPartition kafka.TopicPartition
	Until          time.Time
	// Closing is true when the whole consumer closes.
	Closing bool
}

// Lost says that the partition is gone; acknowledgments have no effect any more.
type Lost struct {
	TopicPartition kafka.TopicPartition
	Cause          error
}

// IgnoreDeadLetterLogging keeps protoactor from printing the message, and with it records, when it cannot be delivered.
func (*Assigning) IgnoreDeadLetterLogging() {}

// IgnoreDeadLetterLogging keeps protoactor from printing the message, and with it records, when it cannot be delivered.
func (*Assigned) IgnoreDeadLetterLogging() {}

// IgnoreDeadLetterLogging keeps protoactor from printing the message, and with it records, when it cannot be delivered.
func (*Deliver) IgnoreDeadLetterLogging() {}

// IgnoreDeadLetterLogging keeps protoactor from printing the message, and with it records, when it cannot be delivered.
func (*Revoking) IgnoreDeadLetterLogging() {}

// IgnoreDeadLetterLogging keeps protoactor from printing the message, and with it records, when it cannot be delivered.
func (*Lost) IgnoreDeadLetterLogging() {}

type deliveryKey struct{}

// DeliveryFrom returns the delivery that a handler's context belongs to, nil for another context. It tells the attempt and
// what is being worked on; a function handler needs not acknowledge through it.
func DeliveryFrom(ctx context.Context) *Delivery {
	d, _ := ctx.Value(deliveryKey{}).(*Delivery)
	return d
}
