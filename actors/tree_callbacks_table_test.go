package actors

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// callbackCase is one way in which a callback may go.
type callbackCase struct {
	// does is what it does; never blocks for good. It returns what the callback returns.
	does func(c *callbackCell, ctx context.Context, token *Token, partitions []kafka.TopicPartition) error
	// fails is what the failure wraps, nil when there is none; held is true when it takes all of the callback's time.
	fails error
	held  bool
}

var errCallback = errors.New("the callback says no")

// callbackCases are the failures of the table.
func callbackCases() map[string]callbackCase {
	return map[string]callbackCase{
		"nothing": {does: func(*callbackCell, context.Context, *Token, []kafka.TopicPartition) error { return nil }},
		"error": {fails: errCallback, does: func(*callbackCell, context.Context, *Token, []kafka.TopicPartition) error {
			return errCallback
		}},
		"panic": {fails: errCallback, does: func(*callbackCell, context.Context, *Token, []kafka.TopicPartition) error {
			panic(errCallback)
		}},
		"goexit": {fails: errGoexit, does: func(*callbackCell, context.Context, *Token, []kafka.TopicPartition) error {
			goexit()
			return nil
		}},
		"slow beyond the deadline": {fails: ErrCallbackOverdue, held: true, does: func(_ *callbackCell, ctx context.Context, _ *Token, _ []kafka.TopicPartition) error {
			<-ctx.Done()
			time.Sleep(time.Second)
			return nil
		}},
		"heeds the deadline": {fails: ErrCallbackOverdue, held: true, does: func(_ *callbackCell, ctx context.Context, _ *Token, _ []kafka.TopicPartition) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}},
		"never returns": {fails: ErrCallbackOverdue, held: true, does: func(c *callbackCell, _ context.Context, _ *Token, _ []kafka.TopicPartition) error {
			<-c.never
			return nil
		}},
		"calls back with its token": {does: func(c *callbackCell, ctx context.Context, token *Token, _ []kafka.TopicPartition) error {
			for word, err := range map[string]error{"pause": token.Pause(ctx), "resume": token.Resume(ctx), "commit": token.Commit(ctx)} {
				if err != nil && !errors.Is(err, ErrNotAllowed) {
					c.w.t.Errorf("%s: %v", word, err)
				}
			}
			return nil
		}},
		"calls the consumer without it": {does: func(c *callbackCell, ctx context.Context, token *Token, partitions []kafka.TopicPartition) error {
			for range 3 {
				var held *HeldError
				var unassigned *UnassignedError
				err := token.tree.Pause(ctx, partitions)
				if !errors.As(err, &held) && !errors.As(err, &unassigned) {
					c.w.t.Errorf("pause without the token: %v", err)
				}
				_, err = token.tree.Token(ctx, "again", true, partitions)
				if !errors.Is(err, ErrSelfWait) {
					c.w.t.Errorf("token within the callback: %v", err)
				}
			}
			return nil
		}},
		"hands over": {does: func(c *callbackCell, ctx context.Context, token *Token, _ []kafka.TopicPartition) error {
			return token.Hand(ctx, "helper", func(_ context.Context, mine *Token) {
				c.keep(mine)
				<-c.never
			})
		}},
		"hands over to who is inside": {fails: ErrTokenInside, does: func(c *callbackCell, ctx context.Context, token *Token, _ []kafka.TopicPartition) error {
			entered := make(chan struct{})
			defer func() { <-entered }()
			return token.Hand(ctx, "helper", func(ctx context.Context, mine *Token) {
				_ = mine.Within(ctx, "work", func(_ context.Context, inner *Token) error {
					c.keep(mine, inner)
					close(entered)
					<-c.never
					return nil
				})
			})
		}},
	}
}

// callbackCell is one cell of the table at work.
type callbackCell struct {
	w     *treeWorld
	never chan struct{}

	mu     sync.Mutex
	armed  string
	tokens []*Token
	// moments are when records of a partition were handled, commits when its commits arrived, beats when heartbeats did.
	moments, commits map[kafka.TopicPartition][]time.Time
	beats            []time.Time
	// begun is when the callback was called that the cell is about.
	begun time.Time
}

func (c *callbackCell) keep(tokens ...*Token) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tokens = append(c.tokens, tokens...)
}

