package actors

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
	"github.com/troupego/troupe/supervisor"
)

// Everything that can die dies, at any time, while the topic grows; nothing is lost although each start is at the end.
func TestStandalone_WhateverDiesAtAnyTimeNothingIsLost(t *testing.T) {
	for seed := range 24 {
		inStandalone(t, rebalance.StartBy(rebalance.ResetLatest), func(w *treeWorld) {
			w.c = newFakeCluster(2)
			w.c.topic("orders", 3, 50)
			w.settings.Seed = uint64(seed)
			w.settings.MetadataMaxAge = 500 * time.Millisecond
			w.settings.TreeRestart = supervisor.Policy{MaxRestarts: 1000, OnSpent: supervisor.StopAll}.WithDefaults()
			if seed%3 > 0 {
				w.settings.Registrations[0].Order, w.settings.Registrations[0].Workers = Order(seed%3), 4
				w.settings.Registrations[0].KeyFunc = func(*kafka.Record) []byte { return []byte("one") }
			}
			w.handle = func(context.Context, *kafka.Record) error {
				time.Sleep(time.Duration(seed%4) * 10 * time.Millisecond)
				return nil
			}
			alone := w.record
			if seed%3 == 2 { // without order two may be inside of one partition
				w.settings.Registrations[0].Record = func(ctx context.Context, r *kafka.Record) error {
					if err := w.handle(ctx, r); err != nil {
						return err
					}
					w.note(r.TopicPartition(), r.Offset)
					return nil
				}
			} else {
				w.settings.Registrations[0].Record = alone
			}
			w.start()
			w.sleep(time.Second)
			roles := []string{"committer", "fetcher-1", "partition", "group", "fetcher-2", "partition", "group"}
			partitions := int32(3)
			for i := range 14 {
				if i == 4+seed%5 {
					w.c.with(func() {
						w.c.topics["orders"].parts = append(w.c.topics["orders"].parts, &fakeLog{leader: 1, epoch: 1})
					})
					partitions++
				}
				for p := range partitions {
					w.c.produce(at(p), 7)
				}
				w.sleep(time.Duration(1+(seed*37+i*101)%400) * time.Millisecond)
				want := roles[(seed+i)%len(roles)]
				for _, a := range w.tree.shared.sys.alive() {
					if strings.HasPrefix(a.Role, want) {
						w.tree.shared.sys.stop(w.tree.shared.sys.actorSystem.NewLocalPID(a.Name))
						break
					}
				}
			}
			w.sleep(90 * time.Second)
			assert.Equal(t, "ASSIGNED", w.state(), "seed %d", seed)
			for p := range int32(3) {
				assert.Equal(t, upTo(50, 50+14*7), distinct(w.offsets(at(p))), "seed %d, partition %d", seed, p)
			}
			added := int64(14-4-seed%5) * 7
			assert.Equal(t, upTo(0, added), distinct(w.offsets(at(3))), "seed %d, the partition that was added", seed)
		})
	}
}

func TestStandalone_ACloseAtAnyMomentEndsInTime(t *testing.T) {
	for i := range 40 {
		inStandalone(t, rebalance.StartPosition{}, func(w *treeWorld) {
			w.c.topic("orders", 3, 30)
			slow := func(context.Context) error { time.Sleep(20 * time.Millisecond); return nil }
			for _, api := range []string{"Metadata", "ListOffsets", "Fetch"} {
				w.c.hook(api, slow)
			}
			w.setHandle(func(context.Context, *kafka.Record) error {
				time.Sleep(10 * time.Millisecond)
				return nil
			})
			if i%4 == 3 {
				w.settings.Positions = func(ctx context.Context, _ []kafka.TopicPartition) (map[kafka.TopicPartition]int64, error) {
					<-ctx.Done()
					return nil, ctx.Err()
				}
			}
			w.start()
			time.Sleep(time.Duration(i*7) * time.Millisecond)
			if i%5 == 4 {
				w.kill(groupKey)
			}
			_, took, err := w.closeIn(5 * time.Second)
			if i%5 != 4 { // closed while its group actor is dead, it says so
				assert.NoError(t, err, "closed after step %d", i)
			}
			assert.Less(t, took, 2*time.Second, "closed after step %d", i)
		})
	}
}
