package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Script is everything that decides a run. The same script gives the same run, step by step.
type Script struct {
	// Note says what the script is for; only for people.
	Note string
	// Want is what the run must end with: "ok", or the guarantee that a mutant breaks.
	Want string
	// Mutant is the deliberate fault, MutantNone for none.
	Mutant Mutant
	// Seed decides every choice that the script does not.
	Seed uint64
	// Members is the number of member processes, Partitions that of partitions, Records the records of each partition.
	Members, Partitions, Records int
	// FetchRecords is the most records of one fetch answer, MaxRecords of one delivery.
	FetchRecords, MaxRecords int
	// MaxInTransit and ResumeBelow are the window.
	MaxInTransit, ResumeBelow int
	// Static members have group instance ids.
	Static bool
	// AnyOrder handlers acknowledge the records of a delivery in any order, as a user's actor may.
	AnyOrder bool
	// FailPercent is how often a record fails, StuckPermille how often a handler is very slow and does not look at its
	// context.
	FailPercent, StuckPermille int
	// Session, Heartbeat, Rebalance, Drain and Request are the group's timings; InitialDelay is the coordinator's
	// group.initial.rebalance.delay.ms.
	Session, Heartbeat, Rebalance, Drain, Request, InitialDelay time.Duration
	// Delay is the most a message takes on the network, Work the most that a record takes, Stuck what a stuck one takes.
	Delay, Work, Stuck time.Duration
	// StallPermyriad is how often, in ten thousand turns, an actor is held up, and Stall for how long at most.
	StallPermyriad int
	Stall          time.Duration
	// Order is what is kept, Handler what handlers are called with under the other orders than the partition's, Workers how
	// many of those run at once in a process. Keys is the number of keys, the nil key included; 0 is the nil key alone.
	Order   Order
	Handler HandlerKind
	Workers int
	Keys    int
	// MaxWait is how long a batch that is not full waits for more records.
	MaxWait time.Duration
	// Strategy is the commit strategy, with the number of records or the time that it is about.
	Strategy        StrategyKind
	StrategyRecords int
	StrategyEvery   time.Duration
	// OffsetMap has what is finished beyond the offset committed along; MetadataLimit is the broker's
	// offset.metadata.max.bytes, 0 for its default. With either, commits name the topic id.
	OffsetMap     bool
	MetadataLimit int
	// CommitEvery is how often users commit by themselves, PauseEvery how often they pause, on average, and PauseFor for how
	// long at most. 0 is never.
	CommitEvery, PauseEvery, PauseFor time.Duration
	// PlaceEvery is how often users commit offsets of their own, on average. 0 is never.
	PlaceEvery time.Duration
	// ControlEvery is how often users seek, skip a record, or commit offsets of several partitions, on average. 0 is never.
	ControlEvery time.Duration
	// TokenEvery is how often users ask for tokens, on average, 0 for never; TokenFor how long they wait at most between two things
	// that they do, TokenTimeout how long a token is out at most. With Callbacks the callbacks of rebalances take tokens.
	TokenEvery, TokenFor, TokenTimeout time.Duration
	Callbacks                          bool
	// Protocols is what members offer as assignors.
	Protocols ProtocolKind
	// FirstPartitions is how many of the Partitions the topic has at first, 0 for all of them. MetadataAge is how long members go
	// without a look at the topic; 0 is for ever, and only for a topic that does not change.
	FirstPartitions int
	MetadataAge     time.Duration
	// Strict makes violations of what is only counted otherwise: what a process that woke cannot know yet (see Stats).
	Strict bool
	// Horizon is when faults stop; Faults end at the latest then.
	Horizon time.Duration
	// Faults in the order of their time.
	Faults []Fault
}

// FaultKind is what goes wrong.
type FaultKind string

