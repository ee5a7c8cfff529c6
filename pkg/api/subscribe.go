package api

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/troupego/troupe/actors"
)

// noRegistration is what is wrong without a handler.
var noRegistration = Problem{Field: "registrations", Want: "at least one Handle, HandleBatch, HandleAsync or HandleActor"}

// Subscribe adds handlers to a running consumer, as they are given to [Spawn]: of any kind, for names or a [Pattern], with all
// their options. It returns when the member has taken them over: the rebalance has begun, or begins after the one that is
// under way; topics of a pattern are looked for at once and joined when they are found. It does not wait for the rebalance to
// end. Partitions of other topics are handled on, under rebalance.CooperativeSticky without a pause. (Java:
// KafkaConsumer.subscribe, which replaces the subscription as a whole; here handlers come and go one by one.)
//
// The rules between handlers are Spawn's. A topic that is handled by its name, or a pattern that is there already, is an error:
// [Consumer.Unsubscribe] it first, it may be subscribed again at once. A name comes before a pattern: partitions that a pattern
// had are handed over, drained and committed, in a rebalance. What a pattern chooses that an older pattern chooses as well stays
// with the older one.
//
// The error is a *[ConfigError] with everything that is wrong at once, and then nothing was changed; parts that are for Spawn
// alone ([WithCallbacks], [Assign] and such) are refused by their names. Beside [Assign] it is actors.ErrNoGroup. When the
// consumer closes it is actors.ErrClosing, when it has ended Err, and an error wrapping that of ctx when ctx ends first, in
// which case it may be carried out all the same. It may be called in every state of the member, also inside of a handler or a
// callback; a subscription outlives whatever fails inside of the consumer.
func (c *Consumer) Subscribe(ctx context.Context, parts ...Part) error {
	if c.config.GroupID == "" {
		return actors.ErrNoGroup
	}
	given := c.config
	config, sound := given.withDefaults(), given.sound()
	registrations, problems := onlyRegistrations(parts)
	var added []actors.Registration
	var flaws [][]Problem // those of middleware, which is called once
	for i := range registrations {
		var found []Problem
		added = append(added, registrations[i].resolve(&config, func(p Problem) { found = append(found, p) }))
		flaws = append(flaws, found)
	}
	return c.tree.ChangeSubscription(ctx, func(current []actors.Registration) (actors.SubscriptionChange, error) {
		seen := make(map[string]string)
		for i := range current {
			for _, name := range namesOf(&current[i]) {
				seen[name] = textOf(&current[i])
			}
		}
		var all []Problem
		for i := range registrations {
			all = append(append(all, registrations[i].check(&sound, seen)...), flaws[i]...)
		}
		if all = append(all, problems...); len(all) > 0 {
			return actors.SubscriptionChange{}, &ConfigError{Problems: all}
		}
		return actors.SubscriptionChange{Added: added}, nil
	})
}

// onlyRegistrations returns the registrations among parts, and a problem for each other one.
func onlyRegistrations(parts []Part) ([]Registration, []Problem) {
	var registrations []Registration
	var problems []Problem
	for i, part := range parts {
		switch part := part.(type) {
		case nil:
			problems = append(problems, Problem{Field: fmt.Sprintf("parts[%d]", i), Value: "nil", Want: "a registration"})
		case Registration:
			registrations = append(registrations, part)
		default:
			problems = append(problems, Problem{Field: fmt.Sprint(part), Want: "only registrations here: it is given to Spawn"})
		}
	}
	if len(parts) == 0 {
		problems = append(problems, noRegistration)
	}
	return registrations, problems
}

// namesOf returns what a registration is let go by: its topics, or its pattern's text.
func namesOf(r *actors.Registration) []string {
	if len(r.Allow) > 0 {
		return []string{Pattern{allow: r.Allow, deny: r.Deny}.String()}
	}
	return r.Topics
}

