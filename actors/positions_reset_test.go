package actors

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// lookedUp asks until the look-up has come to something; each question takes the next answer.
func lookedUp(t *testing.T, timestamp int64, answers ...OffsetAnswer) (asked []int64, found OffsetAnswer) {
	t.Helper()
	r := newResetLookup(rebalance.StartFromReset{Timestamp: timestamp, Reason: rebalance.ReasonNoCommit})
	for _, answer := range answers {
		asked = append(asked, r.timestamp())
		if found, done := r.answered(answer); done {
			assert.Len(t, answers, len(asked), "answers are left")
			return asked, found
		}
	}
	t.Fatal("it does not end")
	return nil, found
}

func TestAResetByTimeSkipsNoRecordThatIsYoungEnough(t *testing.T) {
	none := OffsetAnswer{Offset: kafka.NoOffset, LeaderEpoch: kafka.NoLeaderEpoch}
	end := OffsetAnswer{Offset: 20, LeaderEpoch: 3}
	young := OffsetAnswer{Offset: 18, LeaderEpoch: 2}
	failed := OffsetAnswer{Offset: kafka.NoOffset, Err: kafka.NotLeaderForPartition}
	const latest = rebalance.TimestampLatest
	for name, c := range map[string]struct {
		timestamp int64
		answers   []OffsetAnswer
		asked     []int64
		found     OffsetAnswer
	}{
		"there is one":              {7, []OffsetAnswer{young}, []int64{7}, young},
		"there is none":             {7, []OffsetAnswer{none, end, none}, []int64{7, latest, 7}, end},
		"one was written meanwhile": {7, []OffsetAnswer{none, end, young}, []int64{7, latest, 7}, young},
		"earliest":                  {rebalance.TimestampEarliest, []OffsetAnswer{end}, []int64{rebalance.TimestampEarliest}, end},
		"latest, no answer":         {latest, []OffsetAnswer{none}, []int64{latest}, none},
		"failed":                    {7, []OffsetAnswer{failed}, []int64{7}, failed},
		"failed at the end":         {7, []OffsetAnswer{none, failed}, []int64{7, latest}, failed},
		"no end":                    {7, []OffsetAnswer{none, none}, []int64{7, latest}, none},
	} {
		t.Run(name, func(t *testing.T) {
			asked, found := lookedUp(t, c.timestamp, c.answers...)
			assert.Equal(t, c.asked, asked)
			assert.Equal(t, c.found, found)
		})
	}
}

func TestAFailedQuestionIsAskedAgain(t *testing.T) {
	r := newResetLookup(rebalance.StartFromReset{Timestamp: 7})
	_, _ = r.answered(OffsetAnswer{Offset: kafka.NoOffset})
	_, done := r.answered(OffsetAnswer{Offset: kafka.NoOffset, Err: kafka.NotLeaderForPartition})
	assert.True(t, done)
	assert.Equal(t, rebalance.TimestampLatest, r.timestamp())
}
