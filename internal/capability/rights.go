package capability

import "strings"

// Rights is what a key may be used for, as a set. A key without any is for what its mint's owner checks otherwise.
type Rights uint8

// The rights. What only reads needs none.
const (
	// MayPause stops and resumes delivery.
	MayPause Rights = 1 << iota
	// MaySeek sets positions.
	MaySeek
	// MayCommit commits what is finished, or other offsets.
	MayCommit
	// MaySkip finishes records in place of their handler.
	MaySkip
)

// What a key over partitions may do follows their state.
const (
	// RightsOwned: nothing is under way with the partitions.
	RightsOwned = MayPause | MaySeek | MayCommit | MaySkip
	// RightsAssigning: nothing was delivered yet, so there is nothing to commit or skip.
	RightsAssigning = MayPause | MaySeek
	// RightsAssigned: the position is known and nothing is delivered yet.
	RightsAssigned = MayPause | MaySeek | MayCommit
	// RightsRevoking: what is finished may be committed still; where others go on is not ours to say any more.
	RightsRevoking = MayCommit
	// RightsGone: of partitions that were let go, or lost, only what is known of them can be read.
	RightsGone Rights = 0
)

// String returns the operations, as in errors.
func (r Rights) String() string {
	var words []string
	for i, word := range [...]string{"pause", "seek", "commit", "skip"} {
		if r&(1<<i) != 0 {
			words = append(words, word)
		}
	}
	if len(words) == 0 {
		return "none"
	}
	return strings.Join(words, ", ")
}
