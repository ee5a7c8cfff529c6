package api

import (
	"context"
	"fmt"
	"net"

	"github.com/IBM/sarama"
	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
)

// Part is what [Spawn] takes after the Config: a [Registration], an [Option], an [Assign], or a [ReadRange], in any order.
type Part interface{ addTo(*parts) }

// Option attaches something to a consumer. Of an option given twice the last one holds.
type Option interface {
	Part
	option()
}

// defaultObserverBuffer is the size of the observer's ring.
const defaultObserverBuffer = 1024

// maxObserverBuffer bounds the memory that events may take.
const maxObserverBuffer = 1 << 20

// parts is what the parts of a Spawn add up to.
type parts struct {
	registrations []Registration
	logger        *zap.Logger
	system        *actor.ActorSystem
	sarama        func(*sarama.Config)
	observer      func(event.Event)
	buffer        int
	poison        bool
	callbacks     actors.Callbacks
	positions     actors.PositionsFunc
	assigned      *assigned // nil in a group
	dial          func(ctx context.Context, network, addr string) (net.Conn, error)
	problems      []Problem
}

func gather(list []Part) *parts {
	p := &parts{logger: zap.NewNop(), buffer: defaultObserverBuffer}
	for i, part := range list {
		if part == nil {
			p.problems = append(p.problems, Problem{Field: fmt.Sprintf("parts[%d]", i), Value: "nil", Want: "a registration or an option"})
			continue
		}
		part.addTo(p)
	}
	return p
}

func (r Registration) addTo(p *parts) { p.registrations = append(p.registrations, r) }

// namedOption is an option and the name of the function that made it.
type namedOption struct {
	name  string
	apply func(*parts)
}

func optionOf(name string, apply func(*parts)) Option { return namedOption{name: name, apply: apply} }

func (o namedOption) addTo(p *parts) { o.apply(p) }
func (o namedOption) option()        {}
func (o namedOption) String() string { return o.name }

// wantFunction reports an option whose function is nil.
func (p *parts) wantFunction(option string, isNil bool) {
	p.problems = append(p.problems, broken([]rule{{option, nil, !isNil, "a function"}})...)
}

// WithLogger sets the logger. Default, and for nil: none, so that without it and WithObserver a consumer says nothing, not
// even that it finds no broker or no topic. Records' keys, values and headers are never logged.
func WithLogger(logger *zap.Logger) Option {
	return optionOf("WithLogger", func(p *parts) {
		if p.logger = logger; logger == nil {
			p.logger = zap.NewNop()
		}
	})
}

// WithActorSystem makes the consumer's actors live in a system of yours, so that your actors and its handlers' can send
// each other messages. It is not shut down with the consumer. Default, and for nil: a system of the consumer's own.
func WithActorSystem(system *actor.ActorSystem) Option {
	return optionOf("WithActorSystem", func(p *parts) { p.system = system })
}

// WithSaramaConfig adjusts sarama's settings before connections are made with them: TLS, SASL, a proxy, the local address
// and the keep-alive, all under Net. It starts from sarama.NewConfig, and is called once, in Spawn. Settings that have a
// field in [Config] (client id, timeouts) are taken from there, everything that is not about connections is not used. What
// it sets wrong, SASL handshake v0 included, is a configuration error, and so is a panic.
//
// SCRAM needs no Net.SASL.SCRAMClientGeneratorFunc here; one that is set is used. A TokenProvider (OAUTHBEARER) is asked
// for every connection, also for those made anew before a session ends; a panic in it is an error, and one that blocks is
// given up after Config.ConnectTimeout.
func WithSaramaConfig(adjust func(*sarama.Config)) Option {
	return optionOf("WithSaramaConfig", func(p *parts) {
		p.wantFunction("WithSaramaConfig", adjust == nil)
		p.sarama = adjust
	})
}

// WithObserver sets a function that is told every event, one at a time, from a goroutine of its own. It may be slow or
// never return and blocks nothing: events wait in a ring, the oldest is dropped when it is full, and
// Stats().EventsDropped counts. A panic is contained and logged. The last event of a consumer is event.Closed. Switch on
// the event's type, with a default, since the set of events grows.
func WithObserver(observe func(event.Event)) Option {
	return optionOf("WithObserver", func(p *parts) {
		p.wantFunction("WithObserver", observe == nil)
		p.observer = observe
	})
}

// WithObserverBuffer sets how many events may wait for the observer. Default 1024; from 1 to 2^20.
func WithObserverBuffer(events int) Option {
	return optionOf("WithObserverBuffer", func(p *parts) {
		p.problems = append(p.problems, broken([]rule{{"WithObserverBuffer", events, events >= 1 && events <= maxObserverBuffer,
			fmt.Sprintf("from 1 to %d", maxObserverBuffer)}})...)
		p.buffer = events
	})
}

// WithDialer makes the connections to brokers with a function of yours, in place of sarama's proxy and local address:
// for an in-memory network in tests. TLS and SASL still come on top. addr is "host:port".
func WithDialer(dial func(ctx context.Context, network, addr string) (net.Conn, error)) Option {
	return optionOf("WithDialer", func(p *parts) {
		p.wantFunction("WithDialer", dial == nil)
		p.dial = dial
	})
}

// WithPositions keeps the offsets outside of Kafka: positions is asked where the partitions start that were assigned, and
// returns for each the next offset to read; one that is missing starts by the reset policy. It is called from a goroutine
// of its own, may block until ctx ends, and is asked again, after a backoff, when it returns an error or panics. Use it with
// CommitStrategy commit.Manual(), or the group's offsets are committed all the same. Beside [Assign], where nothing is ever
// committed, one that is missing starts where it is assigned.
func WithPositions(positions func(ctx context.Context, partitions []kafka.TopicPartition) (map[kafka.TopicPartition]int64, error)) Option {
	return optionOf("WithPositions", func(p *parts) {
		p.wantFunction("WithPositions", positions == nil)
		p.positions = positions
	})
}

// WithPoison overwrites the memory of recycled records at once with a pattern, so that a handler that keeps one beyond its
// acknowledgment is seen to; see [RecycleRecords]. For tests: it costs what recycling saves. A program built with -race
// always does.
func WithPoison() Option { return optionOf("WithPoison", func(p *parts) { p.poison = true }) }
