package stacksim

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/kafka"
)

// actToken: somebody asks a member for its token, has it for a while, works with it, hands it on, and returns it or does not.
const actToken = "token"

// tokenTimeout is how long a token may be out that nobody returns.
const tokenTimeout = 4 * time.Second

// addTokens gives some histories users of tokens. They have randomness of their own, so that the rest of the plan is what it
// was without them.
func (p *plan) addTokens() {
	r := rand.New(rand.NewPCG(p.seed, 0x746f6b))
	if !chance(r, 40) {
		return
	}
	p.tokens = true
	for range 2 + r.IntN(12) {
		a := p.newAction(r, actToken)
		a.lasts = between(r, 0, 3*time.Second)
		p.actions = append(p.actions, a)
	}
}

// useToken is one user of a member's token. It leaves nothing paused.
func (w *world) useToken(p *process, a action) {
	tp := kafka.TopicPartition{Topic: w.plan.topics[a.topic].name, Partition: a.partition}
	r := w.fate("token", p.name, tp, int64(a.at), 0)
	var named []kafka.TopicPartition
	if chance(r, 70) {
		named = append(named, tp)
	}
	ask, limit := p.consumer.TryToken, time.Second
	if chance(r, 60) {
		ask, limit = p.consumer.Token, between(r, 0, 10*time.Second)
	}
	// Its context ends the wait, and the token as well unless somebody stops that.
	ctx, cancel := context.WithCancel(context.Background())
	bound := time.AfterFunc(limit, cancel)
	begun := time.Now()
	token, err := ask(ctx, "user", named...)
	if took := time.Since(begun); took > limit+time.Second {
		w.ledger.violated("TOKEN", "%s answered after %v", p, took)
	}
	w.ledger.note(p.name, "Token", err)
	if err != nil {
		cancel()
		return
	}
	bound.Stop()
	w.keepToken(p, token)
	w.useIt(ctx, p, token, r, a.lasts)
	if chance(r, 70) {
		w.ledger.note(p.name, "Return", token.Return())
	}
	if chance(r, 70) {
		cancel()
	} else {
		time.AfterFunc(time.Minute, cancel) // TokenTimeout ends it
	}
}

// useIt does something with a token: alone, in a call inside of a call, or by somebody whom it is handed to.
func (w *world) useIt(ctx context.Context, p *process, token *api.Token, r *rand.Rand, lasts time.Duration) {
	for range 1 + r.IntN(3) {
		w.oneHolder(p)
		within, cancel := context.WithTimeout(ctx, lasts+time.Second)
		switch r.IntN(4) {
		case 0:
			_ = token.Commit(within)
		case 1:
			_ = token.Within(within, "call", func(ctx context.Context, inner *api.Token) error {
				w.keepToken(p, inner)
				_ = token.Commit(ctx) // refused: the other one is on top
				time.Sleep(between(r, 0, lasts))
				return inner.Commit(ctx)
			})
		case 2:
			pause, panics := between(r, 0, 2*lasts), chance(r, 30)
			_ = token.Hand(within, "helper", func(_ context.Context, mine *api.Token) {
				w.keepToken(p, mine)
				time.Sleep(pause)
				_ = mine.Commit(ctx)
				if panics {
					panic(errScripted)
				}
			})
		default:
			time.Sleep(between(r, 0, lasts))
		}
		cancel()
	}
	w.oneHolder(p)
}

// inCallback has a callback use its token, and the consumer without it.
func (p *process) inCallback(ctx context.Context, token *api.Token, r *rand.Rand) {
	p.w.keepToken(p, token)
	p.w.useIt(ctx, p, token, r, 200*time.Millisecond)
	within, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	begun := time.Now()
	_ = p.consumer.Commit(within)
	_, _ = p.consumer.Token(within, "again")
	if took := time.Since(begun); took > time.Second {
		p.w.ledger.violated("TOKEN", "calls of %s within a callback took %v", p, took)
	}
}

func (w *world) keepToken(p *process, token *api.Token) {
	w.ledger.mu.Lock()
	defer w.ledger.mu.Unlock()
	p.tokens = append(p.tokens, token)
}

// oneHolder demands that no partition of a process is under two tokens.
func (w *world) oneHolder(p *process) {
	holders := make(map[kafka.TopicPartition]string)
	for _, token := range p.consumer.Stats().Tokens {
		for _, tp := range token.Partitions {
			if other, taken := holders[tp]; taken {
				w.ledger.violated("TOKEN", "%s of %s is under the tokens of %s and %s", tp, p, other, token.Holder)
			}
			holders[tp] = token.Holder
		}
	}
}

// checkTokens: none outlives its consumer.
func (w *world) checkTokens() {
	for _, p := range w.processes {
		for _, token := range p.tokens {
			if token.Live() || token.Holder() != "" {
				w.ledger.violated("TOKEN", "that of %s, %q, is alive after its consumer", p, token.Holder())
			}
		}
		w.result.counts.tokens += len(p.tokens)
	}
}
