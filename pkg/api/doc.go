// Package api is the front door of Troupe: it starts consumers of Kafka topics and hands their records to your handlers.
//
//	consumer, err := api.Spawn(ctx, api.Config{
//		Brokers: []string{"localhost:9092"},
//		GroupID: "billing",
//	},
//		api.Handle("orders", chargeOrder),
//		api.HandleBatch("clicks", storeClicks, api.MaxRecords(1000)),
//		api.WithLogger(logger),
//	)
//
// Without [WithLogger] and [WithObserver] a consumer says nothing.
//
// # What you say
//
// A [Config] is plain data. Every zero field means its documented default, and a default gives way where it would not fit
// to what you did set. After it come the parts, in any order: registrations, made by [Handle], [HandleBatch],
// [HandleAsync] and [HandleActor], which say who handles which topics, and options such as [WithLogger]. What belongs to one kind of handler
// only, such as [UseBatch], does not compile with another.
//
// Everything is checked before anything starts, and everything that is wrong is in one *[ConfigError]. [Resolve] only
// checks. What cannot be checked without a broker is never an error of [Spawn]:
//
//   - Brokers that are not there, and groups that refuse the member for a reason that may pass, are tried again for as long
//     as the consumer lives. They are events and in the log, and what [Consumer.WaitJoined] and [Consumer.Healthy] return.
//     What somebody has to mend first, such as a missing right, a wrong password or no assignor in common with the others, is tried
//     again slowly.
//   - A refusal that no further try can mend (a session timeout out of the brokers' bounds, an instance id that another
//     process uses, ...) ends the consumer: [Consumer.Done] is closed and [Consumer.Err] has it.
//   - Topics that do not exist keep nobody from joining. They are an event (event.TopicMissing), a warning in the log and in
//     Stats().MissingTopics, and are consumed when they appear. A [Pattern] follows the topics that match it.
//
// # What you get
//
//   - Records of one partition come in order, and never two at once, whatever restarts, retries and rebalances happen.
//   - A record whose handler returned nil is acknowledged; every other one is delivered again, by this member or by the
//     partition's next owner. At least once, that is: a handler has to bear a record twice.
//   - What is committed is always the first offset that is not acknowledged, so a crash loses nothing and repeats at most
//     Config.MaxInTransit records of each partition.
//   - A handler that fails or panics is restarted alone, with a backoff and within a budget; see [Restart]. Other partitions
//     do not notice. When the budget is spent the partition is paused and probed, or, with supervisor.StopAll, the consumer
//     ends. A slow or blocked handler does not cost the membership, unless Config.MaxProcessingTime says so.
//   - When a partition moves to another member, its handler may finish within Config.DrainTimeout, what it finished is
//     committed, and only then the partition is let go.
//
// # Without a group
//
// A consumer that is given [Assign] or [AssignTopic] in place of Config.GroupID reads those partitions on its own, each from an
// offset, the beginning, the end, or a time: to replay, to audit, to fill a cache. Handlers and all else are the same, but nothing
// is shared with others and nothing is committed; [WithPositions] says where to go on when that is kept elsewhere.
//
// # Control
//
// A running consumer is paused and resumed ([Consumer.Pause]), moved ([Consumer.Seek], [Consumer.Skip]), asked ([Consumer.Position],
// [Consumer.Lag], [Consumer.EndOffsets] and others), has its commits made by hand ([Consumer.Commit], [Consumer.CommitOffsets]), and
// its handlers changed ([Consumer.Subscribe], [Consumer.SetConcurrency]), from any goroutine. Where several calls belong together, a
// [Token] keeps everybody else from changing the same partitions; the [Callbacks] of a rebalance get one over theirs.
//
// # How it ends
//
// [Consumer.Close], the end of Spawn's context, and a failure for good all end in the same way: [Consumer.Done] is closed
// and [Consumer.Err] says why. Closing drains, commits and leaves, and is bounded in time whatever brokers and handlers do.
// Always call Close: it is what reports work that was not committed. [Run] does all of it.
//
// # Whose words these are
//
// Values are those of the packages they belong to, without aliases: records and offsets of pkg/kafka, reset policy and
// assignors of rebalance, restart policy and backoff of supervisor, events of pkg/event, and what a handler's actor and a
// closing consumer deal with (deliveries, errors, statistics) of actors.
package api
