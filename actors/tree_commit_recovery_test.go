package actors

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/kafka"
)

func TestTree_ATruncationBelowWhatWasFinishedDoesNotStopCommitsBehindASetBack(t *testing.T) {
	for set, want := range map[int64]int64{4: 4, 8: 6} {
		inTree(t, func(w *treeWorld) {
			w.c.topic("orders", 1, 10)
			w.start()
			w.sleep(3 * time.Second)
			require.NoError(w.t, w.tree.CommitOffsets(w.t.Context(), []kafka.OffsetAndMetadata{offsetOf(0, set, "text")}))
			w.diverge(at(0), 6)
			w.sleep(3 * time.Second)
			assert.Equal(w.t, want, w.c.committedAt(at(0)))
			w.c.produce(at(0), 2)
			w.sleep(3 * time.Second)
			assert.Equal(w.t, int64(8), w.c.committedAt(at(0)))
			assert.Empty(w.t, w.c.userText(w.t, at(0)))
			assert.Equal(w.t, append(upTo(0, 10), 6, 7), w.offsets(at(0)))
		})
	}
}

func TestTree_ACommitterThatDiesIsToldAgainWhatTheUserCommitted(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		t := w.t
		w.c.topic("orders", 2, 10)
		w.start()
		w.sleep(3 * time.Second)
		w.c.hook("OffsetCommit", func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		})
		f := w.tree.CommitOffsetsAsync(t.Context(), []kafka.OffsetAndMetadata{offsetOf(0, 4, "four"), offsetOf(1, 10, "ten")})
		w.sleep(time.Second)
		w.c.hook("OffsetCommit", nil)
		w.kill(committerKey)
		require.NoError(t, done(t, f))
		w.sleep(time.Minute)
		assert.Equal(t, int64(4), w.c.committedAt(at(0)))
		assert.Equal(t, int64(10), w.c.committedAt(at(1)))
		assert.Equal(t, "ten", w.c.userText(t, at(1)))
		w.c.produce(at(1), 1)
		w.sleep(3 * time.Second)
		assert.Equal(t, int64(11), w.c.committedAt(at(1)))
	})
}

// A partition whose handlers finish one record after the other is committed back and forth: what is offered after a placed
// offset never goes before it.
func TestTree_WhatIsFinishedAfterACommitOfTheUsersNeverGoesBeforeIt(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		t := w.t
		w.setHandle(func(context.Context, *kafka.Record) error {
			time.Sleep(time.Millisecond)
			return nil
		})
		w.c.topic("orders", 1, 10)
		w.start()
		w.sleep(3 * time.Second)
		for range 100 {
			w.c.produce(at(0), 10)
			time.Sleep(7 * time.Millisecond)
			require.NoError(t, w.tree.CommitOffsets(t.Context(), []kafka.OffsetAndMetadata{offsetOf(0, 5, "")}))
			time.Sleep(7 * time.Millisecond)
		}
		w.sleep(10 * time.Second)
		placed := 0
		for _, line := range w.c.lines() {
			if line == "commit orders-0 5" {
				placed++
			}
		}
		assert.GreaterOrEqual(t, placed, 100)
		assert.Equal(t, int64(1010), w.c.committedAt(at(0)))
		assert.Zero(t, w.tree.Stats().StaleMessages)
	})
}

func TestTree_TheUsersTextStaysBesideItsOffsetWhenTheMapChangesAndOverARestart(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		t := w.t
		w.settings.OffsetMap = true
		w.settings.Registrations[0].Order, w.settings.Registrations[0].Workers = OrderNone, 4
		h := newHanging("0@3")
		w.setHandle(h.handle)
		w.c.topic("orders", 1, 10)
		w.start()
		w.sleep(3 * time.Second)
		beside := func() (commit.Metadata, int64) {
			w.c.mu.Lock()
			defer w.c.mu.Unlock()
			at := w.c.committed[at(0)]
			m, err := commit.ParseMetadata(at.Metadata, at.Offset)
			require.NoError(t, err)
			return m, at.Offset
		}
		require.NoError(t, w.tree.CommitOffsets(t.Context(), []kafka.OffsetAndMetadata{offsetOf(0, 3, "text")}))
		m, offset := beside()
		_, last := m.Map.Run(0)
		assert.Equal(t, []int64{3, 9}, []int64{offset, last})
		assert.Equal(t, "text", m.User)
		w.c.produce(at(0), 5)
		w.sleep(3 * time.Second)
		m, offset = beside()
		_, last = m.Map.Run(0)
		assert.Equal(t, []int64{3, 14}, []int64{offset, last})
		assert.Equal(t, "text", m.User)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_ = w.tree.Close(ctx)
		close(h.release)
		h2 := newHanging("0@3")
		w.setHandle(h2.handle)
		w.start()
		w.sleep(3 * time.Second)
		w.c.produce(at(0), 5)
		w.sleep(3 * time.Second)
		m, offset = beside()
		_, last = m.Map.Run(0)
		assert.Equal(t, []int64{3, 19}, []int64{offset, last})
		assert.Equal(t, "text", m.User)

		require.NoError(t, w.tree.CommitOffsets(t.Context(), []kafka.OffsetAndMetadata{offsetOf(0, 1, "below")}))
		m, offset = beside()
		assert.True(t, m.Map.Empty(), "what is finished beyond a lower offset is to come again")
		assert.Equal(t, int64(1), offset)
		close(h2.release)
		w.sleep(3 * time.Second)
		assert.Equal(t, int64(20), w.c.committedAt(at(0)))
		w.mu.Lock()
		w.broken = nil // any number of handlers may be inside
		w.mu.Unlock()
	})
}

// The log parts below an offset that was set back while nobody reads it: what took the place of the lost records is read.
func TestTree_ASetBackKeepsTheLeaderEpochThatShowsATruncationBelowIt(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		t := w.t
		w.c.topic("orders", 1, 20)
		w.start()
		w.sleep(3 * time.Second)
		require.NoError(t, w.tree.CommitOffsets(t.Context(), []kafka.OffsetAndMetadata{offsetOf(0, 15, "")}))
		require.NoError(t, w.tree.Close(context.Background()))
		w.diverge(at(0), 12)
		w.c.produce(at(0), 10)
		w.start()
		w.sleep(3 * time.Second)
		assert.Equal(t, append(upTo(0, 20), upTo(12, 22)...), w.offsets(at(0)))
		assert.Equal(t, int64(22), w.c.committedAt(at(0)))
	})
}
