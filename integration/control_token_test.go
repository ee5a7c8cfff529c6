package integration

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// tokenReceiver is a handler's actor that acknowledges everything, tells who it is, and operates with a token that it is handed.
type tokenReceiver struct {
	self  chan<- *actor.PID
	used  chan<- error
	total *atomic.Int64
}

func (r *tokenReceiver) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *actors.Deliver:
		select {
		case r.self <- ctx.Self():
		default:
		}
		for _, record := range m.Records() {
			if m.Ack(record.Offset) == nil {
				r.total.Add(1)
			}
		}
	case *actors.TokenHanded:
		go func() { // a handler's actor does not wait for its own partition
			background, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			r.used <- errors.Join(m.Token.Accept(), m.Token.Pause(background), m.Token.Resume(background), m.Token.Commit(background), m.Token.Return())
		}()
	}
}

// oneShots are the calls that change something about a partition, without a token.
func (m *member) oneShots(ctx context.Context, tp kafka.TopicPartition) map[string]func() error {
	return map[string]func() error{
		"pause":  func() error { return m.Pause(ctx, tp) },
		"resume": func() error { return m.Resume(ctx, tp) },
		"seek":   func() error { return m.Seek(ctx, rebalance.StartAtOffset(0), tp) },
		"skip":   func() error { return m.Skip(ctx, tp, 0, "a test") },
		"commit": func() error { return m.Commit(ctx, tp) },
		"commit async": func() error {
			future := m.CommitAsync(ctx, tp)
			<-future.Done()
			return future.Err()
		},
		"commit offsets": func() error { return m.CommitOffsets(ctx, kafka.OffsetAndMetadata{TopicPartition: tp}) },
		"try token": func() error {
			_, err := m.TryToken(ctx, "another", tp)
			return err
		},
	}
}

// refusedAs demands a *actors.HeldError for a reason.
func refusedAs(t *testing.T, reason, err error, what string) {
	t.Helper()
	require.ErrorAs(t, err, new(*actors.HeldError), what)
	require.ErrorIs(t, err, reason, what)
}

