package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// order is one record's value.
type order struct {
	// Run tells the orders of this run from older ones on the same topic.
	Run      string `json:"run"`
	Number   int    `json:"number"`
	Customer string `json:"customer"`
	Cents    int64  `json:"cents"`
}

// customers is how many keys there are. Orders of one customer share a partition and so keep their order.
const customers = 613

// order makes one order's record. Its key is the customer.
func (s settings) order(number int) (key string, value []byte) {
	customer := "customer-" + strconv.Itoa(number%customers)
	value, err := json.Marshal(order{Run: s.run, Number: number, Customer: customer, Cents: int64(number)%10_000 + 1})
	if err != nil {
		panic(err) // an order has nothing that JSON cannot say
	}
	return customer, value
}

// errDeclined is what the handler returns for an order that fails.
var errDeclined = errors.New("the card was declined")

// ledger is where the orders are booked, by all consumers of this process. A service would have a database here.
type ledger struct {
	run       string
	failEvery int

	mu sync.Mutex
	// booked has how often each order was handled, by its number.
	booked    []int
	distinct  int
	processed int
	failed    map[int]bool
	restarts  int
	// changed is closed and replaced when something was booked.
	changed chan struct{}
}

func newLedger(s settings) *ledger {
	return &ledger{run: s.run, failEvery: s.failEvery, booked: make([]int, s.records), failed: make(map[int]bool), changed: make(chan struct{})}
}

// book handles one order. It is the handler of every consumer.
func (l *ledger) book(_ context.Context, record *kafka.Record) error {
	var o order
	if err := json.Unmarshal(record.Value, &o); err != nil || o.Run != l.run || o.Number < 0 || o.Number >= len(l.booked) {
		return nil // somebody else's record: the topic need not be ours alone
	}
	if l.mustFail(o.Number) {
		if (o.Number/l.failEvery)%2 == 0 {
			panic(fmt.Sprintf("order %d: no room in the warehouse", o.Number))
		}
		return fmt.Errorf("order %d: %w", o.Number, errDeclined)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.processed++
	if l.booked[o.Number]++; l.booked[o.Number] == 1 {
		l.distinct++
	}
	close(l.changed)
	l.changed = make(chan struct{})
	return nil
}

// mustFail tells, once for each order it is true for, that the order fails.
func (l *ledger) mustFail(number int) bool {
	if l.failEvery == 0 || (number+1)%l.failEvery != 0 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	first := !l.failed[number]
	l.failed[number] = true
	return first
}

func (l *ledger) restarted() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.restarts++
}

// counts returns the counters.
func (l *ledger) counts() (processed, distinct, restarts int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.processed, l.distinct, l.restarts
}

// wait returns when all orders are booked. It gives up when ctx ends, a consumer ends, or nothing was booked for stall.
func (l *ledger) wait(ctx context.Context, orders int, ended <-chan error, stall time.Duration) error {
	timer := time.NewTimer(stall)
	defer timer.Stop()
	for {
		l.mu.Lock()
		distinct, changed := l.distinct, l.changed
		l.mu.Unlock()
		if distinct >= orders {
			return nil
		}
		select {
		case <-changed:
			timer.Reset(stall)
		case err := <-ended:
			return fmt.Errorf("a consumer ended: %w", err)
		case <-timer.C:
			return fmt.Errorf("%d of %d orders are handled, and none more for %v", distinct, orders, stall)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// showProgress prints a line twice a second, and a last one when the function it returns is called.
func showProgress(l *ledger, records int) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(500 * time.Millisecond)
		defer ticker.Stop()
		for last := false; ; {
			_, distinct, restarts := l.counts()
			fmt.Fprintf(os.Stderr, "%d of %d orders handled, %d restarts\n", distinct, records, restarts)
			if last {
				return
			}
			select {
			case <-ticker.C:
			case <-done:
				last = true
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}