// The kinds of faults. Member is a slot, or -1 for all.
const (
	// FaultCrash kills a process; a new one starts For later.
	FaultCrash FaultKind = "crash"
	// FaultFreeze stops a process for For, as SIGSTOP and SIGCONT do.
	FaultFreeze FaultKind = "freeze"
	// FaultSuspend stops a process for For, and its clock with it, as a machine that is suspended does.
	FaultSuspend FaultKind = "suspend"
	// FaultStall holds one of a process's actors up for For.
	FaultStall FaultKind = "stall"
	// FaultCut lets no request of a process through for For.
	FaultCut FaultKind = "cut"
	// FaultLossy loses Amount percent of the requests or answers for For.
	FaultLossy FaultKind = "lossy"
	// FaultSlow makes the network Amount times slower for For.
	FaultSlow FaultKind = "slow"
	// FaultDuplicate hands Amount percent of the answers to the machines twice, for For.
	FaultDuplicate FaultKind = "duplicate"
	// FaultErrors answers Amount percent of the requests to the coordinator with an error that passes, for For.
	FaultErrors FaultKind = "errors"
	// FaultMove moves the coordinator to the next broker, which loads for For.
	FaultMove FaultKind = "move"
	// FaultDown takes the coordinator's broker away: nobody answers for For, then the next one is coordinator.
	FaultDown FaultKind = "down"
	// FaultClose closes a consumer within For; a new one starts afterwards.
	FaultClose FaultKind = "close"
	// FaultUpgrade closes a consumer within For; the one that starts afterwards is a step further from range to cooperative-sticky.
	FaultUpgrade FaultKind = "upgrade"
	// FaultRejoin asks a member to rebalance.
	FaultRejoin FaultKind = "rejoin"
	// FaultRetain drops Amount records from the start of the log of partition Member.
	FaultRetain FaultKind = "retain"
	// FaultTruncate is a disaster: every process dies, and the log of partition Member loses its last Amount records that are
	// not committed, for a new leader has never had them. Processes start For later.
	FaultTruncate FaultKind = "truncate"
	// FaultRestore is a disaster, after which the commit of partition Member comes from a copy: Amount records lower with the
	// same metadata, or where Amount is 0 with metadata of somebody else, and below 0 damaged.
	FaultRestore FaultKind = "restore"
	// FaultDiverge takes the last Amount records off the log of partition Member, committed or not: a new leader has never had
	// them, and goes on under a higher epoch. Everybody is left running.
	FaultDiverge FaultKind = "diverge"
	// FaultGrow adds Amount partitions to the topic.
	FaultGrow FaultKind = "grow"
	// FaultDelete deletes the topic, which is made anew For later; with Amount 1 it is gone for good.
	FaultDelete FaultKind = "delete"
	// FaultTwin starts a second process with the instance id of a slot's first, which is left running.
	FaultTwin FaultKind = "twin"
)

// Fault is one thing that goes wrong.
type Fault struct {
	At     time.Duration
	Kind   FaultKind
	Member int
	For    time.Duration
	Amount int
}

// String is the fault as a line of a script.
func (f Fault) String() string {
	return fmt.Sprintf("fault %v %s %d %v %d", f.At, f.Kind, f.Member, f.For, f.Amount)
}

// field is one line "name value" of a script.
type field struct {
	name  string
	value any
}

func (s *Script) fields() []field {
	return []field{
		{"seed", &s.Seed},
		{"members", &s.Members},
		{"partitions", &s.Partitions},
		{"records", &s.Records},
		{"fetch-records", &s.FetchRecords},
		{"max-records", &s.MaxRecords},
		{"max-in-transit", &s.MaxInTransit},
		{"resume-below", &s.ResumeBelow},
		{"static", &s.Static},
		{"any-order", &s.AnyOrder},
		{"fail-percent", &s.FailPercent},
		{"stuck-permille", &s.StuckPermille},
		{"session", &s.Session},
		{"heartbeat", &s.Heartbeat},
		{"rebalance", &s.Rebalance},
		{"drain", &s.Drain},
		{"request", &s.Request},
		{"initial-delay", &s.InitialDelay},
		{"delay", &s.Delay},
		{"work", &s.Work},
		{"stuck", &s.Stuck},
		{"stall-permyriad", &s.StallPermyriad},
		{"stall", &s.Stall},
		{"order", choice{(*uint8)(&s.Order), orderNames[:]}},
		{"handler", choice{(*uint8)(&s.Handler), handlerNames[:]}},
		{"workers", &s.Workers},
		{"keys", &s.Keys},
		{"max-wait", &s.MaxWait},
		{"strategy", choice{(*uint8)(&s.Strategy), strategyNames[:]}},
		{"strategy-records", &s.StrategyRecords},
		{"strategy-every", &s.StrategyEvery},
		{"offset-map", &s.OffsetMap},
		{"metadata-limit", &s.MetadataLimit},
		{"commit-every", &s.CommitEvery},
		{"place-every", &s.PlaceEvery},
		{"control-every", &s.ControlEvery},
		{"pause-every", &s.PauseEvery},
		{"pause-for", &s.PauseFor},
		{"token-every", &s.TokenEvery},
		{"token-for", &s.TokenFor},
		{"token-timeout", &s.TokenTimeout},
		{"callbacks", &s.Callbacks},
		{"protocols", choice{(*uint8)(&s.Protocols), protocolNames[:]}},
		{"first-partitions", &s.FirstPartitions},
		{"metadata-age", &s.MetadataAge},
		{"strict", &s.Strict},
		{"horizon", &s.Horizon},
	}
}

