package kafkatest

import "github.com/rcrowley/go-metrics"

// The first meter of go-metrics, which sarama uses, starts a goroutine that ticks until the process ends. Started inside a
// synctest bubble it would keep the bubble from ever ending, and its clock from moving on; so it is started here.
func init() { metrics.NewMeter().Stop() }