// tokensAreExclusive takes a token, has others refused, hands it on to a goroutine and to an actor, and has a rebalance take a
// part of it away.
func tokensAreExclusive(t *testing.T, b broker) {
	topic, group := unique(t, "topic"), unique(t, "group")
	b.CreateTopic(t, topic, 3)
	n := fill(t, b, topic, 3, 10)
	self, used, total := make(chan *actor.PID, 1), make(chan error, 1), new(atomic.Int64)
	register := api.HandleActor(topic, func(kafka.TopicPartition) actor.Actor {
		return &tokenReceiver{self: self, used: used, total: total}
	})
	m := spawn(t, config(b, group), register)
	settled(t, 3, m)
	ctx := requestContext(t)
	token, err := m.Token(ctx, "audit", tps(topic, 0, 1)...)
	require.NoError(t, err)
	require.Equal(t, tps(topic, 0, 1), token.Partitions())
	require.Equal(t, "audit", m.Stats().Tokens[0].Operation)
	for what, call := range m.oneShots(ctx, at(topic, 1)) {
		var held *actors.HeldError
		require.ErrorAs(t, call(), &held, what)
		require.ErrorIs(t, held, actors.ErrTokenHeld, what)
		require.Equal(t, token.Holder(), held.Holder, what)
		require.Equal(t, at(topic, 1), held.TopicPartition, what)
	}
	require.NoError(t, m.Pause(ctx, at(topic, 2)), "nobody has a token over it")
	require.NoError(t, m.Resume(ctx, at(topic, 2)))
	lags, err := m.Lag(ctx)
	require.NoError(t, err, "who only reads needs no token")
	require.Len(t, lags, 3)
	eventually(t, patience, "nor do the consumer's own commits", func() bool {
		return total.Load() == int64(n) && b.Committed(t, group)[at(topic, 0)] == 10
	})

	require.NoError(t, token.Pause(ctx, at(topic, 0)))
	require.NoError(t, token.Seek(ctx, rebalance.StartAtOffset(4), at(topic, 0)))
	require.NoError(t, token.Resume(ctx))
	eventually(t, patience, "it goes on where the token said", func() bool { return total.Load() == int64(n+6) })
	require.NoError(t, token.Commit(ctx))
	require.NoError(t, token.CommitOffsets(ctx, kafka.OffsetAndMetadata{TopicPartition: at(topic, 1), Offset: 8}))
	require.EqualValues(t, 8, b.Committed(t, group)[at(topic, 1)])
	require.ErrorAs(t, token.Skip(ctx, at(topic, 0), 2, "a test"), new(*actors.SkipError))
	refusedAs(t, actors.ErrNotCovered, token.Pause(ctx, at(topic, 2)), "the other partition")
	require.NoError(t, token.Within(ctx, "inside", func(_ context.Context, inner *api.Token) error {
		refusedAs(t, actors.ErrTokenHeld, token.Commit(ctx), "the one below")
		return inner.Commit(ctx)
	}))

	// A goroutine has it, then an actor, then the next in line.
	next := make(chan *api.Token, 1)
	go func() {
		token, _ := m.Token(ctx, "next", at(topic, 1))
		next <- token
	}()
	begin, done := make(chan struct{}), make(chan error, 1)
	require.NoError(t, token.Hand(ctx, "helper", func(ctx context.Context, mine *api.Token) {
		<-begin
		done <- errors.Join(mine.Commit(ctx), mine.HandTo(receive(t, self)))
	}))
	refusedAs(t, actors.ErrTokenHanded, token.Commit(ctx), "the giver")
	close(begin)
	require.NoError(t, receive(t, done))
	require.NoError(t, receive(t, used))
	token = receive(t, next)
	require.NotNil(t, token)
	require.NoError(t, token.Commit(ctx))
	require.NoError(t, token.Return())
	refusedAs(t, actors.ErrTokenDead, token.Commit(ctx), "one that was returned")

	// A rebalance takes what it gives away; what stays is under the token as before.
	require.NoError(t, m.WithToken(ctx, "through a rebalance", func(ctx context.Context, token *api.Token) error {
		two := spawn(t, config(b, group), register)
		settled(t, 3, m, two)
		require.Equal(t, m.owned(), token.Partitions())
		require.NoError(t, token.Commit(ctx))
		require.ErrorAs(t, token.Commit(ctx, two.owned()[0]), new(*actors.UnassignedError), "what went away")
		two.mustClose(t)
		settled(t, 3, m)
		require.Less(t, len(token.Partitions()), 3, "what comes is not in it")
		return nil
	}))
	require.NoError(t, m.Pause(ctx))
	require.NoError(t, m.Resume(ctx))
	require.Empty(t, m.Stats().Tokens)
	m.mustClose(t)
	_, err = m.Token(ctx, "late")
	require.ErrorIs(t, err, actors.ErrClosing)
}

// callbackLog is what the tokens of callbacks answered, by callback and call.
type callbackLog struct {
	mu  sync.Mutex
	got map[string]map[string]error
}

// note runs every call with a callback's token.
func (l *callbackLog) note(name string, calls func(ctx context.Context, token *api.Token, tp kafka.TopicPartition) map[string]error) api.PartitionsFunc {
	return func(ctx context.Context, token *api.Token, named []kafka.TopicPartition) error {
		if len(named) == 0 {
			return nil
		}
		got := calls(ctx, token, named[0])
		_, got["position"] = token.Position(ctx)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.got[name] = got
		return nil
	}
}

