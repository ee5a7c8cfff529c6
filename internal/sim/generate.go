package sim

import (
	"math/rand/v2"
	"slices"
	"time"
)

// flow draws the order, the strategy, the offset map and the user's pauses of a script. They came later than the rest and have
// a source of their own, so that a seed keeps what it had.
func flow(s *Script) {
	rng := rand.New(rand.NewPCG(s.Seed, 0xf10))
	between := func(low, high int) int { return low + rng.IntN(high-low+1) }
	span := func(low, high time.Duration) time.Duration { return low + time.Duration(rng.Int64N(int64(high-low)+1)) }
	s.Workers, s.Keys = between(1, 6), between(1, 12)
	if order := rng.IntN(20); order >= 8 {
		s.AnyOrder = false
		s.Handler = HandlerKind(rng.IntN(4))
		if s.Order = OrderKey; order >= 15 {
			s.Order = OrderNone
		}
	}
	if rng.IntN(2) == 0 {
		s.Strategy = StrategyKind(rng.IntN(5))
	}
	s.StrategyRecords, s.StrategyEvery = between(1, 30), span(50*time.Millisecond, 5*time.Second)
	if s.OffsetMap = rng.IntN(2) == 0; rng.IntN(3) == 0 {
		s.MetadataLimit = []int{20, 70, 90, 4096}[rng.IntN(4)]
	}
	if s.Strategy == StrategyDemand || rng.IntN(6) == 0 {
		s.CommitEvery = span(100*time.Millisecond, 10*time.Second)
	}
	if rng.IntN(3) == 0 {
		s.PauseEvery, s.PauseFor = span(200*time.Millisecond, 8*time.Second), span(time.Millisecond, 5*time.Second)
	}
	if rng.IntN(2) == 0 {
		s.MaxWait = span(time.Millisecond, 2*time.Second)
	}
	if rng.IntN(5) > 0 {
		return
	}
	for range between(1, 2) {
		f := Fault{At: span(s.Horizon/4, s.Horizon*9/10), Kind: FaultTruncate, Member: rng.IntN(s.Partitions), For: span(0, s.Session), Amount: between(1, 30)}
		if rng.IntN(2) == 0 {
			f.Kind, f.Amount = FaultRestore, between(-1, 6)
		}
		s.Faults = append(s.Faults, f)
	}
}

// changes draws what members offer, and how the topic and its logs change. It has a source of its own, too.
func changes(s *Script) {
	rng := rand.New(rand.NewPCG(s.Seed, 0xc4a))
	span := func(low, high time.Duration) time.Duration { return low + time.Duration(rng.Int64N(int64(high-low)+1)) }
	kinds := []ProtocolKind{
		ProtocolRange, ProtocolRange, ProtocolSticky, ProtocolRoundRobin, ProtocolCooperative, ProtocolCooperative, ProtocolCooperative,
		ProtocolCooperative, ProtocolMixed, ProtocolUpgrade,
	}
	if s.Protocols = kinds[rng.IntN(len(kinds))]; s.Protocols == ProtocolUpgrade || s.Protocols == ProtocolMixed {
		for range 2 {
			for slot := range s.Members {
				s.Faults = append(s.Faults, Fault{At: span(0, s.Horizon*9/10), Kind: FaultUpgrade, Member: slot, For: span(0, 12*time.Second)})
			}
		}
	}
	// Only where membership may suffer: a quarter of the seeds has harmless faults alone.
	if slices.ContainsFunc(s.Faults, func(f Fault) bool { return f.Kind == FaultFreeze || f.Kind == FaultCrash }) && rng.IntN(2) == 0 {
		s.Faults = append(s.Faults, Fault{
			At: span(0, s.Horizon*9/10), Kind: FaultSuspend, Member: rng.IntN(s.Members), For: span(100*time.Millisecond, 3*s.Session),
		})
	}
	changeTopic(s, rng)
}