func (c *callbackCell) callback(name string, cell callbackCase) PartitionsFunc {
	return func(ctx context.Context, token *Token, partitions []kafka.TopicPartition) error {
		c.mu.Lock()
		mine := c.armed == name
		if mine {
			c.armed, c.begun = "", time.Now()
		}
		c.mu.Unlock()
		if !mine {
			return nil
		}
		c.keep(token)
		return cell.does(c, ctx, token, partitions)
	}
}

func (c *callbackCell) kept() []*Token {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.tokens)
}

func (c *callbackCell) seen(moments map[kafka.TopicPartition][]time.Time, tp kafka.TopicPartition) []time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(moments[tp])
}

func (c *callbackCell) heartbeats() []time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.beats)
}

// idle reports whether the callback was not called yet.
func (c *callbackCell) idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.begun.IsZero()
}

func (c *callbackCell) arm(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = name
}

// watch notes what happens, and has records appear in every partition ten times a second until never is closed.
func (c *callbackCell) watch(partitions int32) {
	w := c.w
	c.moments, c.commits = make(map[kafka.TopicPartition][]time.Time), make(map[kafka.TopicPartition][]time.Time)
	w.setHandle(func(_ context.Context, r *kafka.Record) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.moments[r.TopicPartition()] = append(c.moments[r.TopicPartition()], time.Now())
		return nil
	})
	w.c.hook("Heartbeat", func(context.Context) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.beats = append(c.beats, time.Now())
		return nil
	})
	w.c.with(func() {
		w.c.onCommit = func(_ context.Context, round *CommitRound) (map[kafka.TopicPartition]error, error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			for _, o := range round.Round().Offsets {
				c.commits[o.TopicPartition] = append(c.commits[o.TopicPartition], time.Now())
			}
			return nil, nil
		}
	})
	go func() {
		ticker := time.NewTicker(100 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-c.never:
				return
			case <-ticker.C:
				for p := range partitions {
					w.c.produce(at(p), 1)
				}
			}
		}
	}()
}

// longest is the longest time without one of the moments between from and to.
func longest(moments []time.Time, from, to time.Time) time.Duration {
	most, last := time.Duration(0), from
	for _, at := range append(slices.Clone(moments), to) {
		if at.Before(from) || at.After(to) {
			continue
		}
		most = max(most, at.Sub(last))
		last = at
	}
	return most
}

// owned returns the partitions owned now.
func (w *treeWorld) owned() (out []kafka.TopicPartition) {
	for _, p := range w.tree.Stats().Partitions {
		out = append(out, p.TopicPartition)
	}
	return out
}

// callbackTimes are those of the table's tree.
const (
	cellTimeout   = 3 * time.Second
	cellRebalance = 20 * time.Second
)

// The table: every callback, every way in which it may go, and both policies, under the cooperative protocol while partitions
// move and others stay.
func TestCallbacks_WhateverOneDoesTheRestOfTheConsumerGoesOnAndTheNextStateComesInTime(t *testing.T) {
	for _, name := range []string{"OnAssigning", "OnAssigned", "OnRevoking", "OnRevoked", "OnLost"} {
		for what, cell := range callbackCases() {
			for _, strict := range []bool{false, true} {
				title := name + "/" + what + "/goes on"
				if strict {
					title = name + "/" + what + "/strict"
				}
				t.Run(title, func(t *testing.T) {
					inTree(t, func(w *treeWorld) {
						c := &callbackCell{w: w, never: make(chan struct{})}
						defer close(c.never)
						c.run(name, cell, strict)
					})
				})
			}
		}
	}
}

