package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/troupego/troupe/integration/launch"
	"github.com/troupego/troupe/pkg/kafkatest"
)

// The brokers to measure on.
const (
	brokerEmbedded = "embedded"
	brokerKafka    = "kafka"
)

var brokerKinds = []string{brokerEmbedded, brokerKafka}

// broker is a running broker.
type broker struct {
	// kind is one of brokerKinds; name says what exactly it is.
	kind, name string
	addrs      []string
	stop       func() error
}

// serving is what a broker child says once clients may come.
type serving struct {
	Name  string   `json:"name"`
	Addrs []string `json:"addrs"`
}

// serve is the embedded broker's process. It never returns without an error: the process ends with its standard input.
func serve(nodes int) error {
	b, err := kafkatest.StartBroker(kafkatest.Brokers(nodes))
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(serving{Name: b.Version(), Addrs: b.Addrs()}); err != nil {
		return err
	}
	select {}
}

// startBroker starts a broker, or a cluster of several nodes, in processes of its own. It returns nil, after a loud line, when
// there is no way to a real Kafka.
func startBroker(ctx context.Context, kind string, nodes int) (*broker, error) {
	if kind == brokerKafka {
		return startKafka(ctx, nodes)
	}
	c, err := startChild(ctx, task{Role: roleBroker, Nodes: nodes})
	if err != nil {
		return nil, err
	}
	var s serving
	if err := c.answers.Decode(&s); err != nil {
		return nil, errors.Join(fmt.Errorf("embedded broker: %w", err), c.stop())
	}
	return &broker{kind: kind, name: s.Name + onNodes(nodes), addrs: s.Addrs, stop: c.stop}, nil
}

// onNodes is how a broker's name tells that it is several.
func onNodes(nodes int) string {
	if nodes == 1 {
		return ""
	}
	return fmt.Sprintf(", %d nodes", nodes)
}

func startKafka(ctx context.Context, nodes int) (*broker, error) {
	cluster, err := launch.Start(ctx, launch.Options{Nodes: nodes, Log: progress})
	if errors.Is(err, launch.ErrUnavailable) && !launch.Required() {
		launch.ReportSkipped("bench on a real Kafka", err)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	name := "Apache Kafka " + cluster.Version() + onNodes(nodes)
	return &broker{kind: brokerKafka, name: name, addrs: cluster.Brokers(), stop: cluster.Stop}, nil
}

// progress tells on standard error what is being done; standard output is for results.
func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, "# "+format+"\n", args...) }
