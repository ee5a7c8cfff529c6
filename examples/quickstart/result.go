package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/troupego/troupe/examples/internal/cluster"
)

// result is the last line on stdout. Counts are of this run's orders.
type result struct {
	// Produced orders were confirmed by the brokers.
	Produced int `json:"produced"`
	// Processed counts calls of the handler that succeeded, Distinct the orders among them.
	Processed int `json:"processed"`
	Distinct  int `json:"distinct"`
	// Committed and Lag are read back from the brokers: records of this run below and above the group's offsets.
	Committed int64 `json:"committed"`
	Lag       int64 `json:"lag"`
	// Restarts counts handlers that were replaced, Duplicates orders handled again.
	Restarts   int    `json:"restarts"`
	Duplicates int    `json:"duplicates"`
	Rebalances uint64 `json:"rebalances"`
	// ElapsedMillis is the time of the whole run.
	ElapsedMillis int64 `json:"elapsed_ms"`
}

// fill takes the counts from the ledger and reads the offsets back. before has where each partition ended before the run.
func (r *result) fill(orders *cluster.Cluster, group string, l *ledger) (err error) {
	r.Processed, r.Distinct, r.Restarts = l.counts()
	r.Duplicates = r.Processed - r.Distinct
	r.Committed, r.Lag, err = orders.Consumed(group)
	return err
}

// lost reports whether anything is missing.
func (r *result) lost() bool {
	return r.Distinct < r.Produced || r.Committed < int64(r.Produced) || r.Lag != 0
}

func printTable(w io.Writer, g *group, r *result) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "member\tpartitions\thandled\trestarts\tgenerations\t")
	for i, m := range g.members {
		fmt.Fprintf(t, "%d\t%d\t%d\t%d\t%d\t\n", i+1, m.partitions, m.handled.Load(), m.restarts.Load(), m.generations)
	}
	fmt.Fprintf(t, "\t\t%d\t%d\t\t\n", r.Processed, r.Restarts)
	_ = t.Flush()
}
