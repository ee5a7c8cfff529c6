package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// Cases about who may change what a running consumer does.

// typed reports whether a control call ended as one may that many make at once, in whatever state: done, or refused by name.
func typed(err error) bool { return err == nil || typedRefusal(err) }

// typedRefusal reports whether an error says by its type why a control call was not carried out: another has the token, or the
// partition or the record was not here, or not so far.
func typedRefusal(err error) bool {
	for _, as := range []any{
		new(*actors.HeldError), new(*actors.UnassignedError), new(*actors.StateError), new(*actors.OffsetError), new(*actors.SkipError),
		new(*commit.FlushError),
	} {
		if errors.As(err, as) {
			return true
		}
	}
	return errors.Is(err, actors.ErrSought) // an earlier seek that a later one has overtaken
}

// holders counts the tokens that each partition is under, and fails where it is more than one.
func holders(t *testing.T, m *member) {
	under := make(map[kafka.TopicPartition]string)
	for _, token := range m.Stats().Tokens {
		for _, tp := range token.Partitions {
			if other, taken := under[tp]; taken {
				t.Errorf("%s is under the tokens of %s and %s", tp, other, token.Holder)
			}
			under[tp] = token.Holder
		}
	}
}

// crowd counts what many users of one consumer are answered.
type crowd struct {
	t                      *testing.T
	refusals, done, panics atomic.Int64
}

// count takes one answer: done, or refused by a type.
func (c *crowd) count(what string, err error) {
	var held *actors.HeldError
	switch {
	case errors.As(err, &held):
		c.refusals.Add(1)
	case err == nil:
		c.done.Add(1)
	}
	if !typed(err) {
		c.t.Errorf("%s: %v", what, err)
	}
}

// callback uses its token, and the consumer beside it. Its context may end before its time: that ends a call, too.
func (c *crowd) callback(consumer *atomic.Pointer[api.Consumer]) api.PartitionsFunc {
	return func(ctx context.Context, token *api.Token, named []kafka.TopicPartition) error {
		count := func(what string, err error) {
			if cause := context.Cause(ctx); cause == nil || !errors.Is(err, cause) {
				c.count(what, err)
			}
		}
		if m := consumer.Load(); m != nil {
			count("pause in a callback", m.Pause(ctx, named...))
			count("commit in a callback", m.Commit(ctx))
			_, err := m.Token(ctx, "again", named...)
			count("token in a callback", err)
		}
		for _, call := range []func(context.Context, ...kafka.TopicPartition) error{token.Pause, token.Commit, token.Resume} {
			count("callback", call(ctx))
		}
		return nil
	}
}

// call makes the call that it is a user's turn for.
func (c *crowd) call(ctx context.Context, m *member, user, turn int, tp kafka.TopicPartition) {
	name := fmt.Sprint("user ", user)
	switch turn % 8 {
	case 0:
		c.count("pause", m.Pause(ctx, tp))
	case 1:
		c.count("resume", m.Resume(ctx, tp))
	case 2:
		c.count("commit", m.Commit(ctx))
	case 3:
		c.count("seek", m.Seek(ctx, rebalance.StartAtOffset(0), tp))
	case 4:
		token, err := m.TryToken(ctx, name, tp)
		if c.count("try", err); err == nil {
			c.count("pause with it", token.Pause(ctx))
			c.count("resume with it", token.Resume(ctx))
			if err := token.Return(); !typed(err) {
				c.t.Error(err)
			}
		}
	case 5:
		defer func() {
			if recover() != nil {
				c.panics.Add(1)
			}
		}()
		c.count("with", m.WithToken(ctx, name, func(ctx context.Context, token *api.Token) error {
			c.count("commit with it", token.Commit(ctx))
			panic("the holder")
		}, tp))
	case 6:
		c.count("with", m.WithToken(ctx, name, func(ctx context.Context, token *api.Token) error {
			return token.Hand(ctx, "helper", func(ctx context.Context, mine *api.Token) {
				c.count("resume of a helper", mine.Resume(ctx))
			})
		}, tp))
	default:
		c.count("pause all", m.Pause(ctx))
		c.count("resume all", m.Resume(ctx))
	}
}

// ackedLater is a handler whose records are acknowledged by whoever takes them from acks.
func ackedLater(topic, name string, l *ledger, acks chan<- *actors.RecordDelivery) api.Registration {
	return api.HandleAsync(topic, func(ctx context.Context, d *actors.RecordDelivery) {
		l.close(l.open(ctx, name, d.Record()), nil)
		acks <- d
	})
}

// kotlin-kafka#195 and others: a consumer that is touched from everywhere at once, also in its callbacks. Nobody is inside of
// anything together with another, whoever has no token where one is out gets a typed error, and a holder that panics leaves
// nothing behind.
func TestB58_AConsumerMayBeTouchedFromEverywhere(t *testing.T) { everywhere(t, touchedFromEverywhere) }

