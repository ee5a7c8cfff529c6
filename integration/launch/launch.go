// Package launch gives tests a real Kafka to talk to.
//
// Start returns, in this order of preference,
//
//  1. the cluster named by TROUPE_KAFKA_BROKERS (a comma list of host:port), which it only looks at and never stops;
//  2. Apache Kafka in KRaft mode, started here as plain JVM processes from the jars Maven resolves: Java 17 or newer is
//     needed, and Maven the first time a version is used;
//  3. an error that is ErrUnavailable and names what is missing.
//
// A cluster started here is this run's own: loopback addresses, ports and data folder that nobody else uses, ended by
// process id in Stop. On Linux the kernel also ends the nodes when the test binary dies without calling Stop (a panic, a
// test timeout, a kill), so no run leaves a broker behind.
//
// What is slow is done once per Kafka version and kept in the user's cache folder: the jars, a formatted data folder,
// and an archive of loaded classes that halves the start. A file lock makes that safe for test binaries that run at the
// same time.
//
// Environment:
//
//	TROUPE_KAFKA_BROKERS   use this cluster instead of starting one
//	TROUPE_KAFKA_VERSION   the version to start, DefaultVersion otherwise
//	TROUPE_REQUIRE_KAFKA   "1": a test that cannot have its Kafka fails instead of being skipped
//	TROUPE_BROKER_LOG      file to which Report appends a line per broker used (see report.go)
//
// With Options.Security the nodes also listen for SASL and TLS, and the cluster can change who may do what. PLAINTEXT
// stays open, and whoever comes that way may do everything: tests prepare and repair a cluster there.
package launch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
	"time"
)

// The Kafka versions the suites run on.
const (
	// DefaultVersion is the one Start uses when neither Options nor TROUPE_KAFKA_VERSION name one.
	DefaultVersion = "4.4.0"
	// OldVersion is the oldest one that everything here is tested with.
	OldVersion = "3.7.2"
)

// defaultStartTimeout covers three nodes on two busy cores several times over; the caches are prepared outside it.
const defaultStartTimeout = 90 * time.Second

// startAttempts bounds how often a start is repeated with new ports after another process took one of ours between our
// choosing it and the node's binding it.
const startAttempts = 3

// Required reports whether TROUPE_REQUIRE_KAFKA=1 forbids skipping a test for want of a real Kafka.
func Required() bool { return os.Getenv("TROUPE_REQUIRE_KAFKA") == "1" }

// Cluster is a Kafka cluster that was ready when Start returned it.
type Cluster struct {
	version  string
	brokers  []string  // outside brokers only
	nodes    []*Node   // own nodes only
	dir      string    // run folder of own nodes
	security *security // nil without Options.Security
	stopOnce sync.Once
	stopErr  error

	mu       sync.Mutex
	keepLogs bool // guarded by mu
}

// Start returns a ready cluster, see the package comment. The context bounds Start only; the cluster lives until Stop.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	options = options.withDefaults()
	if options.Nodes < 1 || options.Nodes > maxNodes {
		return nil, fmt.Errorf("launch: Options.Nodes is %d, must be 1 to %d", options.Nodes, maxNodes)
	}
	security, err := newSecurity(options.Security)
	if err != nil {
		return nil, fmt.Errorf("launch: Options.Security: %w", err)
	}
	if brokers := outsideBrokers(); len(brokers) > 0 && !options.needsOwn() {
		return useOutside(ctx, brokers)
	}
	version, err := parseVersion(options.Version)
	if err != nil {
		return nil, fmt.Errorf("launch: %w", err)
	}
	dist, err := prepare(ctx, version, options.Log)
	if err != nil {
		return nil, fmt.Errorf("launch: Kafka %s: %w", version, err)
	}
	template, err := dist.templateFor(ctx, security, options.Log)
	if err != nil {
		return nil, fmt.Errorf("launch: Kafka %s: format a data folder: %w", version, err)
	}
	for attempt := 1; ; attempt++ {
		cluster, err := startOwn(ctx, dist, template, security, options)
		if err == nil {
			return cluster, nil
		}
		if !errors.Is(err, errPortTaken) || attempt == startAttempts {
			return nil, fmt.Errorf("launch: Kafka %s: %w", version, err)
		}
		options.Log("a port was taken meanwhile, starting again: %v", err)
	}
}

