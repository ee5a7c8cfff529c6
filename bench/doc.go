// Command bench measures Troupe beside its peers, sarama's ConsumerGroup and franz-go, over the same topics of the same
// broker in the same run:
//
//	go run .                                             # embedded broker, 100 B records, three runs: less than a minute
//	go run . -broker embedded,kafka -topics all          # every size and codec, also on a real Kafka
//	go run . -mode latency,slow,idle -broker kafka       # the other questions
//
// # Processes
//
// The command only directs. Broker, loader and every single consumer run are processes of their own, so that neither the
// heap nor the garbage collection nor the CPU time of one is counted for another. They are this same program, started
// again with an environment variable and given their task as JSON on standard input; when that closes they exit, so
// that nothing outlives the command. A real Kafka comes from integration/launch, with its environment variables.
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
// do; sarama and franz-go assign by range, which is Troupe's assignor; and franz-go is polled for at most 500 records,
// Troupe's batch and the Java client's. The handler looks at the length of each value and counts it.
package main
