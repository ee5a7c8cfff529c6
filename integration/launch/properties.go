package launch

import (
	"cmp"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"maps"
	"math/big"
	"net"
	"slices"
	"strconv"
	"strings"
)

const (
	loopback = "127.0.0.1"
	maxNodes = 9
)

// The listeners clients may use. All but ListenerPlaintext need Options.Security.
const (
	ListenerPlaintext     = "PLAINTEXT"
	ListenerSASLPlaintext = "SASL_PLAINTEXT"
	ListenerSASLSSL       = "SASL_SSL"
	ListenerSSL           = "SSL"
)

// The nodes' own listeners. Brokers talk by ListenerPlaintext unless its advertised address is overridden.
const (
	listenerController = "CONTROLLER"
	listenerBrokers    = "BROKERS"
)

// listener is one address a node listens on.
type listener struct {
	name         string // Kafka's listener name, unique in a node
	protocol     string // Kafka's security protocol
	port         int
	unadvertised bool   // the controllers' own, unknown to clients
	advertised   string // what clients are told, host:port; empty: the true address
}

func (l listener) address() string { return net.JoinHostPort(loopback, strconv.Itoa(l.port)) }

// nodePlan is what is decided about a node before anything of it exists.
type nodePlan struct {
	id        int // node.id, from 1
	heapMiB   int // upper bound of the JVM's heap
	listeners []listener
}

// listener finds one by name; the zero listener means there is none.
func (p nodePlan) listener(name string) listener {
	for _, l := range p.listeners {
		if l.name == name {
			return l
		}
	}
	return listener{}
}

// own is the listener that brokers and this launcher use: plaintext, and advertised as it is.
func (p nodePlan) own() listener {
	if l := p.listener(listenerBrokers); l.name != "" {
		return l
	}
	return p.listener(ListenerPlaintext)
}

// planNodes numbers the nodes and gives each listener of each its port.
func planNodes(count int, kinds []listener) ([]nodePlan, error) {
	ports, err := freePorts(count * len(kinds))
	if err != nil {
		return nil, err
	}
	heap := 96
	if count > 1 { // replication fetchers and the quorum need a little more
		heap = 128
	}
	plans := make([]nodePlan, count)
	for i := range plans {
		plans[i] = nodePlan{id: i + 1, heapMiB: heap, listeners: slices.Clone(kinds)}
		for j := range kinds {
			plans[i].listeners[j].port = ports[i*len(kinds)+j]
		}
	}
	return plans, nil
}

// Ports are drawn from below the range that systems hand to outgoing connections (32768 and up on Linux, 49152 and up
// elsewhere), so that nobody's outgoing connection sits on a node's port while the node is down for a restart.
const (
	firstPort    = 20000
	portRange    = 12000
	portAttempts = 200
)

// freePorts returns distinct loopback ports nobody listens on. Another process may still be quicker; see errPortTaken.
func freePorts(count int) ([]int, error) {
	var ports []int
	for range portAttempts {
		if len(ports) == count {
			return ports, nil
		}
		offset, err := rand.Int(rand.Reader, big.NewInt(portRange))
		if err != nil {
			return nil, fmt.Errorf("choose a port: %w", err)
		}
		port := firstPort + int(offset.Int64())
		if slices.Contains(ports, port) {
			continue
		}
		held, err := net.Listen("tcp", net.JoinHostPort(loopback, strconv.Itoa(port)))
		if err != nil {
			continue // in use, or not ours to have: try another
		}
		if err := held.Close(); err != nil {
			return nil, fmt.Errorf("give port %d back: %w", port, err)
		}
		ports = append(ports, port)
	}
	return nil, fmt.Errorf("no %d free loopback ports found in %d tries from %d up", count, portAttempts, firstPort)
}

