package sim

import "time"

// provoke bends a script toward the few moments in which a rare mutant shows.
func provoke(s *Script) {
	provokeFlow(s)
	provokeChanges(s)
	switch s.Mutant { //nolint:exhaustive // the others show by themselves
	case MutantReplacedEpoch:
		// A lone member that lost everything is back at once, before a partition that is held up has let go.
		s.Members, s.Static, s.InitialDelay, s.StuckPermille = 1, false, 0, 0
		s.Delay, s.Horizon, s.StallPermyriad, s.Stall = time.Millisecond, 50*time.Second, 1000, 900*time.Millisecond
		long := s.Session + 2*time.Second
		s.Faults = []Fault{
			{At: 8 * time.Second, Kind: FaultFreeze, For: long}, {At: 9*time.Second + long, Kind: FaultFreeze, For: long},
			{At: 42 * time.Second, Kind: FaultClose, For: 6 * time.Second},
		}
	case MutantNoHeartbeatInDrain:
		// Drains longer than a session, and nothing else that could cost the membership.
		s.Session, s.Heartbeat, s.Rebalance = 6*time.Second, 500*time.Millisecond, 30*time.Second
		s.Drain, s.StuckPermille, s.Stuck, s.StallPermyriad, s.InitialDelay = 20*time.Second, 200, 15*time.Second, 0, 0
		s.Faults = []Fault{{At: s.Horizon / 3, Kind: FaultRejoin}, {At: s.Horizon / 2, Kind: FaultRejoin}}
	case MutantSessionNotAsked:
		// Freezes longer than a session while records are at hand.
		s.Members, s.Static, s.StallPermyriad, s.Records = min(s.Members, 2), false, 0, 80
		s.Faults = nil
		for at := 4 * time.Second; at < s.Horizon; at += s.Session + 9*time.Second {
			s.Faults = append(s.Faults, Fault{At: at, Kind: FaultFreeze, For: s.Session + 5*time.Second})
		}
	case MutantNoNudge, MutantSessionFromEntering:
		// A member freezes for longer than a session while its SyncGroup is under way; the first heartbeats after it may be lost.
		s.Members, s.Static, s.StallPermyriad, s.StuckPermille, s.Records = 2, false, 0, 0, 80
		s.Delay, s.Session, s.Heartbeat, s.Horizon = 20*time.Millisecond, 6*time.Second, 2*time.Second, 60*time.Second
		s.Faults = nil
		for i := range time.Duration(3) {
			at := 4*time.Second + i*18*time.Second
			s.Faults = append(s.Faults, Fault{At: at, Kind: FaultSlow, Member: 1, For: 8 * time.Second, Amount: 100},
				Fault{At: at, Kind: FaultRejoin},
				Fault{At: at + time.Duration(s.Seed*2654435761%6000)*time.Millisecond, Kind: FaultFreeze, Member: 1, For: s.Session + 5*time.Second})
			if woke := s.Faults[len(s.Faults)-1]; s.Mutant == MutantSessionFromEntering {
				s.Faults = append(s.Faults, Fault{At: woke.At + woke.For - time.Millisecond, Kind: FaultLossy, Member: 1, For: 5 * time.Second, Amount: 50})
			}
		}
	case MutantNoKeyCheck, MutantKeyAskedOnce:
		// A member is cut off for longer than a session while it looks up what an open transaction holds.
		s.Members, s.Partitions, s.Static, s.StuckPermille, s.Records, s.Horizon = 2, 5, false, 0, 80, 60*time.Second
		s.Delay, s.Session, s.Heartbeat, s.Request = 20*time.Millisecond, 6*time.Second, time.Second, 10*time.Second
		s.Faults = nil
		for at := 6 * time.Second; at < s.Horizon; at += 18 * time.Second {
			s.Faults = append(s.Faults, Fault{At: at, Kind: FaultErrors, Member: 1, For: 4 * time.Second, Amount: 50}, Fault{At: at, Kind: FaultRejoin},
				Fault{At: at, Kind: FaultSlow, Member: 1, For: 4 * time.Second, Amount: 20},
				Fault{At: at + time.Duration(1000+s.Seed*2654435761%3000)*time.Millisecond, Kind: FaultCut, Member: 1, For: s.Session + 4*time.Second})
		}
	case MutantOfferAfterRelease:
		// A handler returns just after its partition was released, while the group is held up.
		s.StallPermyriad, s.Stall, s.StuckPermille, s.AnyOrder = 1000, 900*time.Millisecond, 200, false
		s.Stuck = s.Drain + 2*time.Second
		s.Faults = nil
		for at := 5 * time.Second; at < s.Horizon; at += 5 * time.Second {
			s.Faults = append(s.Faults, Fault{At: at, Kind: FaultRejoin})
		}
	}
}

