// Package kafkatest runs a Kafka broker inside the test process, for tests of code that consumes with Troupe.
//
// The broker is franz-go's kfake: it speaks the Kafka protocol, keeps its log in memory, and knows groups, transactions
// and several nodes. It listens on loopback ports, or with [InMemory] on a network that exists only in memory, which is
// what a test inside a testing/synctest bubble needs:
//
//	broker := kafkatest.NewBroker(t, kafkatest.Topic("orders", 3))
//	err := broker.Produce(ctx, "orders", kafka.Record{Key: []byte("k"), Value: []byte("v")})
//	... consume from broker.Addrs() ...
//	committed, err := broker.Committed("billing")
//
// Inside a bubble nothing may be shared with another one, zstd through sarama included. A test that looks for leaked
// goroutines ignores "github.com/rcrowley/go-metrics.(*meterArbiter).tick": sarama's meters tick in it until the process
// ends.
//
// Faults: [Broker.Freeze] stops every byte and closes nothing, as a machine that hangs does; [Broker.Cut] breaks all
// connections; [Broker.Cluster] gives the embedded cluster for all that kfake itself can do, such as failing requests or
// moving leaders.
//
// What the methods of [Broker] do themselves (produce, create topics, read commits) goes past all that: it works while
// the broker is frozen and is not counted among its connections.
package kafkatest
