// Package sim runs whole consumer groups in virtual time, in one goroutine, and checks the guarantees after every step.
//
// A [World] has a few member processes, one group coordinator, and a log per partition. The processes are built of the same
// pure machines as production: rebalance.Member, Partition, Link and Pulse, commit.Rounds with its strategies, Tracker, Window and
// OffsetMap, capability.Key, buffer.Surplus and Lanes. What lies between them, the shells in actors/, is modeled here message by message: every
// actor has a mailbox, and the scheduler chooses whose turn it is. The coordinator and the log are models written after
// Kafka's own rules, not after what the machines expect.
//
//	Script      what happens: sizes, timings, a seed, and a list of faults. A script replays exactly.
//	World       one run of a script: queue, processes, coordinator, logs
//	checker     what must hold; it knows the truth that no process knows
//	Shrink      makes a failing script small
//	Mutant      a deliberate fault in the modeled shell, to prove that the checks see it
//
// Authority: the checker judges by what the coordinator stored and by what handlers did, never by what a machine says of
// itself. A violation names the guarantee, and the script with its seed is the proof.
//
// Nothing here reads a clock: the figures of a run are measured by the command (troupesim).
package sim
