package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/IBM/sarama"
	"github.com/rcrowley/go-metrics"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/kafka"
)

// What a zero field of [Config] means.
const (
	defaultConnectTimeout   = 4 * time.Second
	defaultRequestTimeout   = 10 * time.Second
	defaultRebalanceTimeout = 60 * time.Second
	defaultSessionTimeout   = 45 * time.Second
	defaultMaxResponseBytes = 128 << 20
	// minResponseBytes keeps the answer to ApiVersions readable whatever is configured.
	minResponseBytes = maxVersionsBytes
)

// softwareName is the client.software.name of KIP-511.
const softwareName = "troupe"

// openingVersion is the Kafka version sarama takes for granted while it authenticates. The one thing that hangs on it is
// the version of SaslAuthenticate, which sarama cannot negotiate here: this makes it v1, known to every broker from 2.2
// to the newest (v2 closes the connection at a 2.4) and with the session's lifetime in its answer.
var openingVersion = sarama.V2_4_0_0

// softwareVersionPattern is what a broker accepts as a software version (KIP-511).
var softwareVersionPattern = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?$`)

// Config is what the network of one member needs to know. A zero field means its default.
type Config struct {
	// Brokers are the bootstrap servers, each "host:port", at least one (bootstrap.servers).
	Brokers []string
	// ClientID goes out with every request as it is, because quotas go by it (client.id). Empty means "troupe".
	ClientID string
	// SoftwareVersion is Troupe's version as told to the brokers (KIP-511). Empty means "dev".
	SoftwareVersion string
	// ConnectTimeout limits making one connection: dialing, TLS, authentication and agreeing on versions. For the metadata
	// client it limits the search for a broker as a whole. Default 4 s.
	ConnectTimeout time.Duration
	// RequestTimeout limits the wait for an answer that the broker can give at once. Default 10 s.
	RequestTimeout time.Duration
	// RebalanceTimeout limits JoinGroup and SyncGroup, with 5 s on top, where the request itself names none. Default 60 s.
	RebalanceTimeout time.Duration
	// SessionTimeout limits a heartbeat: a third of it, at least 1 s and at most 10 s. Default 45 s.
	SessionTimeout time.Duration
	// MaxResponseBytes is the largest answer that is read; a larger one closes the connection. Default 128 MiB, at least 1 MiB.
	MaxResponseBytes int
	// MaxBatchBytes is put into every chunk as the cap on one batch's decompressed size; 0 leaves it to who decodes.
	MaxBatchBytes int
	// MaxRecycledBytes bounds the memory that was given back (chunks with Recycle, answers without records) and is kept for
	// its next use. Default 64 MiB. It comes on top of the member's memory budget, of which a quarter is enough here.
	MaxRecycledBytes int
	// PoisonRecycled overwrites memory that is given back, so that whoever reads it too late sees that: bytes with 0xDB,
	// records with topic "recycled" and a negative offset. It costs time. Builds with the race detector always do it.
	PoisonRecycled bool
	// Sarama is the user's adjusted configuration, of which Net (TLS, SASL, proxy, local address, keep-alive, write timeout)
	// is used. It is copied and never changed. Nil means sarama's defaults.
	Sarama *sarama.Config
	// Dial makes the connections in place of everything else, for an in-memory network. TLS and SASL still apply on top.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// ConfigError says which field of the configuration is wrong and why. It never holds the value of a secret.
type ConfigError struct {
	// Field is the field's name, with "Sarama." in front for one of sarama's.
	Field string
	// Reason says what is wrong.
	Reason string
}

// Error names field and reason.
func (e *ConfigError) Error() string { return fmt.Sprintf("wire: %s: %s", e.Field, e.Reason) }

// Network makes the connections of one member. Its methods may be called from any goroutine.
type Network struct {
	cfg    Config
	sarama sarama.Config
	tls    *tls.Config // nil without TLS
	// decompress is shared by all readers of this network, never by two networks (a bubble each in tests).
	decompress *decompressors
	// memory is what fetch answers, decompressed batches and records come from and go back to.
	memory  *pool
	logins  logins
	origins origins
}

var _ actors.Network = (*Network)(nil)

// New checks the configuration and returns the network; it dials nothing. The error joins a *[ConfigError] for every
// field that is wrong.
func New(cfg Config) (*Network, error) {
	cfg.Brokers = slices.Clone(cfg.Brokers)
	cfg.fillDefaults()
	n := &Network{cfg: cfg, decompress: newDecompressors(), memory: newPool(cfg.MaxRecycledBytes, cfg.PoisonRecycled)}
	n.sarama = baseSarama(cfg)
	if n.sarama.Net.TLS.Enable {
		n.tls = n.sarama.Net.TLS.Config
		if n.tls == nil {
			n.tls = &tls.Config{MinVersion: tls.VersionTLS12}
		}
	}
	if err := errors.Join(append(cfg.problems(), saramaProblems(n.sarama)...)...); err != nil {
		return nil, err
	}
	return n, nil
}

func (c *Config) fillDefaults() {
	fill := func(field *time.Duration, value time.Duration) {
		if *field == 0 {
			*field = value
		}
	}
	fill(&c.ConnectTimeout, defaultConnectTimeout)
	fill(&c.RequestTimeout, defaultRequestTimeout)
	fill(&c.RebalanceTimeout, defaultRebalanceTimeout)
	fill(&c.SessionTimeout, defaultSessionTimeout)
	if c.MaxResponseBytes == 0 {
		c.MaxResponseBytes = defaultMaxResponseBytes
	}
	if c.MaxRecycledBytes == 0 {
		c.MaxRecycledBytes = defaultMaxRecycledBytes
	}
	if c.ClientID == "" {
		c.ClientID = "troupe"
	}
	if c.SoftwareVersion == "" {
		c.SoftwareVersion = "dev"
	}
}

// problems returns everything that is wrong with c's own fields.
func (c *Config) problems() []error {
	var out []error
	bad := func(field, format string, args ...any) {
		out = append(out, &ConfigError{Field: field, Reason: fmt.Sprintf(format, args...)})
	}
	if len(c.Brokers) == 0 {
		bad("Brokers", "at least one bootstrap server is needed")
	}
	for i, addr := range c.Brokers {
		host, port, err := net.SplitHostPort(addr)
		number, portErr := strconv.ParseUint(port, 10, 16)
		if err != nil || host == "" || portErr != nil || number == 0 {
			bad(fmt.Sprintf("Brokers[%d]", i), "%q is not host:port", addr)
		}
	}
	for _, d := range []struct {
		field string
		value time.Duration
	}{
		{"ConnectTimeout", c.ConnectTimeout},
		{"RequestTimeout", c.RequestTimeout},
		{"RebalanceTimeout", c.RebalanceTimeout},
		{"SessionTimeout", c.SessionTimeout},
	} {
		if d.value < 0 {
			bad(d.field, "%v is negative", d.value)
		}
	}
	if c.MaxResponseBytes < minResponseBytes {
		bad("MaxResponseBytes", "%d is below %d", c.MaxResponseBytes, minResponseBytes)
	}
	if c.MaxBatchBytes < 0 {
		bad("MaxBatchBytes", "%d is negative", c.MaxBatchBytes)
	}
	if c.MaxRecycledBytes < 0 {
		bad("MaxRecycledBytes", "%d is negative", c.MaxRecycledBytes)
	}
	if !softwareVersionPattern.MatchString(c.SoftwareVersion) {
		bad("SoftwareVersion", "%q does not match %s", c.SoftwareVersion, softwareVersionPattern)
	}
	return out
}

// baseSarama is the configuration each connection's copy is made of. Dialing and TLS are ours, so sarama gets neither;
// it keeps SASL.
func baseSarama(cfg Config) sarama.Config {
	base := sarama.NewConfig()
	if cfg.Sarama != nil {
		own := *cfg.Sarama
		base = &own
	}
	base.Version = openingVersion
	base.ClientID = cfg.ClientID
	// A silent broker makes sarama give up on its ApiVersions without an error, and the late answer would be taken for
	// the first one of ours: we negotiate ourselves.
	base.ApiVersionsRequest = false
	base.Net.DialTimeout = cfg.ConnectTimeout
	base.Net.ReadTimeout = cfg.ConnectTimeout
	guardSASL(base)
	return *base
}

// saramaProblems returns what is wrong with the user's part of the sarama configuration.
func saramaProblems(base sarama.Config) []error {
	var out []error
	if base.Net.SASL.Enable && base.Net.SASL.Version == sarama.SASLHandshakeV0 {
		out = append(out, &ConfigError{Field: "Sarama.Net.SASL.Version",
			Reason: "SASL handshake v0 is not supported, set sarama.SASLHandshakeV1"})
	}
	if base.Net.Proxy.Enable && base.Net.Proxy.Dialer == nil {
		out = append(out, &ConfigError{Field: "Sarama.Net.Proxy.Dialer", Reason: "a proxy is enabled without a dialer"})
	}
	own := base
	own.MetricRegistry = metrics.NewRegistry()
	if err := own.Validate(); err != nil {
		out = append(out, &ConfigError{Field: "Sarama", Reason: err.Error()})
	}
	return out
}

// Metadata returns a client that talks to any broker.
func (n *Network) Metadata() actors.MetadataClient { return &metadataClient{client: newClient(n)} }

// Membership returns a client for JoinGroup and SyncGroup.
func (n *Network) Membership() actors.MembershipClient {
	return &membershipClient{client: newClient(n)}
}

// Heartbeat returns a client for Heartbeat and LeaveGroup.
func (n *Network) Heartbeat() actors.HeartbeatClient { return &heartbeatClient{client: newClient(n)} }

// Offsets returns a client for OffsetCommit and OffsetFetch.
func (n *Network) Offsets() actors.OffsetsClient { return &offsetsClient{client: newClient(n)} }

// Fetch returns a client that reads from one broker.
func (n *Network) Fetch(broker kafka.Broker) actors.FetchClient {
	return &fetchClient{client: newClient(n), broker: broker}
}

// Lookup returns a client that asks one broker for offsets.
func (n *Network) Lookup(broker kafka.Broker) actors.LookupClient {
	return &lookupClient{client: newClient(n), broker: broker}
}