// provokeChanges is provoke for the mutants of protocols, of topics that change and of logs that lose their end.
func provokeChanges(s *Script) {
	switch s.Mutant { //nolint:exhaustive // the others are provoke's, or show by themselves
	case MutantSentWhileHeld:
		// The coordinator moves, so that a round has to wait for it, and a rebalance begins before it is found.
		s.Protocols, s.Strategy, s.Members, s.Partitions, s.Records = ProtocolCooperative, StrategyOpportunistic, max(s.Members, 2), 5, 80
		s.Delay, s.Work, s.StuckPermille = 20*time.Millisecond, 50*time.Millisecond, 0
		s.Faults = nil
		for at := 5 * time.Second; at < s.Horizon; at += 4 * time.Second {
			s.Faults = append(s.Faults, Fault{At: at, Kind: FaultMove, For: 500 * time.Millisecond},
				Fault{At: at + 200*time.Millisecond, Kind: FaultRejoin, Member: int(s.Seed) % s.Members})
		}
	case MutantCommitsNotHeld, MutantJoinWhileRevoking, MutantStaleClaim, MutantKeptRevoked:
		s.Protocols, s.Members = ProtocolCooperative, max(s.Members, 2)
	case MutantOldHeartbeats:
		// The group leader dies between JoinGroup and SyncGroup, so that others, who keep partitions, wait for its session to end.
		s.Protocols, s.Members, s.Static, s.InitialDelay, s.StallPermyriad, s.StuckPermille = ProtocolCooperative, max(s.Members, 2), false, 0, 0, 0
		s.Session, s.Heartbeat, s.Rebalance, s.Delay = 6*time.Second, 500*time.Millisecond, 30*time.Second, 100*time.Millisecond
		s.Faults = nil
		for at := 5 * time.Second; at < s.Horizon*9/10; at += 9 * time.Second {
			after := 300*time.Millisecond + time.Duration((s.Seed+uint64(at))*2654435761%1000)*time.Millisecond
			s.Faults = append(s.Faults, Fault{At: at, Kind: FaultRejoin},
				Fault{At: at + after, Kind: FaultCrash, Member: int(s.Seed) % s.Members, For: time.Second})
		}
	case MutantFencedAgain:
		// Somebody starts a second process with the same instance id.
		s.Static = true
		s.Faults = []Fault{{At: s.Horizon / 3, Kind: FaultTwin}, {At: s.Horizon * 2 / 3, Kind: FaultTwin}}
	case MutantGrowthUnseen:
		s.Static, s.Partitions, s.FirstPartitions, s.MetadataAge = false, max(s.Partitions, 2), 1, time.Second
		s.Faults = []Fault{{At: s.Horizon * 4 / 5, Kind: FaultGrow, Amount: 4}}
	case MutantTopicIDIgnored, MutantUnprovenCommits:
		// The topic is made anew at once, while a rebalance is under way.
		s.Static, s.Strategy, s.MetadataLimit, s.MetadataAge, s.Records = false, StrategyOpportunistic, 0, 8*time.Second, 80
		s.Members, s.Faults = max(s.Members, 2), nil
		for at := 5 * time.Second; at < s.Horizon*9/10; at += 12 * time.Second {
			s.Faults = append(s.Faults, Fault{At: at, Kind: FaultDelete, For: 10 * time.Millisecond})
			for after := time.Second; s.Mutant == MutantUnprovenCommits && after < 9*time.Second; after += 2 * time.Second {
				s.Faults = append(s.Faults, Fault{At: at + after, Kind: FaultClose, Member: int(after/time.Second) % s.Members, For: time.Second})
			}
		}
	case MutantFencedSent:
		// The topic is made anew, and that is noticed, while the coordinator is not known.
		s.Static, s.Strategy, s.MetadataLimit, s.MetadataAge, s.Records = false, StrategyOpportunistic, 0, 500*time.Millisecond, 80
		s.Work, s.Faults = 100*time.Millisecond, nil
		for at := 5 * time.Second; at < s.Horizon*9/10; at += 8 * time.Second {
			s.Faults = append(s.Faults, Fault{At: at, Kind: FaultMove, For: 2 * time.Second},
				Fault{At: at + 200*time.Millisecond, Kind: FaultDelete, For: 10 * time.Millisecond})
		}
	case MutantWindowKept, MutantCommitOverCut, MutantCommitEpochIgnored, MutantFailedForgotten:
		// Logs lose their end while handlers are slow, fail, or are started anew.
		s.Strategy, s.MetadataLimit, s.Records, s.MaxInTransit, s.Members = StrategyOpportunistic, 0, 80, max(s.MaxInTransit, 20), min(s.Members, 2)
		s.Faults = nil
		for at := 4 * time.Second; at < s.Horizon*9/10; at += 3 * time.Second {
			for part := range s.Partitions {
				s.Faults = append(s.Faults, Fault{At: at, Kind: FaultDiverge, Member: part, Amount: 3 + int(s.Seed)%8})
			}
			if s.Mutant == MutantCommitEpochIgnored {
				s.Faults = append(s.Faults, Fault{At: at - 200*time.Millisecond, Kind: FaultCrash, For: 2 * time.Second})
			}
		}
		if s.Mutant == MutantFailedForgotten {
			s.FailPercent = 30
		}
	case MutantLapseForGood:
		// The heartbeat is held up while its member loses its session, joins again, and gets on.
		s.Members, s.Static, s.InitialDelay, s.StuckPermille, s.Records, s.FailPercent, s.Order = 1, false, 0, 0, 80, 0, OrderPartition
		s.Session, s.Horizon, s.StallPermyriad, s.PauseEvery, s.AnyOrder = 6*time.Second, 60*time.Second, 0, 0, false
		s.Work, s.Faults = 500*time.Millisecond, nil
		for at := 8 * time.Second; at < s.Horizon*9/10; at += 16 * time.Second {
			const heartbeat = 2 // of the actors that a process begins with
			s.Faults = append(s.Faults, Fault{At: at, Kind: FaultRejoin},
				Fault{At: at - 20*time.Millisecond, Kind: FaultStall, For: 7 * time.Second, Amount: heartbeat})
		}
	case MutantWakeTrusted:
		// Freezes longer than a session while records are at hand.
		s.Members, s.Static, s.StallPermyriad, s.Records = min(s.Members, 2), false, 0, 80
		s.Faults = nil
		for at := 4 * time.Second; at < s.Horizon; at += s.Session + 9*time.Second {
			s.Faults = append(s.Faults, Fault{At: at, Kind: FaultFreeze, For: s.Session + 5*time.Second})
		}
	}
}

