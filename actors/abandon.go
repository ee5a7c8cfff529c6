package actors

import (
	"context"
	"errors"
	"time"
)

// ErrAbandoned is the cause of a CloseError after Abandon: handlers were not waited for.
var ErrAbandoned = errors.New("troupe: the consumer was abandoned")

// StartAbandon begins to leave without waiting for handlers and returns at once. A close that is draining drains no longer.
// Only the first call has an effect.
func (t *Tree) StartAbandon(deadline time.Time) {
	t.abandoning.Do(func() {
		t.mu.Lock()
		t.hurried = true
		t.mu.Unlock()
		t.StartClose(deadline)
		t.mu.Lock()
		if deadline.Before(t.deadline) {
			t.deadline, t.leaveBy = deadline, leaveBy(time.Now(), deadline)
		}
		deadline, leave := t.deadline, t.leaveBy
		t.mu.Unlock()
		t.shared.sys.root.Send(t.rootPID, &shutdown{drainUntil: time.Now(), deadline: leave})
		go t.endBy(deadline)
	})
}

// leaveBy is when leaving has to be done for a close to be in time, with a little to spare.
func leaveBy(now, deadline time.Time) time.Time {
	return deadline.Add(-min(max(deadline.Sub(now), 0)/10, 500*time.Millisecond))
}

// endBy stops everything at the deadline, which may be earlier than that of the close that it hurries.
func (t *Tree) endBy(deadline time.Time) {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-t.done:
	case <-timer.C:
		t.abandon()
	}
}

// Abandon closes the tree without waiting for handlers: their contexts end at once, what is finished is committed, the member
// leaves. It takes no longer than ctx and CloseTimeout allow. For the rest see Close.
func (t *Tree) Abandon(ctx context.Context) error {
	deadline := t.closeBy(ctx)
	t.StartAbandon(deadline)
	return t.awaitClose(ctx, deadline)
}
