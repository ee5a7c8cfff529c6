package rebalance

import "github.com/troupego/troupe/pkg/kafka"

// Reached is what is known of a partition, beside where it was assigned to begin, when it begins.
type Reached struct {
	// Stored is the offset kept for it outside of Kafka, [kafka.NoOffset] for none.
	Stored int64
	// Finished is how far this same consumer has come with it before: the first offset that is not finished, with its leader
	// epoch; [kafka.NoOffset] when it has not begun.
	Finished    int64
	LeaderEpoch int32
	// Anew reports whether the topic is another one than Finished is of.
	Anew bool
}

// Begin decides where a granted partition begins; now is in milliseconds since the Unix epoch.
//
// What is stored outside of Kafka wins, then how far the consumer has come, so that a partition whose actor failed neither
// starts over nor skips what came meanwhile, then the position that was assigned. A partition that appeared in a topic that
// was there begins at its beginning, since everything in it was written while the consumer was running; an offset that was
// assigned to it is taken at its word. In a topic that was made anew every position is of another log, and it is read from its
// beginning.
func (s *Standalone) Begin(now int64, tp kafka.TopicPartition, known Reached) StartDecision {
	start, _ := s.start(tp)
	_, atOffset := start.Offset()
	anew := s.anew[tp.Topic] || known.Anew
	if anew && s.ranges != nil {
		return StartFails{Err: &RangeError{TopicPartition: tp, Err: ErrTopicRecreated}}
	}
	switch {
	case known.Finished >= 0 && !known.Anew:
		// What is stored may still be of the topic that is gone. Too low an offset repeats, too high a one would skip.
		if known.Stored >= 0 && (!anew || known.Stored <= known.Finished) {
			return StartAt{Offset: known.Stored, LeaderEpoch: kafka.NoLeaderEpoch}
		}
		return StartAt{Offset: known.Finished, LeaderEpoch: known.LeaderEpoch}
	case anew:
		return StartFromReset{Timestamp: TimestampEarliest, Reason: ReasonNewPartition}
	case known.Stored >= 0:
		return StartAt{Offset: known.Stored, LeaderEpoch: kafka.NoLeaderEpoch}
	case s.added[tp] && !atOffset:
		return StartFromReset{Timestamp: TimestampEarliest, Reason: ReasonNewPartition}
	}
	return start.Decide(now, tp, ReasonAssigned)
}

// Valid checks the invariants named at the type between two steps. A non-nil error wraps [ErrInvalid] and means a bug in this
// package.
func (s *Standalone) Valid() error {
	if err := s.held.valid(s.epoch); err != nil {
		return err
	}
	for grant := range s.held.phases {
		if _, assigned := s.start(grant.TopicPartition); !assigned {
			return invalid("%s is held and was not assigned", grant.TopicPartition)
		}
	}
	counts := s.held.counts
	starting, started, revoking := counts[holdStarting], counts[holdStarted], counts[holdRevoking]
	var ok bool
	switch s.state {
	case StateUnjoined, StateJoining:
		ok = len(s.held.phases) == 0
	case StateAssigning:
		ok = starting > 0 && revoking == 0
	case StateAssigned:
		ok = starting == 0 && revoking == 0
	case StateLeaving:
		ok = starting == 0 && started == 0 && len(s.held.phases) > 0
	case StateSyncing, StateRevoking, StateRevoked, StateFatal:
	}
	if !ok {
		return invalid("%d starting, %d started, %d revoking, %d lost in %s", starting, started, revoking, counts[holdLost], s.state)
	}
	if (s.state == StateLeaving && revoking > 0) != !s.releaseBy.IsZero() {
		return invalid("release deadline %v with %d revoking in %s", s.releaseBy, revoking, s.state)
	}
	return nil
}