func touchedFromEverywhere(t *testing.T, b broker) {
	const partitions, users, rounds = 4, 50, 20
	topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
	b.CreateTopic(t, topic, partitions)
	acks, over := make(chan *actors.RecordDelivery, 1<<16), make(chan struct{})
	defer close(over)
	go func() { // so that nobody's drain waits for what the users leave
		for {
			select {
			case d := <-acks:
				_ = d.Ack() // stale after a seek or a revocation: it is counted, and comes again
			case <-over:
				return
			}
		}
	}()
	var consumer atomic.Pointer[api.Consumer]
	all := &crowd{t: t}
	callback := all.callback(&consumer)
	callbacks := api.WithCallbacks(api.Callbacks{
		OnAssigning: callback, OnAssigned: callback, OnRevoking: callback, OnRevoked: callback, OnLost: callback, Timeout: 10 * time.Second,
	})
	m := spawn(t, config(b, group), callbacks, ackedLater(topic, "one", l, acks))
	consumer.Store(m.Consumer)
	settled(t, partitions, m)
	n := fill(t, b, topic, partitions, 100)

	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	var wg sync.WaitGroup
	for user := range users {
		wg.Go(func() {
			for round := range rounds {
				select {
				case d := <-acks:
					_ = d.Ack()
				default:
				}
				all.call(ctx, m, user, user+round, at(topic, int32((user+round)%partitions)))
				holders(t, m)
			}
		})
	}
	for range 2 { // others come and go meanwhile
		other := spawn(t, config(b, group), callbacks, ackedLater(topic, "two", l, acks))
		other.joined(t)
		pause(200 * time.Millisecond)
		other.mustClose(t)
	}
	wg.Wait()
	require.Positive(t, all.done.Load())
	require.Positive(t, all.refusals.Load())
	t.Logf("%d calls done, %d refused, %d holders that panicked", all.done.Load(), all.refusals.Load(), all.panics.Load())

	// Whoever panicked with it has left nothing behind.
	settled(t, partitions, m)
	token, err := m.Token(ctx, "last")
	require.NoError(t, err)
	require.Len(t, token.Partitions(), partitions)
	holders(t, m)
	require.NoError(t, token.Resume(ctx))
	require.NoError(t, token.Return())
	require.NoError(t, m.Resume(ctx))
	n += fill(t, b, topic, partitions, 5)
	eventually(t, patience, "everything is committed", func() bool {
		return l.distinct() == n && assert.ObjectsAreEqual(b.EndOffsets(t, topic), b.Committed(t, group))
	})
	require.Empty(t, m.Stats().Tokens)
	died := 0
	for _, e := range told[event.TokenRevoked](m) { // the others are helpers who were inside when their giver was done
		if errors.Is(e.Err, actors.ErrHolderDied) {
			died++
		}
	}
	require.EqualValues(t, all.panics.Load(), died, "one for each holder that panicked")
	m.mustClose(t)
	l.allHandled(t, b.EndOffsets(t, topic))
}

// A revocation right after the assignment waits for no commit that cannot come.
func TestB58_ARevocationRightAfterTheAssignmentWaitsForNothing(t *testing.T) {
	for _, assignor := range []rebalance.Assignor{rebalance.Range(), rebalance.CooperativeSticky()} {
		t.Run(assignor.Name(), func(t *testing.T) {
			story(t, func(t *testing.T, b *embeddedBroker) {
				b.CreateTopic(t, "orders", 4)
				fill(t, b, "orders", 4, 10)
				var mu sync.Mutex
				var assigned, revoking, revoked time.Time
				c := plain(b)
				c.Assignors = []rebalance.Assignor{assignor}
				var m *member
				started := make(chan struct{})
				note := func(at *time.Time) api.PartitionsFunc {
					return func(context.Context, *api.Token, []kafka.TopicPartition) error {
						mu.Lock()
						defer mu.Unlock()
						*at = time.Now()
						return nil
					}
				}
				handled := 0
				m = spawn(t, c, api.WithDialer(b.Dial), api.WithCallbacks(api.Callbacks{
					OnAssigned: func(context.Context, *api.Token, []kafka.TopicPartition) error {
						mu.Lock()
						first := assigned.IsZero()
						assigned = time.Now()
						mu.Unlock()
						if first {
							close(started)
							time.Sleep(20 * time.Millisecond) // nothing is delivered before it returns
						}
						return nil
					},
					OnRevoking: note(&revoking), OnRevoked: note(&revoked),
				}), api.Handle("orders", func(context.Context, *kafka.Record) error {
					mu.Lock()
					defer mu.Unlock()
					handled++
					return nil
				}))
				<-started
				time.Sleep(10 * time.Millisecond)
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				require.NoError(t, m.Close(ctx))
				require.Less(t, time.Since(start), 200*time.Millisecond)
				mu.Lock()
				defer mu.Unlock()
				require.Less(t, revoked.Sub(assigned), 200*time.Millisecond)
				require.False(t, revoked.Before(revoking))
				require.Zero(t, handled)
				for _, committed := range b.Committed(t, "billing") {
					require.Zero(t, committed, "where it would have begun")
				}
			})
		})
	}
}

