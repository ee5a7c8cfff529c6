package actors

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

func TestTree_WhatFailedBelowATruncationComesAgain(t *testing.T) {
	for _, order := range []Order{OrderPartition, OrderKey} {
		inTree(t, func(w *treeWorld) {
			w.c.topic("orders", 1, 10)
			w.settings.Registrations[0].Order, w.settings.Registrations[0].Workers = order, 2
			var broken atomic.Bool
			broken.Store(true)
			w.setHandle(func(_ context.Context, r *kafka.Record) error {
				if r.Offset == 3 && broken.Load() {
					return errors.New("not yet")
				}
				return nil
			})
			w.start()
			w.sleep(time.Second)
			w.diverge(at(0), 4)
			w.c.produce(at(0), 3)
			w.sleep(3 * time.Second)
			broken.Store(false)
			w.sleep(2 * time.Minute)
			assert.Subset(t, w.offsets(at(0)), upTo(0, 7))
			assert.Equal(t, int64(7), w.c.committedAt(at(0)))
		})
	}
}

// Epoch 0 beside a commit that another client made says nothing; beside one of ours it is the epoch of what was read.
func TestTree_ACommitOfOursUnderEpochZeroShowsATruncation(t *testing.T) {
	for _, ours := range []bool{true, false} {
		inTree(t, func(w *treeWorld) {
			w.c.topic("orders", 1, 20)
			committed := CommittedOffset{Offset: 20, LeaderEpoch: 0}
			want := upTo(20, 40)
			if ours {
				committed.Metadata, want = "troupe topic "+w.c.topics["orders"].id.String(), upTo(12, 40)
			}
			w.c.with(func() {
				w.c.committed[at(0)] = committed
				w.c.log(at(0)).epoch = 0
			})
			w.diverge(at(0), 12)
			w.c.produce(at(0), 28)
			w.start()
			w.sleep(3 * time.Second)
			assert.Equal(t, want, w.offsets(at(0)))
		})
	}
}

// The metadata that this member has may be older than the commit that it reads.
func TestTree_ACommitOfATopicThatIsNewerThanOurMetadataIsNotOverwritten(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 20)
		newer := kafka.TopicID{7, 7}
		w.c.with(func() {
			w.c.committed[at(0)] = CommittedOffset{Offset: 15, LeaderEpoch: 1, Metadata: "troupe topic " + newer.String()}
		})
		w.c.hook("OffsetFetch", func(context.Context) error { // the topic was made anew after the metadata was read
			w.c.with(func() { w.c.topics["orders"].id = newer })
			w.c.hook("Metadata", func(context.Context) error { time.Sleep(2 * time.Second); return nil })
			return nil
		})
		w.start()
		w.sleep(10 * time.Second)
		assert.NotContains(t, w.c.lines(), "commit orders-0 0")
		assert.Equal(t, upTo(15, 20), w.offsets(at(0)))
		assert.Equal(t, int64(20), w.c.committedAt(at(0)))
	})
}

func TestTree_TheCommitFollowsTheStartOfALogThatHasNothingLeft(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 20)
		release := make(chan struct{})
		w.setHandle(func(_ context.Context, r *kafka.Record) error {
			if r.Offset == 2 {
				<-release
			}
			time.Sleep(200 * time.Millisecond) // the look-up is answered before the last of what was fetched is delivered
			return nil
		})
		w.c.batch, w.c.chunkBatches = 5, 1
		w.start()
		w.sleep(time.Second)
		w.c.with(func() {
			l := w.c.log(at(0))
			l.start, l.offsets = 20, nil
		})
		close(release)
		w.sleep(10 * time.Second)
		assert.Equal(t, upTo(0, 10), w.offsets(at(0)))
		assert.Equal(t, int64(20), w.c.committedAt(at(0)))
	})
}

func TestAnOffsetThatIsFoundAfterThePartitionWasLetGoIsStale(t *testing.T) {
	t.Parallel()
	p := &partition{shared: &shared{board: &board{}}, machine: rebalance.NewPartition(rebalance.Grant{TopicPartition: at(0), Epoch: 1})}
	p.intake.reset, p.intake.lookupID = newResetLookup(rebalance.StartFromReset{Timestamp: rebalance.TimestampEarliest}), 1
	if _, err := p.machine.Step(time.Now(), rebalance.DrainRequested{}); err != nil {
		t.Fatal(err)
	}
	p.offsetFound(nil, &offsetFound{id: 1, answer: OffsetAnswer{Offset: 5}})
	assert.Equal(t, uint64(1), p.shared.board.staleMessages.Load())
}