// changeTopic draws growth and deletions of the topic, and logs that lose their end. The two have no place where offsets are kept
// outside of Kafka, nor where commits cannot say which topic they are of.
func changeTopic(s *Script, rng *rand.Rand) {
	between := func(low, high int) int { return low + rng.IntN(high-low+1) }
	span := func(low, high time.Duration) time.Duration { return low + time.Duration(rng.Int64N(int64(high-low)+1)) }
	before := len(s.Faults)
	age := span(500*time.Millisecond, 8*time.Second)
	// A static leader of an eager group that comes back does not know what the plan was made over (KIP-814), as in the Java client.
	watches := !s.Static || s.Protocols == ProtocolCooperative
	if watches && s.Partitions > 1 && rng.IntN(4) == 0 {
		s.FirstPartitions, s.MetadataAge = between(1, s.Partitions-1), age
		for range between(1, 2) {
			s.Faults = append(s.Faults, Fault{At: span(0, s.Horizon*9/10), Kind: FaultGrow, Amount: between(1, 3)})
		}
	}
	if watches && rng.IntN(5) == 0 {
		s.MetadataAge = age
		for range between(1, 2) {
			f := Fault{At: span(0, s.Horizon*9/10), Kind: FaultDelete, For: span(0, s.Horizon/4)}
			if rng.IntN(6) == 0 {
				f.Amount = 1
			}
			s.Faults = append(s.Faults, f)
		}
	}
	if rng.IntN(5) == 0 {
		for range between(1, 3) {
			s.Faults = append(s.Faults, Fault{At: span(s.Horizon/8, s.Horizon*9/10), Kind: FaultDiverge, Member: rng.IntN(s.Partitions), Amount: between(1, 30)})
		}
	}
	if len(s.Faults) == before {
		return
	}
	for i := range s.Faults {
		if f := &s.Faults[i]; f.Kind == FaultRestore {
			f.Amount = max(f.Amount, 1) // metadata that is not ours does not say that the commit's leader epoch is to be believed
		}
	}
	if s.Strategy == StrategyManual {
		s.Strategy = StrategyOpportunistic
	}
	if s.MetadataLimit > 0 {
		s.MetadataLimit = max(s.MetadataLimit, 70)
	}
}

// tokens draws what users do with tokens, and the callbacks of rebalances. It has a source of its own as well.
func tokens(s *Script) {
	rng := rand.New(rand.NewPCG(s.Seed, 0x70c))
	span := func(low, high time.Duration) time.Duration { return low + time.Duration(rng.Int64N(int64(high-low)+1)) }
	s.TokenFor, s.TokenTimeout = span(time.Millisecond, 2*time.Second), span(500*time.Millisecond, 8*time.Second)
	if rng.IntN(2) == 0 {
		s.TokenEvery = span(50*time.Millisecond, 4*time.Second)
	}
	s.Callbacks = rng.IntN(3) == 0
}

