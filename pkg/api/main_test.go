package api

import (
	"testing"

	"github.com/rcrowley/go-metrics"
	"go.uber.org/goleak"
)

// TestMain makes the first meter of go-metrics (sarama uses them) outside of any bubble: its goroutine never ends.
func TestMain(m *testing.M) {
	metrics.NewMeter().Mark(1)
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}