// useOutside checks that one of the brokers answers and guesses the version from what it can do.
func useOutside(ctx context.Context, brokers []string) (*Cluster, error) {
	var errs []error
	for _, broker := range brokers {
		guess, err := guessVersion(ctx, broker)
		if err == nil {
			return &Cluster{version: guess, brokers: brokers}, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("launch: no broker of TROUPE_KAFKA_BROKERS answers: %w", errors.Join(errs...))
}

func startOwn(ctx context.Context, dist *distribution, template string, security *security, options Options) (*Cluster, error) {
	dir, err := os.MkdirTemp("", "troupe-kafka-")
	if err != nil {
		return nil, fmt.Errorf("run folder: %w", err)
	}
	cluster := &Cluster{version: dist.version.String(), dir: dir, security: security}
	if err := cluster.startNodes(ctx, dist, template, options); err != nil {
		err = cluster.describeFailure(err)
		cluster.KeepLogs()
		return nil, errors.Join(err, cluster.Stop())
	}
	return cluster, nil
}

func (c *Cluster) startNodes(ctx context.Context, dist *distribution, template string, options Options) error {
	ctx, cancel := context.WithTimeoutCause(ctx, options.StartTimeout,
		fmt.Errorf("not ready within Options.StartTimeout %v", options.StartTimeout))
	defer cancel()
	started := time.Now()
	plans, err := planNodes(options.Nodes, options.listeners())
	if err != nil {
		return err
	}
	if options.AdvertisedOverride != nil {
		overrideAdvertised(plans, options.AdvertisedOverride)
	}
	extra, err := c.security.install(c.dir)
	if err != nil {
		return err
	}
	maps.Copy(extra, options.Properties)
	clusterID := newUUID()
	for _, plan := range plans {
		node := &Node{plan: plan, dist: dist, cluster: c}
		properties := renderProperties(serverProperties(plan, plans, node.dataDir(), extra))
		if err := node.prepare(template, clusterID, properties); err != nil {
			return fmt.Errorf("node %d: %w", plan.id, err)
		}
		c.nodes = append(c.nodes, node)
	}
	for _, node := range c.nodes {
		if err := node.launch(nil); err != nil {
			return fmt.Errorf("node %d: %w", node.ID(), err)
		}
	}
	if err := c.AwaitReady(ctx); err != nil {
		return err
	}
	options.Log("%s ready after %.1f s", c, time.Since(started).Seconds())
	return nil
}

// describeFailure adds where the logs are and how they end, and marks an address conflict for the retry.
func (c *Cluster) describeFailure(err error) error {
	var tails strings.Builder
	taken := false
	for _, node := range c.nodes {
		tail := node.logTail()
		taken = taken || strings.Contains(tail, "Address already in use")
		fmt.Fprintf(&tails, "\n--- %s ends with:\n%s", node.logFile(), tail)
	}
	if taken {
		err = fmt.Errorf("%w: %w", errPortTaken, err)
	}
	return fmt.Errorf("%w (logs kept in %s)%s", err, c.dir, tails.String())
}

// Version is the Kafka version: exact for a cluster started here, a guess from its API versions for an outside one.
func (c *Cluster) Version() string { return c.version }

// External reports whether the cluster came from TROUPE_KAFKA_BROKERS and so has no nodes of ours.
func (c *Cluster) External() bool { return len(c.brokers) > 0 }

// Nodes returns the nodes started here, in order of their ids; none for an outside cluster.
func (c *Cluster) Nodes() []*Node { return append([]*Node(nil), c.nodes...) }

// LogDir is the folder with the nodes' properties and logs; empty for an outside cluster.
func (c *Cluster) LogDir() string { return c.dir }

// String names the cluster in one line, as Report prints it.
func (c *Cluster) String() string {
	if c.External() {
		return fmt.Sprintf("outside Kafka, by its API versions %s (%s)", c.version, strings.Join(c.brokers, ","))
	}
	noun := "nodes"
	if len(c.nodes) == 1 {
		noun = "node"
	}
	secured := ""
	if c.security != nil {
		secured = ", secured"
	}
	return fmt.Sprintf("Apache Kafka %s (KRaft, %d %s%s, %s)", c.version, len(c.nodes), noun, secured, strings.Join(c.Brokers(), ","))
}

// KeepLogs makes Stop leave properties and logs in LogDir. Call it when a test failed.
func (c *Cluster) KeepLogs() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keepLogs = true
}

func (c *Cluster) logsKept() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.keepLogs
}

// Stop ends every node at once and removes the run folder, except for the logs if KeepLogs was called or a node ended
// that nobody had ended; the error then says so. Outside clusters are left alone. Further calls return the first
// call's result.
//
// The nodes are killed, not asked: their data is thrown away anyway, and the last of three nodes asked one after the
// other would wait for a quorum that is gone.
func (c *Cluster) Stop() error {
	c.stopOnce.Do(func() { c.stopErr = c.stop() })
	return c.stopErr
}

func (c *Cluster) stop() error {
	if c.External() {
		return nil
	}
	var errs []error
	for _, node := range c.nodes {
		if err := node.crashed(); err != nil && !c.logsKept() {
			c.KeepLogs()
			errs = append(errs, fmt.Errorf("launch: %w (log: %s)\n%s", err, node.logFile(), node.logTail()))
		}
	}
	for _, node := range c.nodes {
		if err := node.Kill(); err != nil {
			errs = append(errs, fmt.Errorf("launch: kill node %d: %w", node.ID(), err))
		}
	}
	if !c.logsKept() {
		return errors.Join(append(errs, os.RemoveAll(c.dir))...)
	}
	for _, node := range c.nodes {
		errs = append(errs, os.RemoveAll(node.dataDir()))
	}
	return errors.Join(errs...)
}

// errPortTaken marks a start that failed because somebody else had bound one of the chosen ports.
var errPortTaken = errors.New("port already in use")