// textOf returns about how a registration reads in the program.
func textOf(r *actors.Registration) string {
	read := Registration{kind: "Handle", topics: r.Topics}
	switch {
	case r.Batch != nil:
		read.kind = "HandleBatch"
	case r.Async != nil:
		read.kind = "HandleAsync"
	case r.Actor != nil:
		read.kind = "HandleActor"
	}
	if len(r.Allow) > 0 {
		read.pattern = &Pattern{allow: r.Allow, deny: r.Deny}
	}
	return read.String()
}

// Unsubscribe lets topics go, all of them when none is named: their partitions are drained within Config.DrainTimeout,
// committed and given up by a rebalance, and their handlers are forgotten. It returns as [Consumer.Subscribe] does, when the
// rebalance has begun or begins after the one under way; until a partition is revoked its handler goes on. They may be subscribed again at once, with another handler. (Java:
// KafkaConsumer.unsubscribe.)
//
// A topic goes by its name; of a registration for several the others stay, and are handled on. A [Pattern] goes as a whole, by
// its text: Pattern.String(), such as Matching("orders.*"). A topic that only a pattern chooses cannot go alone; use
// Pattern.Except and subscribe anew. A name that goes and that a pattern chooses is that pattern's from then on. Whatever is
// not subscribed to by its name or text is a *[ConfigError] that names it, all of them at once, and then nothing was changed.
//
// Without a topic the consumer stays in the group, as a member that is given nothing, until something is subscribed to again;
// brokers and other clients' assignors know such members. (In Java unsubscribe leaves the group.) To leave it, close the
// consumer. A pause of partitions holds beyond Unsubscribe, as it does whoever owns them; see [Consumer.Pause].
func (c *Consumer) Unsubscribe(ctx context.Context, topics ...string) error {
	return c.tree.ChangeSubscription(ctx, func(current []actors.Registration) (actors.SubscriptionChange, error) {
		var change actors.SubscriptionChange
		known := make(map[string]int)
		for i := range current {
			for _, name := range namesOf(&current[i]) {
				known[name] = i
			}
		}
		if len(topics) == 0 {
			for i := range current {
				change.Patterns = append(change.Patterns, i)
			}
			return change, nil
		}
		var problems []Problem
		for _, name := range topics {
			switch i, ok := known[name]; {
			case !ok:
				problems = append(problems, Problem{Field: "Unsubscribe", Value: shortQuote(name), Want: subscribedWant(current)})
			case len(current[i].Allow) > 0:
				change.Patterns = append(change.Patterns, i)
			default:
				change.Topics = append(change.Topics, name)
			}
		}
		if len(problems) > 0 {
			return actors.SubscriptionChange{}, &ConfigError{Problems: problems}
		}
		return change, nil
	})
}

// subscribedWant says what can be unsubscribed from.
func subscribedWant(current []actors.Registration) string {
	const most = 5
	var names []string
	for i := range current {
		names = append(names, namesOf(&current[i])...)
	}
	if len(names) == 0 {
		return "nothing: there is no handler"
	}
	slices.Sort(names)
	want := "a topic, or the text of a pattern, that was subscribed to: "
	for i, name := range names[:min(len(names), most)] {
		if i > 0 {
			want += ", "
		}
		want += shortQuote(name)
	}
	if more := len(names) - most; more > 0 {
		want += " and " + strconv.Itoa(more) + " more"
	}
	return want
}

// SetConcurrency changes Config.Concurrency of a running consumer: how many handlers may run at once, 0 for no limit; a negative
// number is a *[ConfigError]. Raised, it lets those that wait begin at once, first come, first served; lowered, it ends nothing
// and lets nobody begin until enough calls have returned. It holds for as long as the consumer lives, and
// Stats().Concurrency shows it. The workers of [KeyOrder] and [Unordered] are a bound of their own for each registration and do
// not change: a call, or a delivery to an actor, needs a worker of its registration and a place of the member. It works in every
// state of the member and beside [Assign]; the errors of closing and of ctx are those of [Consumer.Subscribe].
func (c *Consumer) SetConcurrency(ctx context.Context, n int) error {
	if problems := broken([]rule{concurrencyRule(n)}); len(problems) > 0 {
		return &ConfigError{Problems: problems}
	}
	return c.tree.SetConcurrency(ctx, n)
}