// pinned gives the first partition of a topic to the member of the client id "one", and the others to "two" where it is there.
type pinned struct{ rebalance.Assignor }

// Name implements rebalance.Assignor.
func (p pinned) Name() string { return "pinned-" + p.Assignor.Name() }

// Assign implements rebalance.Assignor. Member ids begin with the client id.
func (p pinned) Assign(members []rebalance.AssignorMember, topics map[string]rebalance.TopicInfo) map[string][]kafka.TopicPartition {
	plan, ids := make(map[string][]kafka.TopicPartition), make(map[string]string)
	for _, m := range members {
		name, _, _ := strings.Cut(m.MemberID, "-")
		ids[name], plan[m.MemberID] = m.MemberID, nil
	}
	for topic, info := range topics {
		for partition := range info.Partitions {
			tp := at(topic, partition)
			id, ok := ids["two"]
			if one := ids["one"]; one != "" && (partition == 0 || !ok) {
				id = one
			}
			if !slices.ContainsFunc(members, func(m rebalance.AssignorMember) bool { return m.MemberID != id && slices.Contains(m.Owned, tp) }) {
				plan[id] = append(plan[id], tp)
			}
		}
	}
	return plan
}

// reactor-kafka#305 and others: what the user paused is paused after a rebalance as well; what the consumer paused by itself
// ends with the ownership; and neither is asked of a partition that is not there.
func TestB38_AUsersPauseHoldsOverARebalanceAndAnInternalOneEndsWithTheOwnership(t *testing.T) {
	story(t, func(t *testing.T, b *embeddedBroker) {
		b.CreateTopic(t, "orders", 2)
		zero, one := at("orders", 0), at("orders", 1)
		l, release := newLedger(), make(chan struct{})
		c := plain(b)
		c.ClientID, c.Assignors = "one", []rebalance.Assignor{pinned{rebalance.CooperativeSticky()}}
		c.MaxInTransit, c.ResumeBelow = 50, 25
		m := spawn(t, c, api.WithDialer(b.Dial), api.Handle("orders", l.watch("one", func(_ context.Context, r *kafka.Record) error {
			if r.Partition == 1 && r.Offset == 0 {
				<-release
			}
			return nil
		}), api.Unordered(4)))
		settled(t, 2, m)
		require.NoError(t, m.Pause(t.Context(), zero))
		n := fill(t, b, "orders", 2, 200)
		eventually(t, 10*time.Second, "the second one's window is full", func() bool {
			p, _ := m.partition(one)
			return slices.Contains(p.PauseReasons, "window")
		})
		c.ClientID = "two"
		two := spawn(t, c, api.WithDialer(b.Dial), api.Handle("orders", l.note("two"), api.Unordered(4)))
		eventually(t, 10*time.Second, "it is to be given up", func() bool { p, _ := m.partition(one); return p.State == "REVOKING" })
		close(release)
		settled(t, 2, m, two)
		require.Equal(t, []kafka.TopicPartition{zero}, m.owned())
		var unassigned *actors.UnassignedError
		for _, call := range []func(context.Context, ...kafka.TopicPartition) error{m.Pause, m.Resume} {
			require.ErrorAs(t, call(t.Context(), one), &unassigned)
			require.Equal(t, []kafka.TopicPartition{one}, unassigned.Partitions)
		}
		eventually(t, 10*time.Second, "the other one handles it", func() bool { return len(l.offsets(one)) >= 200 })
		two.mustClose(t)
		settled(t, 2, m)
		n += fill(t, b, "orders", 2, 100)
		eventually(t, 10*time.Second, "it flows again", func() bool { return b.Committed(t, "billing")[one] == 300 })
		p, _ := m.partition(one)
		require.Empty(t, p.PauseReasons, "the window of the old ownership holds nothing up")
		require.Empty(t, l.offsets(zero))

		// The membership is lost, and calls come meanwhile.
		b.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, Group: "billing", Err: kerr.UnknownMemberID, Count: 1})
		refused := 0
		for range 2000 {
			time.Sleep(5 * time.Millisecond)
			for _, call := range []func(context.Context, ...kafka.TopicPartition) error{m.Pause, m.Resume} {
				if err := call(t.Context(), one); err != nil {
					require.True(t, typed(err), "%v", err)
					refused++
				}
			}
		}
		require.Positive(t, refused, "it was lost for a time")
		require.NotEmpty(t, told[event.PartitionsLost](m))
		settled(t, 2, m)
		n += fill(t, b, "orders", 2, 10)
		eventually(t, 10*time.Second, "the second one goes on", func() bool { return b.Committed(t, "billing")[one] == 310 })
		require.Empty(t, l.offsets(zero), "still paused")
		require.NoError(t, m.Resume(t.Context(), zero))
		eventually(t, 10*time.Second, "everything is handled", func() bool { return l.distinct() == n })
		m.mustClose(t)
		require.Equal(t, b.EndOffsets(t, "orders"), b.Committed(t, "billing"))
	})
}
