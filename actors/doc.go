// Package actors is the shells of Troupe: one consumer-group member is one tree of protoactor actors.
//
// Users start a consumer with pkg/api and meet this package where they deal with a running one:
//
//   - a handler's context: [DeliveryFrom] gives its [Delivery], with the attempt; [ErrClosing] and [ErrHandlerRestarted] are
//     causes of its end.
//   - a handler actor: [Assigned], [Deliver], [Revoking] and [Lost] are the messages it gets, [Delivery] acknowledges;
//     [ErrStale] and [ErrNotInDelivery] are what acknowledging returns.
//   - a running consumer: [Stats], [PartitionStats], and [ErrNotHealthy], which Healthy wraps.
//   - its end: [HandlerError] for a handler that spent its restart budget under supervisor.StopAll; [CloseError], with
//     [UncommittedPartition] and [RunningHandler], for what Close could not finish.
//
// The rest is for those who work on Troupe.
//
//	root                 respawns the group; owns Done and Err
//	└─ group             runs the member and link machines, mints the key, routes partitions
//	   ├─ heartbeat      keeps the session alive, on a connection and a clock of its own
//	   ├─ committer      sends commit rounds, reads committed offsets, holds the key on loan
//	   ├─ fetcher-B      reads from one broker
//	   └─ partition-T-P-E
//	      └─ handler     the user's code
//
// An actor decodes a message, steps a machine of a pure package (rebalance, commit, internal/buffer), and runs the effects in
// order. What it decides itself is only whom to tell. None blocks in Receive: network calls and user code run in a worker
// goroutine of exactly one actor and come back as a message. Everything that crosses an asynchronous border carries its
// epoch or generation, and what is stale is dropped and counted.
//
// Authority. The group alone grants and takes partitions; the committer alone commits, and only with the key; a partition
// alone knows its position. The gates ([gates]) alone decide whether a handler may start: they outlive every actor, because
// user code may.
//
// Failure. A parent decides on its children through supervisor.Supervisor: a failed child is stopped, and a successor is
// spawned after its backoff and told what it needs. Offsets are the truth: a partition that starts anew begins at what is
// committed, whatever was in a mailbox.
package actors
