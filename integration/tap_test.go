package integration

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/pkg/kafka"
)

// commitTap sees every OffsetCommit that an embedded broker gets.
type commitTap struct {
	mu      sync.Mutex
	commits []tappedCommit
}

type tappedCommit struct {
	when       time.Time
	member     string
	generation int32
	tp         kafka.TopicPartition
	offset     int64
}

// tap watches the commits of a group on one topic.
func tap(b *embeddedBroker, group, topic string) *commitTap {
	tap := &commitTap{}
	b.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Group: group, Observe: true, Count: -1, When: func(req kmsg.Request) bool {
		commit := req.(*kmsg.OffsetCommitRequest)
		tap.mu.Lock()
		defer tap.mu.Unlock()
		for _, t := range commit.Topics {
			for _, p := range t.Partitions {
				tap.commits = append(tap.commits, tappedCommit{time.Now(), commit.MemberID, commit.Generation, at(topic, p.Partition), p.Offset})
			}
		}
		return true
	}})
	return tap
}

func (c *commitTap) list() []tappedCommit {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]tappedCommit(nil), c.commits...)
}

// orderly demands that in each generation one member commits a partition, generations do not go back, and no offset does.
func (c *commitTap) orderly(t *testing.T) {
	t.Helper()
	type owned struct {
		generation int32
		tp         kafka.TopicPartition
	}
	owner, offsets, generations := map[owned]string{}, map[kafka.TopicPartition]int64{}, map[kafka.TopicPartition]int32{}
	for _, commit := range c.list() {
		key := owned{commit.generation, commit.tp}
		if owner[key] == "" {
			owner[key] = commit.member
		}
		assert.Equal(t, owner[key], commit.member, "two members commit %s in generation %d", commit.tp, commit.generation)
		assert.GreaterOrEqual(t, commit.generation, generations[commit.tp], "an old owner commits %s", commit.tp)
		assert.GreaterOrEqual(t, commit.offset, offsets[commit.tp], "the commit of %s goes back", commit.tp)
		generations[commit.tp], offsets[commit.tp] = commit.generation, commit.offset
	}
}
