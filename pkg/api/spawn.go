package api

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/IBM/sarama"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/internal/wire"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/rebalance"
	"github.com/troupego/troupe/supervisor"
)

// Spawn starts a consumer: one member of the group, or a reader of what it is assigned ([Assign], [ReadRange]), as one tree of actors. It
// returns at once, without waiting for a broker; Consumer.WaitJoined waits. The error is a *[ConfigError] with everything that
// is wrong at once, and then nothing was started. Brokers that are not there are tried for as long as the consumer lives; a
// refusal by the group that no further try can mend ends it, see [Consumer.WaitJoined].
//
// When ctx ends the consumer drains, commits and leaves, as by Consumer.Close within Config.CloseTimeout. Handlers'
// contexts do not descend from ctx.
func Spawn(ctx context.Context, config Config, parts ...Part) (*Consumer, error) {
	p := gather(parts)
	settings, network, err := plan(config, p)
	if err != nil {
		return nil, err
	}
	c := &Consumer{closeTimeout: settings.CloseTimeout, config: config}
	if p.observer != nil {
		c.observer = newObserver(p.observer, p.buffer, p.logger)
	}
	watched, unwatch := context.WithCancel(ctx)
	c.tree = actors.SpawnTree(settings, actors.Deps{
		Network: network, Logger: p.logger, System: p.system,
		Observe: func(e event.Event) {
			if c.observer != nil {
				c.observer.offer(e)
			}
			if _, ended := e.(event.Closed); ended {
				unwatch()
			}
		},
	})
	// Also runs by unwatch, when the tree has ended: then there is nothing left to close.
	context.AfterFunc(watched, func() { c.tree.StartClose(time.Now().Add(settings.CloseTimeout)) })
	return c, nil
}

// Run spawns a consumer, waits until it ends or ctx does, and closes it. It returns nil when ctx ended and everything was
// committed in time, or all ranges were read ([ReadRange]); else the configuration error, why the consumer ended, or what Close could not finish
// (*actors.CloseError).
func Run(ctx context.Context, config Config, parts ...Part) error {
	consumer, err := Spawn(ctx, config, parts...)
	if err != nil {
		return err
	}
	select {
	case <-consumer.Done():
	case <-ctx.Done():
	}
	return consumer.Close(context.WithoutCancel(ctx))
}

// Resolve checks what would be given to [Spawn] and returns what the consumer would run on, with every default filled in.
// Nothing is started and nobody is asked. It serves a program's own test of its configuration, and tools.
func Resolve(config Config, parts ...Part) (actors.Settings, error) {
	settings, _, err := plan(config, gather(parts))
	return settings, err
}

// plan checks everything and makes the tree's settings and its network, which does not dial yet.
func plan(given Config, p *parts) (actors.Settings, *wire.Network, error) {
	var problems []Problem
	var standalone *rebalance.StandaloneConfig
	if p.assigned != nil {
		var more []Problem
		given, problems = given.ungrouped()
		standalone, more = p.assigned.standalone(p)
		problems = append(problems, more...)
	}
	c, sound := given.withDefaults(), given.sound()
	problems = append(problems, checkConfig(&given, &c, &sound, standalone == nil)...)
	if len(p.registrations) == 0 {
		problems = append(problems, noRegistration)
	}
	report := func(found Problem) { problems = append(problems, found) }
	settings := c.settings()
	seen := make(map[string]string)
	for i := range p.registrations {
		r := &p.registrations[i]
		problems = append(problems, r.check(&sound, seen)...)
		settings.Registrations = append(settings.Registrations, r.resolve(&c, report))
	}
	settings.Positions, settings.Callbacks, settings.Standalone = p.positions, p.callbacks, standalone
	problems = append(problems, p.problems...)
	network, found := connect(&c, p)
	if problems = append(problems, found...); len(problems) > 0 {
		return actors.Settings{}, nil, &ConfigError{Problems: problems}
	}
	return settings, network, nil
}

// settings returns what the tree takes from c, whose defaults are filled in.
func (c *Config) settings() actors.Settings {
	tree := supervisor.DefaultPolicy()
	tree.OnSpent = supervisor.StopAll // a consumer that cannot run must end and say so, not stand still
	return actors.Settings{
		GroupID: c.GroupID, GroupInstanceID: c.GroupInstanceID, ClientID: c.ClientID, Rack: c.Rack,
		SessionTimeout: c.SessionTimeout, HeartbeatInterval: c.HeartbeatInterval, RebalanceTimeout: c.RebalanceTimeout,
		DrainTimeout: c.DrainTimeout, CloseTimeout: c.CloseTimeout, TokenTimeout: c.TokenTimeout, MaxProcessingTime: c.MaxProcessingTime,
		Assignors: slices.Clone(c.Assignors), Isolation: c.IsolationLevel.kafka(),
		Strategy: c.CommitStrategy, OffsetMap: c.OffsetMap, BlockedAfter: c.BlockedAfter, StuckAfter: c.StuckAfter,
		MaxInTransit: c.MaxInTransit, ResumeBelow: c.ResumeBelow, MemoryBudget: c.MemoryBudget,
		FetchMinBytes: c.FetchMinBytes, FetchMaxBytes: c.FetchMaxBytes, PartitionMaxBytes: c.PartitionMaxBytes,
		MaxBatchBytes: c.MaxBatchBytes, FetchMaxWait: c.FetchMaxWait,
		MetadataMaxAge: c.MetadataMaxAge, Backoff: c.Backoff, TreeRestart: tree, Concurrency: c.Concurrency,
		Seed: rand.Uint64(),
	}
}

