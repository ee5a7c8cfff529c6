// Package supervisor decides what happens when an actor's child fails, and does it. It knows nothing of Kafka.
//
// Users of Troupe set two of its types, in api.Config and api.Restart:
//
//   - [Policy] is how often a handler is restarted, and what happens when that budget is spent ([SpentAction]): its
//     partition is paused and probed ([PauseAndProbe]), or the consumer ends ([StopAll]). [NoRestarts] is a budget of none;
//     [DefaultPolicy] is what zero fields mean.
//   - [Backoff] is the wait between attempts, with [NoDelay] and [NoJitter]; [DefaultBackoff] is what zero fields mean.
//
// The rest is for those who work on Troupe. Three parts, from pure to shell:
//
//   - [Backoff] and [Budget] are arithmetic: how long to wait, how many restarts a window allows, and what comes when
//     they are spent. They read no clock and no global random source.
//   - [ChildSpec] says how a child is spawned and under which [Policy].
//   - [Supervisor] is embedded by the parent actor. It keeps the children by key, stops a child that failed, and
//     spawns its successor later.
//
// A restart here is always "stop, see it gone, spawn anew", never protoactor's Restart, Resume or Escalate. Those cross with
// a stop that is under way: a stopped child is brought back as a zombie nobody can stop, a suspended one stays suspended. A
// successor is spawned only after Terminated, the one sign that the predecessor's last handler has returned.
//
// What a restart loses: the message that failed and everything queued behind it. The state a child needs to go on is the
// parent's to give to the successor, when it sees [ChildRespawned].
package supervisor