// String writes the script; Parse reads it back.
func (s *Script) String() string {
	var b strings.Builder
	for line := range strings.Lines(s.Note) {
		fmt.Fprintf(&b, "# %s\n", strings.TrimSpace(line))
	}
	want := s.Want
	if want == "" {
		want = "ok"
	}
	fmt.Fprintf(&b, "want %s\nmutant %s\n", want, s.Mutant)
	for _, f := range s.fields() {
		switch v := f.value.(type) {
		case *uint64:
			fmt.Fprintf(&b, "%s %d\n", f.name, *v)
		case *int:
			fmt.Fprintf(&b, "%s %d\n", f.name, *v)
		case *bool:
			fmt.Fprintf(&b, "%s %t\n", f.name, *v)
		case *time.Duration:
			fmt.Fprintf(&b, "%s %v\n", f.name, *v)
		case choice:
			fmt.Fprintf(&b, "%s %s\n", f.name, v.names[*v.value])
		}
	}
	for _, fault := range s.Faults {
		b.WriteString(fault.String() + "\n")
	}
	return b.String()
}

// Parse reads a script.
func Parse(text string) (Script, error) {
	var s Script
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		if note, ok := strings.CutPrefix(line, "#"); ok {
			s.Note = strings.TrimSpace(s.Note + "\n" + strings.TrimSpace(note))
			continue
		}
		if line == "" {
			continue
		}
		if err := s.parseLine(strings.Fields(line)); err != nil {
			return Script{}, fmt.Errorf("sim: line %d %q: %w", number, line, err)
		}
	}
	return s, nil
}

func (s *Script) parseLine(words []string) error {
	switch {
	case words[0] == "fault":
		fault, err := parseFault(words)
		s.Faults = append(s.Faults, fault)
		return err
	case len(words) != 2:
		return fmt.Errorf("want a name and a value")
	case words[0] == "want":
		s.Want = words[1]
		return nil
	case words[0] == "mutant":
		var err error
		s.Mutant, err = ParseMutant(words[1])
		return err
	}
	fields := s.fields()
	i := slices.IndexFunc(fields, func(f field) bool { return f.name == words[0] })
	if i < 0 {
		return fmt.Errorf("no such field")
	}
	var err error
	switch v := fields[i].value.(type) {
	case *uint64:
		*v, err = strconv.ParseUint(words[1], 10, 64)
	case *int:
		*v, err = strconv.Atoi(words[1])
	case *bool:
		*v, err = strconv.ParseBool(words[1])
	case *time.Duration:
		*v, err = time.ParseDuration(words[1])
	case choice:
		i := slices.Index(v.names, words[1])
		if i < 0 {
			return fmt.Errorf("want one of %s", strings.Join(v.names, ", "))
		}
		*v.value = uint8(i)
	}
	return err
}

func parseFault(words []string) (Fault, error) {
	if len(words) != 6 {
		return Fault{}, fmt.Errorf("want: fault AT KIND MEMBER FOR AMOUNT")
	}
	at, err := time.ParseDuration(words[1])
	if err != nil {
		return Fault{}, err
	}
	member, err := strconv.Atoi(words[3])
	if err != nil {
		return Fault{}, err
	}
	duration, err := time.ParseDuration(words[4])
	if err != nil {
		return Fault{}, err
	}
	amount, err := strconv.Atoi(words[5])
	return Fault{At: at, Kind: FaultKind(words[2]), Member: member, For: duration, Amount: amount}, err
}