// Generate returns the script of a seed. A quarter of the seeds have no faults of the network, the processes or the
// coordinator: there a slow handler is all that happens, and membership must not suffer (G6).
func Generate(seed uint64) Script {
	rng := rand.New(rand.NewPCG(seed, 0x5eed))
	between := func(low, high int) int { return low + rng.IntN(high-low+1) }
	span := func(low, high time.Duration) time.Duration {
		return low + time.Duration(rng.Int64N(int64(high-low)/int64(time.Millisecond)+1))*time.Millisecond
	}
	s := Script{
		Seed: seed, Members: between(1, 4), Partitions: between(1, 5), Records: between(5, 80),
		FetchRecords: between(1, 12), MaxRecords: between(1, 10), MaxInTransit: between(2, 40),
		Static: rng.IntN(4) == 0, AnyOrder: rng.IntN(3) == 0,
		Session: span(6*time.Second, 12*time.Second), Heartbeat: span(500*time.Millisecond, 2*time.Second),
		Rebalance: span(10*time.Second, 30*time.Second), Request: span(2*time.Second, 10*time.Second),
		Delay: span(time.Millisecond, 40*time.Millisecond), Work: span(0, 300*time.Millisecond),
		Stuck: span(time.Second, 40*time.Second), Horizon: span(10*time.Second, 60*time.Second),
	}
	s.ResumeBelow = rng.IntN(s.MaxInTransit)
	s.Drain = span(0, s.Rebalance-s.Heartbeat-5*time.Second)
	if rng.IntN(3) == 0 {
		s.InitialDelay = span(0, 3*time.Second)
	}
	if rng.IntN(2) == 0 {
		s.FailPercent = between(0, 10)
	}
	if rng.IntN(2) == 0 {
		s.StuckPermille = between(0, 30)
	}
	if rng.IntN(3) == 0 {
		s.StallPermyriad, s.Stall = between(1, 200), span(time.Millisecond, 900*time.Millisecond)
	}
	kinds := []FaultKind{
		FaultCrash, FaultCrash, FaultFreeze, FaultStall, FaultCut, FaultLossy, FaultLossy, FaultSlow, FaultDuplicate, FaultErrors, FaultMove,
		FaultMove, FaultDown, FaultClose, FaultClose, FaultRejoin, FaultRetain,
	}
	if s.Static {
		kinds = append(kinds, FaultTwin)
	}
	if rng.IntN(4) == 0 {
		kinds = []FaultKind{FaultClose, FaultRejoin, FaultDuplicate}
	}
	for range rng.IntN(9) {
		s.Faults = append(s.Faults, randomFault(rng, &s, kinds[rng.IntN(len(kinds))]))
	}
	flow(&s)
	changes(&s)
	if rng := rand.New(rand.NewPCG(s.Seed, 0x91ace)); rng.IntN(4) == 0 { // a source of its own, as those have
		s.PlaceEvery = 200*time.Millisecond + time.Duration(rng.Int64N(int64(5*time.Second)))
		if s.MetadataLimit > 0 && (s.changing() || s.diverging()) {
			s.MetadataLimit = 4096 // beside what a user gives along there has to be room for which topic the commit is of
		}
	}
	tokens(&s)
	if rng := rand.New(rand.NewPCG(s.Seed, 0x5ee)); rng.IntN(3) == 0 {
		s.ControlEvery = 100*time.Millisecond + time.Duration(rng.Int64N(int64(4*time.Second)))
		if s.MetadataLimit > 0 && (s.changing() || s.diverging()) {
			s.MetadataLimit = 4096 // as above
		}
	}
	slices.SortStableFunc(s.Faults, func(a, b Fault) int { return int((a.At - b.At) / time.Millisecond) })
	return s
}

func randomFault(rng *rand.Rand, s *Script, kind FaultKind) Fault {
	span := func(low, high time.Duration) time.Duration {
		return low + time.Duration(rng.Int64N(int64(max(high-low, 0))/int64(time.Millisecond)+1))*time.Millisecond
	}
	f := Fault{At: span(0, s.Horizon*9/10), Kind: kind, Member: rng.IntN(s.Members)}
	switch kind {
	case FaultCrash:
		f.For = span(0, 2*s.Session)
	case FaultFreeze:
		f.For = span(100*time.Millisecond, 3*s.Session)
	case FaultStall:
		f.For, f.Amount = span(10*time.Millisecond, 3*time.Second), rng.IntN(16)
	case FaultCut:
		f.For = span(100*time.Millisecond, 2*s.Session)
	case FaultLossy:
		f.Member, f.For, f.Amount = rng.IntN(s.Members+1)-1, span(time.Second, s.Horizon/2), 5+rng.IntN(60)
	case FaultSlow:
		f.Member, f.For, f.Amount = rng.IntN(s.Members+1)-1, span(time.Second, s.Horizon/2), 2+rng.IntN(100)
	case FaultErrors:
		f.Member, f.For, f.Amount = rng.IntN(s.Members+1)-1, span(time.Second, s.Horizon/2), 5+rng.IntN(60)
	case FaultDuplicate:
		f.Member, f.For, f.Amount = -1, span(time.Second, s.Horizon), 5+rng.IntN(90)
	case FaultMove:
		f.For = span(0, 3*time.Second)
	case FaultDown:
		f.For = span(500*time.Millisecond, 12*time.Second)
	case FaultClose:
		f.For = span(0, 12*time.Second)
	case FaultRejoin:
	case FaultRetain:
		f.Member, f.Amount = rng.IntN(s.Partitions), 1+rng.IntN(20)
	case FaultTwin, FaultTruncate, FaultRestore, FaultUpgrade, FaultDiverge, FaultGrow, FaultDelete, FaultSuspend:
	}
	return f
}
