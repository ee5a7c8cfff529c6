package wire

import (
	"sync"

	"github.com/troupego/troupe/pkg/kafka"
)

// origins remembers which broker's answer named an address, so that an address that cannot be reached can be traced to the
// advertised.listeners it came from.
type origins struct {
	mu          sync.Mutex
	brokers     map[string]string
	coordinator struct{ addr, from string }
}

// named takes over the brokers of a Metadata answer, in place of those before.
func (o *origins) named(by kafka.Broker, brokers map[int32]kafka.Broker) {
	from := "Metadata from " + by.String()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.brokers = make(map[string]string, len(brokers))
	for _, b := range brokers {
		o.brokers[b.Addr] = from
	}
}

// coordinates takes over the answer to FindCoordinator.
func (o *origins) coordinates(by, coordinator kafka.Broker) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.coordinator.addr, o.coordinator.from = coordinator.Addr, "FindCoordinator from "+by.String()
}

// of says where an address came from, the empty string when no answer named it.
func (o *origins) of(addr string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if from, ok := o.brokers[addr]; ok {
		return from
	}
	if o.coordinator.addr == addr {
		return o.coordinator.from
	}
	return ""
}
