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
	func(s *Script) { s.Protocols = ProtocolRange },
	func(s *Script) {
		if s.Protocols > ProtocolCooperative {
			s.Protocols = ProtocolCooperative
		}
	},
	func(s *Script) { s.FirstPartitions = 0 },
	func(s *Script) {
		if !slices.ContainsFunc(s.Faults, func(f Fault) bool { return f.Kind == FaultGrow || f.Kind == FaultDelete }) {
			s.MetadataAge = 0
		}
	},
	func(s *Script) { s.CommitEvery = 0 },
	func(s *Script) { s.PauseEvery = 0 },
	func(s *Script) { s.PlaceEvery = 0 },
	func(s *Script) { s.ControlEvery = 0 },
	func(s *Script) { s.TokenEvery = 0 },
	func(s *Script) { s.Callbacks = false },
	func(s *Script) { s.OffsetMap = false },
	func(s *Script) { s.MetadataLimit = 0 },
	func(s *Script) { s.Strategy = StrategyOpportunistic },
	func(s *Script) { s.Handler = HandleRecord },
	func(s *Script) { s.Order = OrderPartition },
	func(s *Script) { s.MaxWait = 0 },
	func(s *Script) { s.Keys = max(0, s.Keys/2) },
	func(s *Script) { s.Workers = max(1, s.Workers-1) },
	func(s *Script) { s.Horizon = max(time.Second, s.Horizon*3/4) },
	func(s *Script) { s.Horizon = max(time.Second, s.Horizon-time.Second) },
	func(s *Script) {
		for i := range s.Faults {
			s.Faults[i].For = s.Faults[i].For * 3 / 4
		}
	},
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
