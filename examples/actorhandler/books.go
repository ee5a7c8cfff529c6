package main

import (
	"fmt"
	"sync"

	"github.com/troupego/troupe/examples/internal/cluster"
)

// books is what all auditors of this process write to.
type books struct {
	// before has where each partition ended before this run's payments.
	before   map[int32]int64
	produced int
	// complete is closed when every payment is booked.
	complete chan struct{}

	mu     sync.Mutex
	booked map[payment]bool
	// twice counts payments booked again, early those acknowledged before an earlier one, refused those sent back.
	twice, early, refused int
}

// payment says where a payment is.
type payment struct {
	partition int32
	offset    int64
}

func newBooks(before map[int32]int64, produced int) *books {
	return &books{before: before, produced: produced, complete: make(chan struct{}), booked: make(map[payment]bool)}
}

// book books an acknowledged payment. Older ones on the same topic are not of this run.
func (b *books) book(partition int32, offset int64, early bool) {
	if offset < b.before[partition] {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if early {
		b.early++
	}
	p := payment{partition, offset}
	if b.booked[p] {
		b.twice++
		return
	}
	b.booked[p] = true
	if len(b.booked) == b.produced {
		close(b.complete)
	}
}

func (b *books) refuse() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refused++
}

// report prints what happened and returns an error when anything was lost.
func (b *books) report(payments *cluster.Cluster, group string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	committed, lag, err := payments.Consumed(group)
	if err != nil {
		return err
	}
	fmt.Printf("%d payments produced, %d booked, %d of them acknowledged before an earlier one, %d refused and delivered again, %d booked twice\n",
		b.produced, len(b.booked), b.early, b.refused, b.twice)
	fmt.Printf("the group has committed %d, %d are left\n", committed, lag)
	if len(b.booked) < b.produced || committed < int64(b.produced) || lag != 0 {
		return fmt.Errorf("payments were lost: %d produced, %d booked, %d committed", b.produced, len(b.booked), committed)
	}
	return nil
}
