// Package integration runs whole consumers against brokers. The conformance suite (conformance_test.go) has a test for
// each rule that holds on every broker; it runs on the embedded one and on a real Kafka. The named cases are reports by
// users of other consumers; the stories run in virtual time.
package integration

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/IBM/sarama"
	"github.com/rcrowley/go-metrics"
	"go.uber.org/goleak"

	"github.com/troupego/troupe/integration/launch"
)

// parallelTests is how many tests run at once unless -parallel says otherwise. They wait more than they compute.
const parallelTests = "8"

func TestMain(m *testing.M) {
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		if err := flag.Set("test.parallel", parallelTests); err != nil {
			panic(err)
		}
	}
	// sarama's meters share one goroutine that never ends; started in a bubble it would keep that bubble's clock still.
	metrics.NewMeter().Stop()
	version, err := launch.ModuleVersion(context.Background(), "github.com/twmb/franz-go/pkg/kfake")
	if err != nil {
		version = err.Error()
	}
	launch.Report("embedded kfake " + version)
	sarama.Logger, sarama.DebugLogger = saramaLog, saramaLog // before anything runs: they are global
	code := m.Run()
	for _, shared := range []*sharedKafka{&realKafka, &oldKafka} {
		if err := shared.stop(code != 0); err != nil {
			fmt.Fprintln(os.Stderr, "FAIL:", err)
			code = 1
		}
	}
	if code == 0 {
		if err := goleak.Find(ignoredGoroutines...); err != nil {
			fmt.Fprintln(os.Stderr, "FAIL: goroutines are left:", err)
			code = 1
		}
	}
	os.Exit(code)
}

var ignoredGoroutines = []goleak.Option{
	// The one of TestMain.
	goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"),
}
