package launch

import (
	"os"
	"slices"
	"strings"
	"time"
)

// Options says which cluster a test needs. The zero value is one node of the default version. Anything that could not
// be applied to an outside cluster means a cluster of our own even if TROUPE_KAFKA_BROKERS is set.
type Options struct {
	// Version of Apache Kafka, such as "3.7.2". Empty: TROUPE_KAFKA_VERSION, else DefaultVersion. It does not select
	// among outside brokers; those are whatever they are.
	Version string

	// Nodes is the number of nodes, each broker and controller. Zero: 1. More than one means a cluster of our own,
	// because only own nodes can be killed.
	Nodes int

	// Security adds listeners with SASL and TLS, users and ACLs. Nil: PLAINTEXT alone.
	Security *Security

	// Properties are added to every node's server properties and win over the launcher's own.
	Properties map[string]string

	// AdvertisedOverride says which address (host:port) a node tells clients about a listener, given the true one. It
	// makes clusters whose bootstrap address works and whose advertised one does not ("127.0.0.1:1"), or leads
	// somewhere else (Proxy). The brokers and the helpers here then use a listener of their own. Nil: the true ones.
	AdvertisedOverride func(node int, listener, address string) string

	// StartTimeout bounds the time from starting the JVMs to a cluster that answers group requests on every node. Zero:
	// 90 s. Preparing the caches is bounded by the context of Start only.
	StartTimeout time.Duration

	// Log receives a line for each slow step (jars, format, class archive, ready). Nil: none.
	Log func(format string, args ...any)
}

func (o Options) withDefaults() Options {
	if o.Version == "" {
		o.Version = os.Getenv("TROUPE_KAFKA_VERSION")
	}
	if o.Version == "" {
		o.Version = DefaultVersion
	}
	if o.Nodes == 0 {
		o.Nodes = 1
	}
	if o.StartTimeout == 0 {
		o.StartTimeout = defaultStartTimeout
	}
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	return o
}

// needsOwn reports whether no outside cluster can be what is asked for.
func (o Options) needsOwn() bool {
	return o.Nodes > 1 || len(o.Properties) > 0 || o.Security != nil || o.AdvertisedOverride != nil
}

// listeners are those every node gets, without ports.
func (o Options) listeners() []listener {
	kinds := []listener{
		{name: ListenerPlaintext, protocol: "PLAINTEXT"},
		{name: listenerController, protocol: "PLAINTEXT", unadvertised: true},
	}
	if o.AdvertisedOverride != nil {
		kinds = append(kinds, listener{name: listenerBrokers, protocol: "PLAINTEXT"})
	}
	if o.Security != nil {
		for _, name := range []string{ListenerSASLPlaintext, ListenerSASLSSL, ListenerSSL} {
			kinds = append(kinds, listener{name: name, protocol: name})
		}
	}
	return kinds
}

// overrideAdvertised asks for the address of every listener that clients use.
func overrideAdvertised(plans []nodePlan, override func(node int, listener, address string) string) {
	for _, plan := range plans {
		for i, l := range plan.listeners {
			if !l.unadvertised && l.name != listenerBrokers {
				plan.listeners[i].advertised = override(plan.id, l.name, l.address())
			}
		}
	}
}

// outsideBrokers returns the addresses in TROUPE_KAFKA_BROKERS, none if it is not set.
func outsideBrokers() []string {
	var brokers []string
	for broker := range strings.SplitSeq(os.Getenv("TROUPE_KAFKA_BROKERS"), ",") {
		if broker = strings.TrimSpace(broker); broker != "" {
			brokers = append(brokers, broker)
		}
	}
	return brokers
}

// Brokers returns the PLAINTEXT addresses to bootstrap from, host:port.
func (c *Cluster) Brokers() []string { return c.BrokersOf(ListenerPlaintext) }

// BrokersOf returns the addresses of one listener, host:port, of every node; none if the cluster has no such listener.
// They are the ones the nodes listen on, whatever they advertise.
func (c *Cluster) BrokersOf(listener string) []string {
	if c.External() {
		if listener == ListenerPlaintext {
			return slices.Clone(c.brokers)
		}
		return nil
	}
	var addresses []string
	for _, node := range c.nodes {
		if address := node.AddrOf(listener); address != "" {
			addresses = append(addresses, address)
		}
	}
	return addresses
}
