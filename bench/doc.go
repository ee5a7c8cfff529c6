// Command bench measures Troupe beside its peers, sarama's ConsumerGroup, franz-go, Confluent's Parallel Consumer and Kafka's
// Java consumer, over the same topics of the same broker in the same run:
//
//	go run .                                             # embedded broker, 100 B records, three runs: less than a minute
//	go run . -broker embedded,kafka -topics all          # every size and codec, also on a real Kafka
//	go run . -mode latency,slow,idle -broker kafka       # the other questions
//	go run . -mode keyorder,noop-keyorder -broker kafka  # key order, beside the Parallel Consumer where Java is there
//	go run . -mode memory                                # what is held when no handler returns
//	go run . -mode rebalance,partitions -broker kafka    # members that come and go; thousands of partitions on three nodes
//	go run . -mode control                               # how long control calls take on a consumer at rest
//
// # Processes
//
// The command only directs. Broker, loader and every single consumer run are processes of their own, so that neither the
// heap nor the garbage collection nor the CPU time of one is counted for another. They are this same program, started
// again with an environment variable and given their task as JSON on standard input; when that closes they exit, so
// that nothing outlives the command. A real Kafka comes from integration/launch, with its environment variables.
//
// The Parallel Consumer is a Java program in java/, Kafka's Java consumer one in javaconsumer/. Each is built by Maven once, in
// the user's cache folder, and run as a process of its own too. Without Java or Maven a line that begins with SKIPPED says so.
// They take part on a real Kafka only.
//
// # What is measured
//
// A consumer joins a new group, reads the topic from its earliest offset to its end, commits, and leaves. Its CPU time
// (user and system) and its allocations are counted from before it starts until after it has left, its rate up to the
// last record. The command then asks the broker for the group's committed offsets: a run that did not commit the end of
// every partition fails. Consumers take turns, so that a noisy moment meets all of them, and medians are compared inside
// one run only. CPU seconds per million records are what survives a noisy machine; records per second are quoted beside.
//
// All consumers use their own defaults, with three exceptions: sarama fetches 1 MiB per partition at first, as the others
// do; sarama and franz-go assign by range, which makes no difference to a member that is alone; and franz-go is polled for at
// most 500 records, Troupe's batch and the Java client's. The handler looks at the length of each value and counts it.
//
// # Key order
//
// The records of one partition are in the log before a consumer starts. Each handler sleeps from 0 to 5 ms, always the same
// for the same offset, and the times at which it began and ended are kept. The ideal is computed from those times, since
// sleeps overshoot: the calls of the busiest key one after the other, or all calls spread evenly over the workers,
// whichever is longer. What is measured is the time from the first handler's start to the last one's end, and, beside it,
// when the end was committed: the Parallel Consumer commits every 5 s by default. "In order" is what the same calls take
// when planning costs nothing and a free worker takes the lowest offset that it may: a part of the distance to the ideal is
// the order of the records and not the engine's. A run fails in which two records of one key overlapped or swapped, one was
// handled twice, or the end was not committed.
//
// Neither window bounds anything in that mode: Troupe's MaxInTransit and the Parallel Consumer's messageBufferSize are the
// number of records. The Parallel Consumer handles up to 100,000 records before in the same process, without sleeping and
// as another group, so that its compiler is done.
//
// # Memory
//
// The records of 60 partitions are all alike and compress to nearly nothing. No handler returns. After ten seconds the
// growth of the live heap, after a collection, and that of the process's largest size are told: Troupe's under
// MemoryBudget, the peers' under their own defaults, which bound no such thing.
//
// # Rebalance
//
// A producer writes a record to each of 12 partitions every 10 ms. One member is alone, a second joins, a third joins, and the
// first, which leads the group by then, leaves. All members of a run are in one process, so that one clock times them, and
// handlers only note what they get. All consumers assign by cooperative-sticky and have the same heartbeat interval; what is
// waited before a step is random, and the same for all consumers of a run.
//
// The span after each step is compared with an equally long one before it, over the partitions that stay with their member:
// the longest time between two deliveries of one partition, in either. Of the partitions that move it is the longest time
// from the last delivery at one member to the first at the next. A run fails in which a record came to nobody although a later
// one of its partition did. "Repeated" are records that came twice, "moved before" partitions that moved when nothing should.
//
// # Partitions
//
// A lone member reads a topic of 3,000 partitions, ten records each, on a cluster of three nodes, in a process and a group of
// its own. It is told when the first record came, when every partition had brought one, and how long it took to commit, give all
// up and leave. OffsetFetch and ListOffsets are counted where the client writes them, at the broker that got most of them.
//
// # Control
//
// A consumer has read everything and rests. Then each of its control calls on one partition is made 10,000 times by one goroutine,
// one after the other, and each is timed by itself. Pause of the peers sets a mark, and what they have fetched may still be given out
// or be thrown away and fetched again; Troupe's returns when no handler of the partition runs and none will. Resume stands beside Pause.
// A token that is asked for is returned in the same time; what its return takes the next one waits for.
package main