// serverProperties are the properties of one node of the planned cluster. The extra ones win.
func serverProperties(plan nodePlan, all []nodePlan, dataDir string, extra map[string]string) map[string]string {
	id := strconv.Itoa(plan.id)
	properties := map[string]string{
		"process.roles":             "broker,controller",
		"node.id":                   id,
		"broker.rack":               "rack-" + id,
		"replica.selector.class":    "org.apache.kafka.common.replica.RackAwareReplicaSelector",
		"controller.listener.names": listenerController, "inter.broker.listener.name": plan.own().name,
		"log.dirs": dataDir,

		// A topic a test did not create is a mistake of the test.
		"auto.create.topics.enable": "false",

		// Tests should not wait for members that might still come, and may use short sessions.
		"group.initial.rebalance.delay.ms": "0",
		"group.min.session.timeout.ms":     "1000",

		// Small and quick: few threads, and a cleaner buffer that fits the small heap (the default of 128 MB kills the
		// cleaner thread when its configuration is changed while running).
		"num.network.threads": "1", "num.io.threads": "2", "background.threads": "2",
		"num.recovery.threads.per.data.dir": "1",
		"log.cleaner.dedupe.buffer.size":    "1048577",

		// A killed node is noticed in about 3 s instead of 12, and an election takes half a second.
		"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500",
		"controller.quorum.election.timeout.ms": "500", "controller.quorum.fetch.timeout.ms": "1000",

		// By default a KIP-848 group computes a new target only once a second. Older releases ignore it.
		"group.consumer.assignment.interval.ms": "0",
	}
	addListeners(properties, plan, all)
	addReplication(properties, len(all))
	maps.Copy(properties, extra)
	return properties
}

func addListeners(properties map[string]string, plan nodePlan, all []nodePlan) {
	var listen, advertise, protocols, voters []string
	for _, l := range plan.listeners {
		listen = append(listen, l.name+"://"+l.address())
		protocols = append(protocols, l.name+":"+l.protocol)
		if !l.unadvertised {
			advertise = append(advertise, l.name+"://"+cmp.Or(l.advertised, l.address()))
		}
	}
	for _, other := range all {
		voters = append(voters, strconv.Itoa(other.id)+"@"+other.listener(listenerController).address())
	}
	properties["listeners"] = strings.Join(listen, ",")
	properties["advertised.listeners"] = strings.Join(advertise, ",")
	properties["listener.security.protocol.map"] = strings.Join(protocols, ",")
	properties["controller.quorum.voters"] = strings.Join(voters, ",")
}

// addReplication replicates as far as the nodes allow, and keeps the internal topics at one partition each: every one
// more costs start-up time.
func addReplication(properties map[string]string, nodes int) {
	factor, inSync := strconv.Itoa(min(nodes, 3)), "1"
	if nodes > 1 {
		inSync = "2"
	}
	properties["default.replication.factor"] = factor
	properties["min.insync.replicas"] = inSync
	properties["offsets.topic.replication.factor"] = factor
	properties["offsets.topic.num.partitions"] = "1"
	for _, prefix := range []string{"transaction.state.log", "share.coordinator.state.topic"} {
		properties[prefix+".replication.factor"] = factor
		properties[prefix+".min.isr"] = inSync
		properties[prefix+".num.partitions"] = "1"
	}
}

// propertyEscaper makes any value one line of a Java properties file.
var propertyEscaper = strings.NewReplacer(`\`, `\\`, "\n", `\n`, "\r", `\r`)

// renderProperties writes a Java properties file, sorted so that two runs can be compared.
func renderProperties(properties map[string]string) string {
	var text strings.Builder
	for _, key := range slices.Sorted(maps.Keys(properties)) {
		fmt.Fprintf(&text, "%s=%s\n", key, propertyEscaper.Replace(properties[key]))
	}
	return text.String()
}

// newUUID makes a cluster or directory id in Kafka's form. Kafka rejects ids that start with a dash, because its tools
// would take them for an option.
func newUUID() string {
	for {
		var id [16]byte
		rand.Read(id[:]) // never fails: crypto/rand ends the process instead
		if text := base64.RawURLEncoding.EncodeToString(id[:]); text[0] != '-' {
			return text
		}
	}
}
