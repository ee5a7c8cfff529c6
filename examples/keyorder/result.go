package main

import "github.com/troupego/troupe/examples/internal/cluster"

// result is the last line on stdout. Counts are of this run's payments.
type result struct {
	// Produced payments were confirmed by the brokers.
	Produced int `json:"produced"`
	// Processed counts calls of the handler that succeeded, Distinct the payments among them.
	Processed int `json:"processed"`
	Distinct  int `json:"distinct"`
	// Committed and Lag are read back from the brokers: records of this run below and above the group's offsets.
	Committed int64 `json:"committed"`
	Lag       int64 `json:"lag"`
	// OrderViolations counts payments that met another one of their account, or a balance that was not theirs.
	OrderViolations int `json:"order_violations"`
	// Retries counts payments tried again because they had failed.
	Retries int `json:"retries"`
	// Seconds is the time from the start of the consumer until everything was committed.
	Seconds float64 `json:"seconds"`
}

// fill takes the counts from the ledger and reads the offsets back. before has where each partition ended before the run.
func (r *result) fill(payments *cluster.Cluster, group string, l *ledger) (err error) {
	seen := l.seen()
	r.Processed, r.Distinct, r.OrderViolations, r.Retries = seen.processed, seen.distinct, seen.violations, seen.retries
	r.Committed, r.Lag, err = payments.Consumed(group)
	return err
}

// wrong reports whether anything is missing or was out of order.
func (r *result) wrong() bool {
	return r.Distinct < r.Produced || r.Committed < int64(r.Produced) || r.Lag != 0 || r.OrderViolations != 0
}