// callbacksHaveTheirTokens: what the callbacks of a rebalance may do with their tokens, and what becomes of it.
func callbacksHaveTheirTokens(t *testing.T, b broker) {
	const partitions = 4
	topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
	b.CreateTopic(t, topic, partitions)
	fill(t, b, topic, partitions, 10)
	var consumer atomic.Pointer[api.Consumer]
	log := &callbackLog{got: make(map[string]map[string]error)}
	first := new(atomic.Bool)
	first.Store(true)
	m := spawn(t, config(b, group), api.Handle(topic, l.note("one")), api.WithCallbacks(api.Callbacks{
		OnAssigning: log.note("OnAssigning", func(ctx context.Context, token *api.Token, _ kafka.TopicPartition) map[string]error {
			got := map[string]error{"pause": token.Pause(ctx), "resume": token.Resume(ctx), "commit": token.Commit(ctx)}
			if first.Load() {
				got["seek"] = token.Seek(ctx, rebalance.StartAtOffset(5))
			}
			return got
		}),
		OnAssigned: log.note("OnAssigned", func(ctx context.Context, token *api.Token, _ kafka.TopicPartition) map[string]error {
			return map[string]error{"pause": token.Pause(ctx), "resume": token.Resume(ctx), "commit": token.Commit(ctx)}
		}),
		OnRevoking: log.note("OnRevoking", func(ctx context.Context, token *api.Token, tp kafka.TopicPartition) map[string]error {
			if !first.Swap(false) {
				return map[string]error{}
			}
			offsets := make([]kafka.OffsetAndMetadata, 0, partitions)
			for _, tp := range token.Partitions() {
				offsets = append(offsets, kafka.OffsetAndMetadata{TopicPartition: tp, Offset: 8, Metadata: "given up"})
			}
			return map[string]error{
				"pause": token.Pause(ctx), "seek": token.Seek(ctx, rebalance.StartAtOffset(0)), "commit offsets": token.CommitOffsets(ctx, offsets...),
				"one-shot": consumer.Load().Commit(ctx, tp),
			}
		}),
		OnRevoked: log.note("OnRevoked", func(ctx context.Context, token *api.Token, _ kafka.TopicPartition) map[string]error {
			return map[string]error{"pause": token.Pause(ctx), "commit": token.Commit(ctx)}
		}),
	}))
	consumer.Store(m.Consumer)
	m.allHandledIn(t, patience, l, partitions*5)
	eventually(t, patience, "all is committed", func() bool {
		committed := b.Committed(t, group)
		return !slices.ContainsFunc(tps(topic, 0, 1, 2, 3), func(tp kafka.TopicPartition) bool { return committed[tp] != 10 })
	})
	took := newLedger()
	two := spawn(t, config(b, group), api.Handle(topic, took.note("two")))
	settled(t, partitions, m, two)
	given := two.owned()
	two.allHandledIn(t, patience, took, 2*len(given))
	for _, tp := range given {
		require.Equal(t, []int64{8, 9}, took.offsets(tp), "the next owner begins at what OnRevoking committed")
	}
	log.mu.Lock()
	for callback, want := range map[string]map[string]error{
		"OnAssigning": {"pause": nil, "resume": nil, "seek": nil, "commit": actors.ErrNotAllowed},
		"OnAssigned":  {"pause": nil, "resume": nil, "commit": nil, "position": nil},
		"OnRevoking": {
			"pause": actors.ErrNotAllowed, "seek": actors.ErrNotAllowed, "commit offsets": nil, "one-shot": actors.ErrTokenHeld, "position": nil,
		},
		"OnRevoked": {"pause": actors.ErrNotAllowed, "commit": actors.ErrNotAllowed, "position": nil},
	} {
		require.Contains(t, log.got, callback)
		for call, reason := range want {
			require.ErrorIs(t, log.got[callback][call], reason, "%s: %s", callback, call)
		}
	}
	log.mu.Unlock()
	two.mustClose(t)
	settled(t, partitions, m)
	fill(t, b, topic, partitions, 5)
	m.allHandledIn(t, patience, l, partitions*10)
	m.mustClose(t)
	require.Equal(t, b.EndOffsets(t, topic), b.Committed(t, group))
	require.Empty(t, m.Stats().Tokens)
}
