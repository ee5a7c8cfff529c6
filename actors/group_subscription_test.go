package actors

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"go.uber.org/zap"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

func TestATopicOfAPatternThatIsGoneIsForgottenWhenNobodyAsksForIt(t *testing.T) {
	settings := Settings{Registrations: []Registration{{Topics: []string{"named"}, Allow: []string{"t-.*"}}}}
	shared := &shared{
		settings: settings, board: newBoard("billing"), logger: zap.NewNop(), observe: func(event.Event) {},
	}
	shared.handlers.Store(newHandlers(shared, settings.Registrations))
	g := newGroup(shared)
	var err error
	g.member, err = rebalance.NewMember(rebalance.MemberConfig{
		GroupID: "billing", Assignors: []rebalance.Assignor{rebalance.Range()},
		SessionTimeout: 45 * time.Second, RebalanceTimeout: time.Minute, HeartbeatInterval: 3 * time.Second,
	})
	assert.NoError(t, err)
	g.subscription = []string{"named", "t-gone", "t-here", "t-hidden", "t-led", "t-owned"}
	g.parts[kafka.TopicPartition{Topic: "t-owned"}] = &part{}
	view := func(missed int) *topicView { return &topicView{missed: missed} }
	g.metadata = &metadataView{all: true, answered: time.Now(), led: []string{"t-led"}, topics: map[string]*topicView{
		"named": view(goneAfter), "t-here": view(0), "t-hidden": view(goneAfter - 1), "t-gone": view(goneAfter), "t-led": view(goneAfter),
		"t-owned": view(goneAfter), "t-never-seen": view(1),
		"others": {missed: 1, TopicMetadata: TopicMetadata{Partitions: make([]PartitionMetadata, 1)}},
	}}
	known := func() []string { return slices.Sorted(maps.Keys(g.metadata.topics)) }

	g.resubscribe(nil)
	assert.Equal(t, []string{"named", "t-here", "t-hidden"}, g.subscription)
	assert.Equal(t, []string{"named", "others", "t-here", "t-hidden", "t-led", "t-owned"}, known())
	delete(g.parts, kafka.TopicPartition{Topic: "t-owned"})
	g.metadata.led = nil
	g.resubscribe(nil)
	assert.Equal(t, []string{"named", "others", "t-here", "t-hidden"}, known(), "also when the subscription stays")
}
