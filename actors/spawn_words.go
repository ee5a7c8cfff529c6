package actors

import (
	"slices"
	"sync"

	"github.com/asynkron/protoactor-go/actor"
)

// lastWords are the messages that an actor is to hear before its Stopping. They go to its mailbox as any other, so that they come
// in their turn; but a stop overtakes the mailbox, and what it has overtaken is said from here.
type lastWords struct {
	mu      sync.Mutex
	unheard []any
	// said is what was said from here, and still waits in the mailbox.
	said []any
}

// add notes a message before it is sent. It is a pointer, which tells it from its like.
func (w *lastWords) add(message any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unheard = append(w.unheard, message)
}

// take notes that the mailbox came to a message, and reports whether it is one of the words. There are none in a nil.
func (w *lastWords) take(message any) bool {
	if w == nil {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, list := range []*[]any{&w.unheard, &w.said} {
		if i := slices.Index(*list, message); i >= 0 {
			*list = slices.Delete(*list, i, i+1)
			return true
		}
	}
	return false
}

// rest takes those that the mailbox has not come to, in order.
func (w *lastWords) rest() []any {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	rest := w.unheard
	w.said, w.unheard = append(w.said, rest...), nil
	return rest
}

// sayLastWords runs in Stopping, and says what the stop has overtaken.
func (a *safeActor) sayLastWords(ctx actor.Context) {
	rest := a.words.rest()
	if a.failed {
		return
	}
	for _, message := range rest {
		a.live.enter(message)
		a.run(lastWord{Context: ctx, message: message}, true)
	}
	a.live.enter(ctx.Message())
}

// lastWord is the context of a message that is said in Stopping.
type lastWord struct {
	actor.Context
	message any
}

// Message implements actor.Context.
func (w lastWord) Message() any { return w.message }

// Forward implements actor.Context. What it would forward by itself is the Stopping.
func (w lastWord) Forward(pid *actor.PID) { w.Send(pid, w.message) }