// resolve returns what the tree takes from the registration.
func (r *Registration) resolve(c *Config, report func(Problem)) actors.Registration {
	out := actors.Registration{
		Topics: r.topics, Async: actors.AsyncHandler(r.async), Actor: r.actor, Restart: c.Restart, Reset: c.Reset,
		MaxRecords: min(defaultMaxRecords, c.MaxInTransit), MaxWait: r.maxWait, Recycle: r.recycle,
		Order: r.order, Workers: r.workers, KeyFunc: actors.KeyFunc(r.keyFunc),
	}
	if r.pattern != nil {
		out.Allow, out.Deny = slices.Clone(r.pattern.allow), slices.Clone(r.pattern.deny)
	}
	out.Record, out.Batch = r.wrapped(report)
	if r.maxRecords != nil {
		out.MaxRecords = *r.maxRecords
	}
	if r.reset != nil {
		out.Reset = *r.reset
	}
	if r.restart != nil {
		out.Restart = r.restart.WithDefaults()
	}
	return out
}

// minResponseBytes is wire's default cap on one answer; more is needed only for fetches set to more.
const minResponseBytes = 128 << 20

// maxRecycledBytes bounds what is kept for recycling beside the memory budget.
const maxRecycledBytes = 64 << 20

// connect makes the network and returns what the sarama hook set wrong. All else that wire checks is checked already, and
// must not be blamed on the hook.
func connect(c *Config, p *parts) (*wire.Network, []Problem) {
	own := sarama.NewConfig()
	own.ClientID = c.ClientID
	if p.sarama != nil {
		if value, panicked := panicOf(func() { p.sarama(own) }); panicked {
			return nil, []Problem{{Field: "WithSaramaConfig", Value: value, Want: "a function that returns"}}
		}
	}
	network, err := wire.New(wire.Config{
		Brokers: c.Brokers, ClientID: c.ClientID, ConnectTimeout: max(c.ConnectTimeout, 0), RequestTimeout: c.RequestTimeout,
		RebalanceTimeout: c.RebalanceTimeout, SessionTimeout: c.SessionTimeout, Sarama: own, Dial: p.dial,
		MaxBatchBytes:    c.MaxBatchBytes,
		MaxRecycledBytes: max(int(min(c.MemoryBudget/4, maxRecycledBytes)), 1), PoisonRecycled: p.poison,
		MaxResponseBytes: min(max(minResponseBytes, 2*max(c.FetchMaxBytes, c.MaxBatchBytes)), math.MaxInt32),
	})
	var problems []Problem
	for _, err := range flatten(err) {
		var wrong *wire.ConfigError
		if errors.As(err, &wrong) && strings.HasPrefix(wrong.Field, "Sarama") {
			problems = append(problems, saramaProblem(wrong, own))
		}
	}
	return network, problems
}

// saramaProblem says what one of sarama's settings should be, where wire says what is wrong with it.
func saramaProblem(wrong *wire.ConfigError, own *sarama.Config) Problem {
	switch wrong.Field {
	case "Sarama.Net.SASL.Version":
		return Problem{Field: wrong.Field, Value: fmt.Sprint(own.Net.SASL.Version), Want: "1 (sarama.SASLHandshakeV1)"}
	case "Sarama.Net.Proxy.Dialer":
		return Problem{Field: wrong.Field, Value: "nil", Want: "a dialer, since Net.Proxy.Enable is true"}
	}
	reason := wrong.Reason
	if inner, ok := strings.CutPrefix(reason, "kafka: invalid configuration ("); ok {
		reason = strings.TrimSuffix(inner, ")")
	}
	return Problem{Field: wrong.Field, Want: "settings that pass sarama's own check, which says: " + reason}
}

// panicOf calls f and returns what it panicked with, for [Problem].Value.
func panicOf(f func()) (value string, panicked bool) {
	defer func() {
		if v := recover(); v != nil {
			value, panicked = "panicking ("+shorten(fmt.Sprint(v))+")", true
		}
	}()
	f()
	return "", false
}

// flatten returns the errors that err joins.
func flatten(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	if err == nil {
		return nil
	}
	return []error{err}
}
