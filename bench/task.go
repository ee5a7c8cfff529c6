package main

import (
	"fmt"
	"time"
)

// The roles of child processes.
const (
	roleBroker  = "broker"
	roleLoad    = "load"
	roleProduce = "produce"
	roleConsume = "consume"
)

// The questions that a consumer run can answer.
const (
	modeThroughput = "throughput"
	modeLatency    = "latency"
	modeSlow       = "slow"
	modeIdle       = "idle"
	modeKeyOrder   = "keyorder"
	modeNoop       = "noop-keyorder"
	modeMemory     = "memory"
	modeRebalance  = "rebalance"
	modePartitions = "partitions"
	modeControl    = "control"
)

var modes = []string{
	modeThroughput, modeLatency, modeSlow, modeIdle, modeKeyOrder, modeNoop, modeMemory, modeRebalance, modePartitions,
	modeControl,
}

// task is what a child process is to do. It travels as JSON.
type task struct {
	Role    string   `json:"role"`
	Brokers []string `json:"brokers,omitempty"`
	Topic   topic    `json:"topic"`
	// Nodes is how many the embedded broker has; 0 is one.
	Nodes int `json:"nodes,omitempty"`

	// Consumer and Mode say who consumes and what is asked.
	Consumer string `json:"consumer,omitempty"`
	Mode     string `json:"mode,omitempty"`
	Group    string `json:"group,omitempty"`
	// Ends are the end offsets of the topic's partitions: how many records each has.
	Ends []int64 `json:"ends,omitempty"`
	// Heap is how many bytes of other live heap the process has.
	Heap int64 `json:"heap,omitempty"`
	// Profile is the file for a CPU profile of the measured time; empty for none.
	Profile string `json:"profile,omitempty"`
	// Order and Workers are how Troupe and the Parallel Consumer handle records: Order is empty for Troupe's default.
	Order   string `json:"order,omitempty"`
	Workers int    `json:"workers,omitempty"`
	// Budget is the MemoryBudget of the memory mode, in bytes.
	Budget int64 `json:"budget,omitempty"`
	// Sleep is what the handler of partition 0 sleeps per record in the slow neighbor mode.
	Sleep time.Duration `json:"sleep,omitempty"`
	// Window is how long the slow neighbor and the idle mode measure, and the rebalance mode before and after each step; Rest
	// is how long these modes, the memory mode and the control mode wait before.
	Window time.Duration `json:"window,omitempty"`
	Rest   time.Duration `json:"rest,omitempty"`

	// Rate is the records per second that are produced in the latency and the rebalance mode, Burst how many at a time (0 is
	// one); Warmup is how many of the first records do not count, Count how many do; in the control mode, how many calls.
	Rate   int `json:"rate,omitempty"`
	Burst  int `json:"burst,omitempty"`
	Warmup int `json:"warmup,omitempty"`
	Count  int `json:"count,omitempty"`

	// Heartbeat is the interval of the rebalance mode's members, Steps is who comes and goes.
	Heartbeat time.Duration `json:"heartbeat,omitempty"`
	Steps     []step        `json:"steps,omitempty"`

	// requests counts those of the partitions mode, in the consumer's own process.
	requests *requests
}

// topic is a topic and how it is filled.
type topic struct {
	Name       string `json:"name"`
	Partitions int32  `json:"partitions"`
	Records    int64  `json:"records"`
	Size       int    `json:"size"`
	Codec      string `json:"codec"`
	// Keys is how many keys there are, given to records at random; 0 gives each record its own.
	Keys int `json:"keys,omitempty"`
	// Batch is how many bytes of records a batch has before compression; 0 for the default.
	Batch int32 `json:"batch,omitempty"`
	// Uniform makes all values alike, so that they compress well.
	Uniform bool `json:"uniform,omitempty"`
}

// String says what is in it, such as "100 B lz4".
func (t topic) String() string {
	if t.Size >= 1024 && t.Size%1024 == 0 {
		return fmt.Sprintf("%d KB %s", t.Size/1024, t.Codec)
	}
	return fmt.Sprintf("%d B %s", t.Size, t.Codec)
}

// result is what a consumer run found. Which fields are set depends on the mode.
type result struct {
	// Records is how many records were handled, Bytes the size of their values.
	Records int64 `json:"records,omitempty"`
	Bytes   int64 `json:"bytes,omitempty"`
	// Seconds is the time from the start to the last record, or the time measured in the idle mode.
	Seconds float64 `json:"seconds,omitempty"`
	// CPUSeconds is user and system time of the process, start to end.
	CPUSeconds float64 `json:"cpuSeconds,omitempty"`
	// Mallocs and AllocatedBytes count what was allocated, Collections the garbage collections.
	Mallocs uint64 `json:"mallocs,omitempty"`
	// StartMallocs are those up to the first record: what a consumer allocates once.
	StartMallocs   uint64 `json:"startMallocs,omitempty"`
	AllocatedBytes uint64 `json:"allocatedBytes,omitempty"`
	Collections    uint32 `json:"collections,omitempty"`
	// PeakRSS is the most memory the process had, in bytes.
	PeakRSS int64 `json:"peakRSS,omitempty"`
	// Goroutines is how many there were at the end of the idle mode.
	Goroutines int `json:"goroutines,omitempty"`

	// P50, P90, P99 and Max are milliseconds from produce to handler.
	P50 float64 `json:"p50,omitempty"`
	P90 float64 `json:"p90,omitempty"`
	P99 float64 `json:"p99,omitempty"`
	Max float64 `json:"max,omitempty"`

	// Others is the rate of all partitions but the slow one, in records per second, Slow that of partition 0.
	Others float64 `json:"others,omitempty"`
	Slow   float64 `json:"slow,omitempty"`

	// Ideal is the least time the key order mode's handlers need, in seconds, InOrder what they take when a free worker
	// takes the lowest offset it may. Committed is from the first handler to the commit of the end; Seconds is then from the
	// first handler's start to the last one's end.
	Ideal     float64 `json:"ideal,omitempty"`
	InOrder   float64 `json:"inOrder,omitempty"`
	Committed float64 `json:"committed,omitempty"`

	// LiveGrowth is by how many bytes the live heap has grown in the memory mode, PeakGrowth by how many the process's
	// largest size, Handlers how many handlers are blocked.
	LiveGrowth int64 `json:"liveGrowth,omitempty"`
	PeakGrowth int64 `json:"peakGrowth,omitempty"`
	Handlers   int64 `json:"handlers,omitempty"`

	// Gaps are the rebalance mode's steps; a sample has one of them.
	Gaps []gaps `json:"gaps,omitempty"`

	// First is the partitions mode's seconds to the first record, Every to the last partition's first one, and Stop those of
	// giving all partitions back. OffsetFetches and ListOffsets are requests, at the broker that got most of them.
	First         float64 `json:"first,omitempty"`
	Every         float64 `json:"every,omitempty"`
	Stop          float64 `json:"stop,omitempty"`
	OffsetFetches int     `json:"offsetFetches,omitempty"`
	ListOffsets   int     `json:"listOffsets,omitempty"`

	// Calls are the control mode's calls; a sample has one of them.
	Calls []callTimes `json:"calls,omitempty"`
}
