package kafkatest

import (
	"fmt"
	"slices"
	"time"
)

// Option changes how a broker is started.
type Option interface{ apply(*settings) }

type optionFunc func(*settings)

func (f optionFunc) apply(s *settings) { f(s) }

// settings is what the options add up to.
type settings struct {
	brokers           int
	inMemory          bool
	topics            []topicSpec
	minSessionTimeout time.Duration
	compression       string
}

type topicSpec struct {
	name       string
	partitions int32
}

func newSettings(opts []Option) (*settings, error) {
	s := &settings{brokers: 1, compression: "none"}
	for _, o := range opts {
		o.apply(s)
	}
	if s.brokers < 1 {
		return nil, fmt.Errorf("kafkatest: Brokers is %d, at least 1 is needed", s.brokers)
	}
	if !slices.Contains(compressions, s.compression) {
		return nil, fmt.Errorf("kafkatest: Compression is %q, one of %q is needed", s.compression, compressions)
	}
	for _, t := range s.topics {
		if t.partitions < 1 {
			return nil, fmt.Errorf("kafkatest: topic %q has %d partitions, at least 1 is needed", t.name, t.partitions)
		}
	}
	return s, nil
}

// Brokers sets the number of nodes, 1 without it. They have the ids 0, 1, 2 and so on.
func Brokers(n int) Option {
	return optionFunc(func(s *settings) { s.brokers = n })
}

// Topic creates a topic before the broker is handed out. It may be given several times.
func Topic(name string, partitions int32) Option {
	return optionFunc(func(s *settings) { s.topics = append(s.topics, topicSpec{name, partitions}) })
}

// InMemory puts the broker on a network in memory instead of loopback. A consumer needs api.WithDialer(broker.Dial) to
// reach it: the nodes are node-0.kafkatest.invalid:9092 and so on, which nobody else can resolve. It is for tests inside a
// testing/synctest bubble, where the broker must be started and closed in the bubble: waiting for a socket would keep the
// bubble's clock from moving. The package comment has a complete one.
func InMemory() Option {
	return optionFunc(func(s *settings) { s.inMemory = true })
}

// MinSessionTimeout sets the shortest session timeout that the broker grants a group member
// (group.min.session.timeout.ms); 6 s without it, as Kafka.
func MinSessionTimeout(d time.Duration) Option {
	return optionFunc(func(s *settings) { s.minSessionTimeout = d })
}

// compressions are Kafka's names of the codecs (compression.type).
var compressions = []string{"none", "gzip", "snappy", "lz4", "zstd"}

// Compression sets the codec of the batches that Produce writes, by Kafka's name: "none" (without this option), "gzip",
// "snappy", "lz4" or "zstd".
func Compression(codec string) Option {
	return optionFunc(func(s *settings) { s.compression = codec })
}
