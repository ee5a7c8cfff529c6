package rebalance

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// now is some day of 2023.
const now = 1_700_000_000_000

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
		"first start, by duration":       {none, none, GroupCommitsNone, ResetByDuration(time.Minute), StartFromReset{now - 60_000, ReasonNoCommit}, nil},
		"first start, at a time":         {none, none, GroupCommitsNone, ResetAt(7), StartFromReset{7, ReasonNoCommit}, nil},
		"by duration, older than Unix":   {none, none, GroupCommitsNone, ResetByDuration(90 * 365 * 24 * time.Hour), StartFromReset{0, ReasonNoCommit}, nil},
		"committed, by duration":         {at42, none, GroupCommitsNone, ResetByDuration(time.Minute), StartAt{42, 3}, nil},
		"new partition, at a time":       {none, at42, GroupCommitsNone, ResetAt(7), earliest(ReasonNewPartition), nil},
		"unknown, by duration":           {none, none, GroupCommitsUnknown, ResetByDuration(time.Minute), nil, ErrCommitsUnknown},
		"no duration":                    {none, none, GroupCommitsNone, ResetByDuration(0), nil, ErrConfig},
	} {
		t.Run(name, func(t *testing.T) {
			got := DecideStarts(now, "t", map[int32]Committed{0: c.first, 1: c.second}, c.others, c.policy)
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
		if got := DecideOutOfRange(now, tp("t", 0), 9, FromFollower, policy); got != (AskLeader{}) {
			t.Errorf("%s: %+v", policy, got)
		}
	}
	if got := DecideOutOfRange(now, tp("t", 0), 9, FromLeader, ResetEarliest); got != (StartFromReset{TimestampEarliest, ReasonOutOfRange}) {
		t.Errorf("earliest: %+v", got)
	}
	if got := DecideOutOfRange(now, tp("t", 0), 9, FromLeader, ResetLatest); got != (StartFromReset{TimestampLatest, ReasonOutOfRange}) {
		t.Errorf("latest: %+v", got)
	}
	fails, ok := DecideOutOfRange(now, tp("t", 0), 9, FromLeader, ResetNone).(StartFails)
	if !ok || !errors.Is(fails.Err, ErrNoOffset) || !errors.Is(fails.Err, kafka.OffsetOutOfRange) {
		t.Errorf("none: %+v", fails)
	}
}

func TestOutOfRangeGoesByThePolicyOfTheMoment(t *testing.T) {
	for policy, want := range map[ResetPolicy]int64{ResetByDuration(time.Second): now - 1000, ResetAt(5): 5} {
		if got := DecideOutOfRange(now, tp("t", 0), 9, FromLeader, policy); got != (StartFromReset{want, ReasonOutOfRange}) {
			t.Errorf("%s: %+v", policy, got)
		}
	}
	fails, ok := DecideOutOfRange(now, tp("t", 0), 9, FromLeader, ResetAt(-1)).(StartFails)
	var wrong *ResetPolicyError
	if !ok || !errors.As(fails.Err, &wrong) || wrong.Policy != ResetAt(-1) || !errors.Is(fails.Err, kafka.OffsetOutOfRange) {
		t.Errorf("at -1: %+v", fails)
	}
}

func TestResetPoliciesHaveKafkasWords(t *testing.T) {
	var zero ResetPolicy
	const year = 365 * 24 * time.Hour
	for _, c := range []struct {
		policy ResetPolicy
		word   string
		valid  bool
	}{
		{zero, "earliest", true},
		{ResetLatest, "latest", true},
		{ResetNone, "none", true},
		{ResetByDuration(time.Hour), "by_duration:PT1H", true},
		{ResetByDuration(25*time.Hour + 61*time.Second), "by_duration:P1DT1H1M1S", true},
		{ResetByDuration(48 * time.Hour), "by_duration:P2D", true},
		{ResetByDuration(1500 * time.Millisecond), "by_duration:PT1.5S", true},
		{ResetByDuration(time.Nanosecond), "by_duration:PT0.001S", true},
		{ResetByDuration(100 * year), "by_duration:P36500D", true},
		{ResetByDuration(100*year + 1), "by_duration:P36500DT0.001S", false},
		{ResetByDuration(math.MaxInt64), "by_duration:P106751DT23H47M16.855S", false},
		{ResetByDuration(0), "by_duration:PT0S", false},
		{ResetByDuration(-time.Nanosecond), "by_duration:-PT0.001S", false},
		{ResetByDuration(-time.Minute), "by_duration:-PT1M", false},
		{ResetAt(0), "timestamp:0", true},
		{ResetAt(now), "timestamp:1700000000000", true},
		{ResetAt(math.MaxInt64), "timestamp:1152921504606846975", true},
		{ResetAt(-1), "timestamp:-1", false},
		{ResetAt(math.MinInt64), "timestamp:-1152921504606846975", false},
		{5, "ResetPolicy(5)", false},
		{9, "ResetPolicy(9)", false},
		{-8, "ResetPolicy(-8)", false},
	} {
		if c.policy.String() != c.word {
			t.Errorf("%q, want %q", c.policy, c.word)
		}
		err := c.policy.Validate()
		if (err == nil) != c.valid {
			t.Errorf("%s: %v", c.policy, err)
		}
		var wrong *ResetPolicyError
		if err != nil && (!errors.As(err, &wrong) || wrong.Want == "" || !errors.Is(err, ErrConfig)) {
			t.Errorf("%s: %v", c.policy, err)
		}
	}
}

func TestResetPoliciesAreEqualWhenTheyMeanTheSame(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		millis, other := random.Int64N(1<<40), random.Int64N(1<<40)
		d := time.Duration(millis) * time.Millisecond
		all := []ResetPolicy{ResetEarliest, ResetLatest, ResetNone, ResetByDuration(d), ResetAt(millis)}
		for i, a := range all {
			for j, b := range all {
				if (a == b) != (i == j) {
					t.Fatalf("%s == %s is %v", a, b, a == b)
				}
			}
		}
		if (ResetAt(millis) == ResetAt(other)) != (millis == other) || (ResetByDuration(d) == ResetByDuration(d+1)) {
			t.Fatalf("%s, %s", ResetAt(millis), ResetAt(other))
		}
	}
}
