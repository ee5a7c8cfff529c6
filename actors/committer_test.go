package actors

import (
	"testing"
	"time"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/internal/capability"
	"github.com/troupego/troupe/pkg/kafka"
)

func TestRoundThatWaitedForTheKeyIsNotSentBetweenJoinGroupAndSyncGroup(t *testing.T) {
	t.Parallel()
	tp := kafka.TopicPartition{Topic: "t"}
	key, err := capability.NewMint().Grant(committerHolder, tp)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Time{}.Add(time.Hour)
	rounds := commit.NewRounds(commit.RoundsConfig{GroupID: "g"})
	c := &committer{rounds: rounds, key: key, stable: true}
	for _, in := range []commit.Input{
		commit.Entered{Generation: 1, MemberID: "m"},
		commit.Assigned{TopicPartition: tp, Epoch: 1, Committed: kafka.NoOffset},
		commit.Offered{Offset: commit.Offset{TopicPartition: tp, Epoch: 1, Offset: 5}},
	} {
		effects, err := rounds.Step(now, in)
		if err != nil {
			t.Fatal(err)
		}
		for _, effect := range effects {
			if e, ok := effect.(commit.SendRound); ok {
				c.unsent = &e.Round
			}
		}
	}
	if c.unsent == nil || !rounds.Open() {
		t.Fatal("no round")
	}
	if _, err := rounds.Step(now, commit.Held{}); err != nil {
		t.Fatal(err)
	}
	c.sendUnsent(nil) // the key has come back
	if c.unsent == nil {
		t.Error("a round of the old generation was sent")
	}
}
