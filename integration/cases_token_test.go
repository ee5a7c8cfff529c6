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
func typed(err error) bool {
	var held *actors.HeldError
	var unassigned *actors.UnassignedError
	var state *actors.StateError
	var flush *commit.FlushError
	return err == nil || errors.As(err, &held) || errors.As(err, &unassigned) || errors.As(err, &state) || errors.As(err, &flush)
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

// kotlin-kafka#195 and others: a consumer that is touched from everywhere at once, also in its callbacks. Nobody is inside of
// anything together with another, whoever has no token where one is out gets a typed error, and a holder that panics leaves
// nothing behind.
func TestB58_AConsumerMayBeTouchedFromEverywhere(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		const partitions, users, rounds = 4, 50, 20
		topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
		b.CreateTopic(t, topic, partitions)
		acks := make(chan *actors.RecordDelivery, 1<<16)
		register := func(name string) api.Registration {
			return api.HandleAsync(topic, func(ctx context.Context, d *actors.RecordDelivery) {
				r := d.Record()
				l.close(l.open(ctx, name, r), nil)
				acks <- d
			})
		}
		over := make(chan struct{})
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
		var refusals, done, panics atomic.Int64
		count := func(what string, err error) {
			var held *actors.HeldError
			switch {
			case errors.As(err, &held):
				refusals.Add(1)
			case err == nil:
				done.Add(1)
			}
			if !typed(err) {
				t.Errorf("%s: %v", what, err)
			}
		}
		var consumer atomic.Pointer[api.Consumer]
		callback := func(ctx context.Context, token *api.Token, named []kafka.TopicPartition) error {
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
		callbacks := api.WithCallbacks(api.Callbacks{
			OnAssigning: callback, OnAssigned: callback, OnRevoking: callback, OnRevoked: callback, OnLost: callback, Timeout: 10 * time.Second,
		})
		m := spawn(t, config(b, group), callbacks, register("one"))
		consumer.Store(m.Consumer)
		settled(t, partitions, m)
		n := fill(t, b, topic, partitions, 100)

		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		var wg sync.WaitGroup
		for user := range users {
			wg.Go(func() {
				for round := range rounds {
					tp := at(topic, int32((user+round)%partitions))
					select {
					case d := <-acks:
						_ = d.Ack()
					default:
					}
					switch (user + round) % 8 {
					case 0:
						count("pause", m.Pause(ctx, tp))
					case 1:
						count("resume", m.Resume(ctx, tp))
					case 2:
						count("commit", m.Commit(ctx))
					case 3:
						count("seek", m.Seek(ctx, rebalance.StartAtOffset(0), tp))
					case 4:
						token, err := m.TryToken(ctx, fmt.Sprint("user ", user), tp)
						count("try", err)
						if err == nil {
							count("pause with it", token.Pause(ctx))
							count("resume with it", token.Resume(ctx))
							if err := token.Return(); !typed(err) {
								t.Error(err)
							}
						}
					case 5:
						func() {
							defer func() {
								if recover() != nil {
									panics.Add(1)
								}
							}()
							count("with", m.WithToken(ctx, fmt.Sprint("user ", user), func(ctx context.Context, token *api.Token) error {
								count("commit with it", token.Commit(ctx))
								panic("the holder")
							}, tp))
						}()
					case 6:
						count("with", m.WithToken(ctx, fmt.Sprint("user ", user), func(ctx context.Context, token *api.Token) error {
							return token.Hand(ctx, "helper", func(ctx context.Context, mine *api.Token) {
								count("resume of a helper", mine.Resume(ctx))
							})
						}, tp))
					default:
						count("pause all", m.Pause(ctx))
						count("resume all", m.Resume(ctx))
					}
					holders(t, m)
				}
			})
		}
		for range 2 { // others come and go meanwhile
			other := spawn(t, config(b, group), callbacks, register("two"))
			other.joined(t)
			pause(200 * time.Millisecond)
			other.mustClose(t)
		}
		wg.Wait()
		require.Positive(t, done.Load())
		require.Positive(t, refusals.Load())
		t.Logf("%d calls done, %d refused, %d holders that panicked", done.Load(), refusals.Load(), panics.Load())

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
			committed := b.Committed(t, group)
			for tp, end := range b.EndOffsets(t, topic) {
				if committed[tp] != end {
					return false
				}
			}
			return l.distinct() == n
		})
		require.Empty(t, m.Stats().Tokens)
		died := 0
		for _, e := range told[event.TokenRevoked](m) { // the others are helpers who were inside when their giver was done
			if errors.Is(e.Err, actors.ErrHolderDied) {
				died++
			}
		}
		require.EqualValues(t, panics.Load(), died, "one for each holder that panicked")
		m.mustClose(t)
		l.allHandled(t, b.EndOffsets(t, topic))
	})
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
