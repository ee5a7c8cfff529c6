package sim

import (
	"fmt"
	"slices"
	"time"
)

// Expect compares what a run ended with to what a script wants: "ok" (or nothing), or the name of a guarantee.
func (r Result) Expect(want string) error {
	got := "ok"
	if r.Violation != nil {
		got = r.Violation.Guarantee
	}
	if want == "" {
		want = "ok"
	}
	switch {
	case got == want:
		return nil
	case r.Violation != nil:
		return fmt.Errorf("sim: want %s, got %v", want, r.Violation)
	}
	return fmt.Errorf("sim: want %s, and everything held", want)
}

// Shrink returns a smaller script that breaks the same guarantee: it takes faults away one by one, then makes sizes and times
// smaller, for as long as that helps.
func Shrink(script Script, guarantee string) Script {
	breaks := func(s Script) bool {
		v := Run(s).Violation
		return v != nil && v.Guarantee == guarantee
	}
	if !breaks(script) {
		return script
	}
	for smaller := true; smaller; {
		smaller = false
		for i := 0; i < len(script.Faults); {
			try := script
			try.Faults = slices.Delete(slices.Clone(script.Faults), i, i+1)
			if !breaks(try) {
				i++
				continue
			}
			script, smaller = try, true
		}
		for _, change := range reductions {
			try := script
			try.Faults = slices.Clone(script.Faults)
			if change(&try); try.String() != script.String() && breaks(try) {
				script, smaller = try, true
			}
		}
	}
	return script
}

// reductions are the ways to make a script simpler.
var reductions = []func(*Script){
	func(s *Script) { s.Members = max(1, s.Members-1) },
	func(s *Script) { s.Partitions = max(1, s.Partitions-1) },
	func(s *Script) { s.Records = max(1, s.Records/2) },
	func(s *Script) { s.Records = max(1, s.Records-1) },
	func(s *Script) { s.FailPercent = 0 },
	func(s *Script) { s.StuckPermille = 0 },
	func(s *Script) { s.StallPermyriad = 0 },
	func(s *Script) { s.InitialDelay = 0 },
	func(s *Script) { s.AnyOrder = false },
	func(s *Script) { s.Static = false },
	func(s *Script) { s.Horizon = max(time.Second, s.Horizon*3/4) },
	func(s *Script) { s.Horizon = max(time.Second, s.Horizon-time.Second) },
	func(s *Script) {
		for i := range s.Faults {
			s.Faults[i].For = s.Faults[i].For * 3 / 4
		}
	},
}

// provoke bends a script toward the few moments in which a rare mutant shows.
func provoke(s *Script) {
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
	case MutantNoNudge:
		// A member freezes for longer than a session while its SyncGroup is under way.
		s.Members, s.Static, s.StallPermyriad, s.StuckPermille, s.Records = 2, false, 0, 0, 80
		s.Delay, s.Session, s.Heartbeat, s.Horizon = 20*time.Millisecond, 6*time.Second, 2*time.Second, 60*time.Second
		s.Faults = nil
		for i := range time.Duration(3) {
			at := 4*time.Second + i*18*time.Second
			s.Faults = append(s.Faults, Fault{At: at, Kind: FaultSlow, Member: 1, For: 8 * time.Second, Amount: 100},
				Fault{At: at, Kind: FaultRejoin},
				Fault{At: at + time.Duration(s.Seed*2654435761%6000)*time.Millisecond, Kind: FaultFreeze, Member: 1, For: s.Session + 5*time.Second})
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

// Hunt runs histories with a mutant until one is caught, at most count of them. It returns what was caught, the script, and
// how many histories it took.
func Hunt(mutant Mutant, seed uint64, count int) (*Violation, Script, int) {
	for i := range uint64(count) {
		script := Generate(seed + i)
		script.Mutant = mutant
		provoke(&script)
		if v := Run(script).Violation; v != nil {
			return v, script, int(i) + 1
		}
	}
	return nil, Script{}, count
}