// provokeFlow is provoke for the mutants of engines, maps, pauses and losses.
func provokeFlow(s *Script) {
	switch s.Mutant { //nolint:exhaustive // the others are provoke's, or show by themselves
	case MutantNoSessionTrusted:
		// A lone member joins while its heartbeat is held up, and freezes.
		s.Members, s.Static, s.InitialDelay, s.StuckPermille, s.Records, s.FailPercent = 1, false, 0, 0, 80, 0
		s.Delay, s.Session, s.Horizon, s.StallPermyriad, s.PauseEvery = time.Millisecond, 6*time.Second, 60*time.Second, 0, 0
		s.Work, s.Faults = 300*time.Millisecond, nil
		for at := 10 * time.Second; at < s.Horizon; at += 25 * time.Second {
			const heartbeat = 2 // of the actors that a process begins with
			s.Faults = append(s.Faults, Fault{At: at, Kind: FaultCrash},
				Fault{At: at + time.Second, Kind: FaultStall, For: 12 * time.Second, Amount: heartbeat},
				Fault{At: at + 7*time.Second, Kind: FaultFreeze, For: s.Session + 5*time.Second})
		}
	case MutantLossByMessage:
		// A lone member that lost everything is back at once, while a partition that is held up has records at hand.
		s.Members, s.Partitions, s.Static, s.InitialDelay, s.StuckPermille, s.Records = 1, 5, false, 0, 0, 80
		s.Delay, s.Session, s.Horizon, s.StallPermyriad, s.Stall = time.Millisecond, 6*time.Second, 60*time.Second, 1000, 3*time.Second
		s.Faults = nil
		for at := 8 * time.Second; at < s.Horizon; at += s.Session + 5*time.Second {
			s.Faults = append(s.Faults, Fault{At: at, Kind: FaultFreeze, For: s.Session + 2*time.Second})
		}
	case MutantStaleEpoch:
		// Handlers of one epoch go on into the next.
		s.Order, s.Drain, s.StuckPermille, s.PauseEvery = OrderPartition, time.Second, 100, 0
		for at := 5 * time.Second; at < s.Horizon; at += 5 * time.Second {
			s.Faults = append(s.Faults, Fault{At: at, Kind: FaultRejoin})
		}
	case MutantOldEngine:
		// A lone member gets its partitions again while what it gave up is not acknowledged.
		s.Members, s.Order, s.Handler, s.AnyOrder, s.Drain, s.PauseEvery = 1, OrderKey+Order(s.Seed%2), HandleAsync, false, 0, 0
		s.Work, s.Records, s.MaxInTransit, s.Delay = 2*time.Second, 80, max(s.MaxInTransit, 10), time.Millisecond
		s.Faults = nil
		for at := 3 * time.Second; at < s.Horizon; at += 1500 * time.Millisecond {
			s.Faults = append(s.Faults, Fault{At: at, Kind: FaultRejoin})
		}
	case MutantMapUnchecked, MutantMapEpochIgnored, MutantMapPastWindow:
		// Disasters while records beyond a hole are finished.
		s.Order, s.Handler, s.AnyOrder, s.OffsetMap, s.MetadataLimit, s.Strategy = OrderNone, HandlerKind(s.Seed%4), false, true, 0, StrategyOpportunistic
		s.StuckPermille, s.Stuck, s.Workers, s.MaxInTransit = 100, 20*time.Second, 6, max(s.MaxInTransit, 10)
		kind := FaultRestore
		if s.Mutant != MutantMapUnchecked {
			kind = FaultTruncate
		}
		for at := 5 * time.Second; at < s.Horizon; at += 9 * time.Second {
			s.Faults = append(s.Faults, Fault{At: at, Kind: kind, Member: int(s.Seed) % s.Partitions, For: time.Second, Amount: 1 + int(s.Seed)%5})
		}
	case MutantResumeForgets:
		s.Order, s.AnyOrder, s.FailPercent, s.PauseEvery, s.PauseFor = OrderKey, false, 10, 2*time.Second, 3*time.Second
	case MutantTakeBackForgets:
		s.Order, s.AnyOrder, s.Handler, s.FailPercent = OrderKey, false, HandleActor, 10
	}
}
