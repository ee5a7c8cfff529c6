package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// account is what the ledger knows of one account.
type account struct {
	// busy is true while a payment is applied.
	busy     bool
	sequence int
	balance  int64
}

// counts is what the ledger has seen of this run.
type counts struct {
	// processed counts payments that were applied, repeated ones included, distinct those applied at least once.
	processed, distinct int
	// violations counts payments that met a ledger which was not as they must find it, retries those that came again because
	// they had failed.
	violations, retries int
}

// ledger is where the payments are applied. A service would have a database here.
type ledger struct {
	settings

	mu       sync.Mutex
	accounts []account
	// tried and applied have how often each payment was begun and whether it was applied, by its number.
	tried   []int
	applied []bool
	counts  counts
	spent   time.Duration
	// changed is closed and replaced when a payment was applied.
	changed chan struct{}
}

func newLedger(s settings) *ledger {
	return &ledger{
		settings: s, accounts: make([]account, s.accounts), tried: make([]int, s.records), applied: make([]bool, s.records),
		changed: make(chan struct{}),
	}
}

var errBankClosed = errors.New("the bank is closed")

// apply handles one payment. It is called for many accounts at once, for each with one payment at a time.
func (l *ledger) apply(_ context.Context, record *kafka.Record) error {
	var p payment
	if err := json.Unmarshal(record.Value, &p); err != nil || p.Run != l.run || p.Number < 0 || p.Number >= len(l.tried) {
		return nil // somebody else's record: the topic need not be ours alone
	}
	first := l.begin(&p)
	started := time.Now()
	if l.work > 0 {
		time.Sleep(rand.N(l.work))
	}
	fails := first && l.failEvery > 0 && (p.Number+1)%l.failEvery == 0
	l.end(&p, time.Since(started), fails)
	if fails {
		return fmt.Errorf("payment %d: %w", p.Number, errBankClosed)
	}
	return nil
}

// begin enters the account and reports whether the payment is tried for the first time.
func (l *ledger) begin(p *payment) (first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := &l.accounts[p.Account]
	if a.busy {
		l.counts.violations++ // two payments of one account at once
	}
	a.busy = true
	l.tried[p.Number]++
	if first = l.tried[p.Number] == 1; !first && !l.applied[p.Number] {
		l.counts.retries++
	}
	return first
}

// end leaves the account, with the payment applied unless it fails.
func (l *ledger) end(p *payment, took time.Duration, fails bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := &l.accounts[p.Account]
	a.busy = false
	l.spent += took
	if fails {
		return
	}
	l.counts.processed++
	if l.applied[p.Number] {
		return // delivered again, as may happen after a rebalance: a payment is applied once
	}
	a.sequence++
	a.balance += p.Cents
	if a.sequence != p.Sequence || a.balance != p.Balance {
		l.counts.violations++
		a.sequence, a.balance = p.Sequence, p.Balance // one payment in the wrong place is not to count for ever
	}
	l.applied[p.Number] = true
	l.counts.distinct++
	close(l.changed)
	l.changed = make(chan struct{})
}

// seen returns the counters.
func (l *ledger) seen() counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts
}

// worked returns how long the handlers worked, all together.
func (l *ledger) worked() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.spent
}

// wait returns when all payments are applied. It gives up when ctx or the consumer ends, or nothing was applied for stall.
func (l *ledger) wait(ctx context.Context, payments int, ended <-chan struct{}, stall time.Duration) error {
	timer := time.NewTimer(stall)
	defer timer.Stop()
	for {
		l.mu.Lock()
		distinct, changed := l.counts.distinct, l.changed
		l.mu.Unlock()
		if distinct >= payments {
			return nil
		}
		select {
		case <-changed:
			timer.Reset(stall)
		case <-ended:
			return errors.New("the consumer ended before the payments did")
		case <-timer.C:
			return fmt.Errorf("%d of %d payments are applied, and none more for %v", distinct, payments, stall)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