// run brings the member to the callback and looks at what comes of it.
func (c *callbackCell) run(name string, cell callbackCase, strict bool) {
	const partitions = 4
	w, t := c.w, c.w.t
	w.c.topic("orders", partitions, 5)
	w.settings.Assignors = []rebalance.Assignor{rebalance.CooperativeSticky()}
	w.settings.DrainTimeout, w.settings.RebalanceTimeout = cellTimeout, cellRebalance
	w.settings.Callbacks = Callbacks{
		Assigning: c.callback("OnAssigning", cell), Assigned: c.callback("OnAssigned", cell), Revoking: c.callback("OnRevoking", cell),
		Revoked: c.callback("OnRevoked", cell), Lost: c.callback("OnLost", cell), Timeout: cellTimeout, Strict: strict,
	}
	comes := name == "OnAssigning" || name == "OnAssigned"
	w.c.with(func() { w.c.ghost = comes })
	c.watch(partitions)
	w.join()
	w.sleep(4 * time.Second)
	before := w.owned()
	assert.Len(t, before, map[bool]int{true: 2, false: 4}[comes])
	normal := make(map[kafka.TopicPartition][2]time.Duration)
	for _, tp := range before {
		from, to := time.Now().Add(-3*time.Second), time.Now()
		normal[tp] = [2]time.Duration{longest(c.seen(c.moments, tp), from, to), longest(c.seen(c.commits, tp), from, to)}
	}

	c.arm(name)
	start := time.Now()
	if name == "OnLost" {
		w.c.expel()
	} else {
		w.c.rival(!comes)
	}
	// A heartbeat at most until the member knows, the callback, the next round of a cooperative rebalance.
	bound := 4 * time.Second
	if cell.held {
		bound += cellTimeout
		if name == "OnRevoked" {
			bound = cellRebalance
		}
	}
	if strict && cell.fails != nil {
		c.endsWith(name, cell, start.Add(bound))
		return
	}
	want := map[bool]int{true: 4, false: 2}[comes || name == "OnLost"]
	flows := func() bool {
		return w.state() == "ASSIGNED" && len(w.owned()) == want && !slices.ContainsFunc(w.owned(), func(tp kafka.TopicPartition) bool {
			moments := c.seen(c.moments, tp)
			return len(moments) == 0 || time.Since(moments[len(moments)-1]) > 200*time.Millisecond
		})
	}
	for w.sleep(50 * time.Millisecond); time.Since(start) < bound && (c.idle() || !flows()); {
		w.sleep(50 * time.Millisecond)
	}
	took := time.Since(start)
	assert.False(t, c.idle(), "it was called")
	assert.Less(t, took, bound, "the next state: %s, %v", w.state(), w.owned())
	var kept []kafka.TopicPartition // a loss leaves none
	switch {
	case comes:
		kept = before
	case name != "OnLost":
		kept = w.owned()
	}
	w.sleep(2 * time.Second)
	end := time.Now()
	for _, tp := range kept {
		assert.LessOrEqual(t, longest(c.seen(c.moments, tp), start, end), normal[tp][0]+100*time.Millisecond, "records of %s go on", tp)
		// A round that goes out at the very moment that the committer's key is changed goes with the next one.
		assert.LessOrEqual(t, longest(c.seen(c.commits, tp), start, end), 2*normal[tp][1]+100*time.Millisecond, "commits of %s go on", tp)
	}
	assert.LessOrEqual(t, longest(c.heartbeats(), start, end), w.settings.HeartbeatInterval+200*time.Millisecond, "heartbeats go on")
	c.told(name, cell)
	for _, token := range c.kept() {
		dead(t, token)
	}
	assert.NoError(t, w.tree.Err())
	w.oneHolder()
}

// told demands the event of a failure, and of nothing else.
func (c *callbackCell) told(name string, cell callbackCase) {
	t := c.w.t
	failed := eventsOf[event.CallbackFailed](c.w)
	if cell.fails == nil {
		assert.Empty(t, failed)
		assert.Empty(t, eventsOf[event.TokenRevoked](c.w))
		return
	}
	if assert.Len(t, failed, 1) {
		assert.Equal(t, name, failed[0].Callback)
		assert.ErrorIs(t, failed[0].Err, cell.fails)
		assert.NotEmpty(t, failed[0].Partitions)
	}
}

// endsWith demands that the consumer ends with the failure, drained and committed.
func (c *callbackCell) endsWith(name string, cell callbackCase, by time.Time) {
	w, t := c.w, c.w.t
	select {
	case <-w.tree.Done():
	case <-time.After(time.Until(by) + 2*time.Second):
		assert.Fail(t, "it does not end", "%s, %v", w.state(), w.owned())
		return
	}
	assert.ErrorIs(t, w.tree.Err(), cell.fails)
	assert.ErrorContains(t, w.tree.Err(), name)
	for p := range int32(4) {
		handled := w.offsets(at(p))
		switch committed := w.c.committedAt(at(p)); {
		case name == "OnLost" && len(handled) > 0: // what was under way then comes again
			assert.LessOrEqual(t, committed, slices.Max(handled)+1)
		case len(handled) > 0:
			assert.Equal(t, slices.Max(handled)+1, committed, "what was finished of %d is committed", p)
		}
	}
	c.told(name, cell)
	for _, token := range c.kept() {
		dead(t, token)
	}
}
