package main

import "github.com/troupego/troupe/examples/internal/cluster"

// result is the last line on stdout. Counts are of this run's clicks.
type result struct {
	// Produced clicks were confirmed by the brokers.
	Produced int `json:"produced"`
	// Processed counts clicks that were written and acknowledged, Distinct leaves out what was written again.
	Processed int `json:"processed"`
	Distinct  int `json:"distinct"`
	// Committed and Lag are read back from the brokers: records of this run below and above the group's offsets.
	Committed int64 `json:"committed"`
	Lag       int64 `json:"lag"`
	// OrderViolations counts clicks given to the handler while it had them, or out of order.
	OrderViolations int `json:"order_violations"`
	// Retries counts clicks that came again because the store had refused them.
	Retries int `json:"retries"`
	// AckedEarly counts clicks acknowledged before an earlier one of their partition, Groups what the store wrote.
	AckedEarly int `json:"acked_early"`
	Groups     int `json:"groups"`
	// Seconds is the time from the start of the consumer until everything was committed.
	Seconds float64 `json:"seconds"`
}

// fill takes the counts from the books and reads the offsets back. before has where each partition ended before the run.
func (r *result) fill(clicks *cluster.Cluster, group string, b *books) (err error) {
	seen := b.seen()
	r.Processed, r.Distinct, r.OrderViolations, r.Retries = seen.processed, seen.distinct, seen.violations, seen.retries
	r.AckedEarly, r.Groups = seen.early, seen.groups
	r.Committed, r.Lag, err = clicks.Consumed(group)
	return err
}

// wrong reports whether anything is missing or was out of order.
func (r *result) wrong() bool {
	return r.Distinct < r.Produced || r.Committed < int64(r.Produced) || r.Lag != 0 || r.OrderViolations != 0
}
