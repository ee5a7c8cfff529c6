// Package stacksim simulates the whole stack: real consumers with all their actors, connections that sarama opened, and the
// embedded broker on a network in memory, in one testing/synctest bubble for each history. It has tests only.
//
// A history is a seed. The seed fixes the plan: how many brokers, topics and members there are, what kind each member is of,
// and which faults come when (plan_test.go). It does not fix how goroutines interleave, so that a seed that failed once may
// pass when it is run again; a violation therefore prints its whole trace.
//
// While the faults come, a ledger notes every record inside of a handler, and a tap every offset on its way into the broker.
// Then everything is healed, and the group must be stable, have handled every record and committed every offset within a
// bounded time. At last check_test.go goes through what was noted. docs/simulation.md says what it demands.
//
//	make sim-stack N=10000 SEED=1
package stacksim
