// Package kafkatest helps to test code that consumes with Troupe: [RunHandler] feeds records to one handler without any
// broker, and [Broker] is a Kafka broker inside the process.
//
// The broker is franz-go's kfake: it speaks the Kafka protocol, keeps its log in memory, and knows groups, transactions
// and several nodes. [NewBroker] is for tests, [StartBroker] for programs. It listens on loopback ports:
//
//	broker := kafkatest.NewBroker(t, kafkatest.Topic("orders", 3))
//	err := broker.Produce(ctx, "orders", kafka.Record{Key: []byte("k"), Value: []byte("v")})
//	... consume from broker.Addrs() ...
//	committed, err := broker.Committed("billing")
//
// With [InMemory] it is on a network that exists only in memory, which is what a test inside a testing/synctest bubble
// needs, and the consumer needs api.WithDialer(broker.Dial). Such a test takes no time, however long the backoffs and
// timeouts in it are; the file synctest_example_test.go has this one with its imports:
//
//	func TestAnOrderThatFailsIsTriedAgain(t *testing.T) {
//		synctest.Test(t, func(t *testing.T) {
//			broker := kafkatest.NewBroker(t, kafkatest.InMemory(), kafkatest.Topic("orders", 1))
//			err := broker.Produce(t.Context(), "orders", kafka.Record{Value: []byte("book")})
//			if err != nil {
//				t.Fatal(err)
//			}
//			tries := 0
//			consumer, err := api.Spawn(t.Context(), api.Config{Brokers: broker.Addrs(), GroupID: "billing"},
//				api.Handle("orders", func(context.Context, *kafka.Record) error {
//					if tries++; tries < 10 {
//						return errors.New("the bank is closed")
//					}
//					return nil
//				}),
//				api.WithDialer(broker.Dial)) // what is in memory is reached in no other way
//			if err != nil {
//				t.Fatal(err)
//			}
//			time.Sleep(5 * time.Minute) // takes no time: the bubble's clock jumps when all are waiting
//			if err := consumer.Close(t.Context()); err != nil {
//				t.Fatal(err)
//			}
//			time.Sleep(time.Second) // lets the actor system's last timers end, as a bubble wants
//			committed, err := broker.Committed("billing")
//			if offset := committed[kafka.TopicPartition{Topic: "orders"}]; err != nil || offset != 1 || tries != 10 {
//				t.Errorf("offset %d is committed after %d tries (%v), want 1 after 10", offset, tries, err)
//			}
//		})
//	}
//
// A handler registered with api.RecycleRecords must not keep a record beyond its acknowledgment. [RunHandler] overwrites
// what is given back, so that a handler that does is seen to; a consumer of a [Broker] does the same with api.WithPoison,
// and in a test that runs with -race without it.
//
// Inside a bubble nothing may be shared with another one, zstd through sarama included. A test that looks for leaked
// goroutines ignores "github.com/rcrowley/go-metrics.(*meterArbiter).tick": sarama's meters tick in it until the process
// ends.
//
// Faults: [Broker.Freeze] stops every byte and closes nothing, as a machine that hangs does; [Broker.Cut] breaks all
// connections; [Broker.Cluster] gives the embedded cluster for all that kfake itself can do, such as failing requests or
// moving leaders.
//
// Limits: kfake is not Kafka in all things. When a member leaves a group while its SyncGroup waits, such as one that is closed
// in the middle of a rebalance, kfake has the next rebalance wait for its whole RebalanceTimeout, and begins that anew with each
// JoinGroup, so that several members that retry may wait for ever; Healthy says so. A short Config.RebalanceTimeout, or a pause
// between a change of the group and the next, is a test's way around it. It also puts no session on a member whose connection
// broke while its JoinGroup waited. Kafka does neither.
//
// What the methods of [Broker] do themselves (produce, create topics, read commits) goes past all that: it works while
// the broker is frozen and is not counted among its connections.
package kafkatest
