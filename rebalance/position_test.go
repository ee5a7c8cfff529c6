package rebalance

import (
	"errors"
	"testing"

	"github.com/troupego/troupe/pkg/kafka"
)

func TestStartsOfATopicsPartitions(t *testing.T) {
	none := Committed{Offset: kafka.NoOffset, LeaderEpoch: kafka.NoLeaderEpoch}
	at42 := Committed{Offset: 42, LeaderEpoch: 3}
	failed := Committed{Offset: kafka.NoOffset, Err: kafka.UnstableOffsetCommit}
	earliest := func(reason string) StartDecision {
		return StartFromReset{Timestamp: TimestampEarliest, Reason: reason}
	}
	for name, c := range map[string]struct {
		first, second Committed
		others        GroupCommits
		policy        ResetPolicy
		// want is the decision on the first partition; wantErr replaces it when it fails.
		want    StartDecision
		wantErr error
	}{
		"committed":                      {at42, none, GroupCommitsNone, ResetNone, StartAt{42, 3}, nil},
		"committed at zero":              {Committed{Offset: 0}, none, GroupCommitsNone, ResetLatest, StartAt{0, 0}, nil},
		"first start, earliest":          {none, none, GroupCommitsNone, ResetEarliest, earliest(ReasonNoCommit), nil},
		"first start, latest":            {none, none, GroupCommitsNone, ResetLatest, StartFromReset{TimestampLatest, ReasonNoCommit}, nil},
		"first start, none":              {none, none, GroupCommitsNone, ResetNone, nil, ErrNoOffset},
		"another of ours has one":        {none, at42, GroupCommitsNone, ResetLatest, earliest(ReasonNewPartition), nil},
		"another of the group has one":   {none, none, GroupCommitsSome, ResetLatest, earliest(ReasonNewPartition), nil},
		"new partition, policy none":     {none, none, GroupCommitsSome, ResetNone, earliest(ReasonNewPartition), nil},
		"its own answer failed":          {failed, at42, GroupCommitsSome, ResetEarliest, nil, kafka.UnstableOffsetCommit},
		"another answer failed, latest":  {none, failed, GroupCommitsNone, ResetLatest, nil, ErrCommitsUnknown},
		"another failed, group has one":  {none, failed, GroupCommitsSome, ResetLatest, earliest(ReasonNewPartition), nil},
		"unknown, latest":                {none, none, GroupCommitsUnknown, ResetLatest, nil, ErrCommitsUnknown},
		"unknown, none":                  {none, none, GroupCommitsUnknown, ResetNone, nil, ErrCommitsUnknown},
		"unknown, earliest is the same":  {none, none, GroupCommitsUnknown, ResetEarliest, earliest(ReasonNoCommit), nil},
		"unknown, another of ours known": {none, at42, GroupCommitsUnknown, ResetLatest, earliest(ReasonNewPartition), nil},
		"no such policy":                 {none, none, GroupCommitsNone, ResetPolicy(9), nil, ErrConfig},
	} {
		t.Run(name, func(t *testing.T) {
			got := DecideStarts("t", map[int32]Committed{0: c.first, 1: c.second}, c.others, c.policy)
			if len(got) != 2 {
				t.Fatalf("%d decisions", len(got))
			}
			if c.wantErr == nil {
				if got[0] != c.want {
					t.Errorf("got %+v, want %+v", got[0], c.want)
				}
				return
			}
			if fails, ok := got[0].(StartFails); !ok || !errors.Is(fails.Err, c.wantErr) {
				t.Errorf("got %+v, want %v", got[0], c.wantErr)
			}
		})
	}
}

func TestOutOfRangeFromAFollowerIsNeverAReset(t *testing.T) {
	for _, policy := range []ResetPolicy{ResetEarliest, ResetLatest, ResetNone} {
		if got := DecideOutOfRange(tp("t", 0), 9, FromFollower, policy); got != (AskLeader{}) {
			t.Errorf("%s: %+v", policy, got)
		}
	}
	if got := DecideOutOfRange(tp("t", 0), 9, FromLeader, ResetEarliest); got != (StartFromReset{TimestampEarliest, ReasonOutOfRange}) {
		t.Errorf("earliest: %+v", got)
	}
	if got := DecideOutOfRange(tp("t", 0), 9, FromLeader, ResetLatest); got != (StartFromReset{TimestampLatest, ReasonOutOfRange}) {
		t.Errorf("latest: %+v", got)
	}
	fails, ok := DecideOutOfRange(tp("t", 0), 9, FromLeader, ResetNone).(StartFails)
	if !ok || !errors.Is(fails.Err, ErrNoOffset) || !errors.Is(fails.Err, kafka.OffsetOutOfRange) {
		t.Errorf("none: %+v", fails)
	}
}

func TestResetPoliciesHaveKafkasWords(t *testing.T) {
	for policy, want := range map[ResetPolicy]string{ResetEarliest: "earliest", ResetLatest: "latest", ResetNone: "none", 9: "ResetPolicy(9)"} {
		if policy.String() != want {
			t.Errorf("%q, want %q", policy, want)
		}
	}
}
