package actors

import (
	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/internal/capability"
)

// CommitRound is a commit round that the holder of the consumer's key has released for sending. Only this package makes
// one, and only against a valid key over all its partitions, so nothing else can commit.
type CommitRound struct {
	round commit.Round
	key   *capability.Key
}

// Round returns what is to be committed. It must not be changed.
func (r *CommitRound) Round() commit.Round { return r.round }
