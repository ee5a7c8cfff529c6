package stacksim

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
)

// ledger has all that happened in a history, in one order: what is noted by a cause has a lower number than what is noted by
// its effect.
type ledger struct {
	mu      sync.Mutex
	begun   time.Time
	seq     int
	calls   int
	lines   []line
	entries []*entry
	commits []commitSeen
	events  []eventSeen
	changes []change
	moves   []*move
	broken  []string
}

// line is one line of the trace.
type line struct {
	seq  int
	at   time.Duration
	who  string
	what string
	data any
}

type spot struct {
	tp     kafka.TopicPartition
	offset int64
}

// entry is one record inside of one handler call.
type entry struct {
	spot
	p       *process
	epoch   kafka.AssignmentEpoch
	key     string
	value   string
	attempt int
	call    int
	// tenure counts the ownerships of the partition in the process, by its callbacks.
	tenure int
	// startSeq and endSeq are the order; end and endSeq are zero while the record is inside.
	startSeq, endSeq int
	start, end       time.Time
	ok, panicked     bool
	// unwanted is true when the context had ended before the handler did.
	unwanted bool
}

// commitSeen is one partition of an OffsetCommit that reached a broker.
type commitSeen struct {
	seq        int
	at         time.Time
	p          *process
	member     string
	generation kafka.Generation
	tp         kafka.TopicPartition
	offset     int64
	tenure     int
	owned      ownership
	// revokedIn is the generation in which the process gave the partition up last.
	revokedIn kafka.Generation
}

type eventSeen struct {
	seq int
	at  time.Time
	p   *process
	e   event.Event
}

// change is when a process got a partition or gave it up.
type change struct {
	tp kafka.TopicPartition
	at time.Time
}

// ownership is what the callbacks of a process say of a partition.
type ownership uint8

const (
	neverOwned ownership = iota
	assigning
	owned
	revoking
	revoked
	lost
)

func (o ownership) String() string {
	return [...]string{"never owned", "assigning", "owned", "revoking", "revoked", "lost"}[o]
}

func newLedger() *ledger { return &ledger{begun: time.Now()} }

// next is the next number. The caller holds mu.
func (l *ledger) next() int {
	l.seq++
	return l.seq
}

func (l *ledger) note(who, what string, data any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.noteLocked(who, what, data)
}

func (l *ledger) noteLocked(who, what string, data any) {
	l.lines = append(l.lines, line{l.next(), time.Since(l.begun), who, what, data})
}

// violated notes that a guarantee did not hold.
func (l *ledger) violated(name, format string, a ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.violatedLocked(name, format, a...)
}

func (l *ledger) violatedLocked(name, format string, a ...any) {
	text := name + ": " + fmt.Sprintf(format, a...)
	if len(l.broken) < 50 {
		l.broken = append(l.broken, text)
	}
	l.noteLocked("CHECK", "VIOLATION", text)
}

// open notes records that begin in one call. It returns nil when the process is dead, and so does nothing any more.
func (l *ledger) open(p *process, epoch kafka.AssignmentEpoch, attempt int, records []kafka.Record) []*entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.dead {
		return nil
	}
	l.calls++
	return l.openLocked(p, epoch, attempt, l.calls, records)
}

func (l *ledger) openLocked(p *process, epoch kafka.AssignmentEpoch, attempt, call int, records []kafka.Record) []*entry {
	out := make([]*entry, len(records))
	for i := range records {
		r := &records[i]
		tp := r.TopicPartition()
		out[i] = &entry{
			spot: spot{tp, r.Offset}, p: p, epoch: epoch, key: keyOf(r), value: string(r.Value), attempt: attempt, call: call,
			tenure: p.tenure[tp], startSeq: l.next(), start: time.Now(),
		}
		l.entries = append(l.entries, out[i])
		state := p.owns[tp]
		if state != owned && state != revoking && (state != assigning || !p.plan.badCallbacks) {
			l.violatedLocked("G4", "%s begins %s@%d (epoch %d), which is %v by its callbacks", p, tp, r.Offset, epoch, state)
		}
		if p.paused {
			l.violatedLocked("PAUSE", "%s begins %s@%d while it is paused", p, tp, r.Offset)
		}
	}
	return out
}

// close notes how records ended.
func (l *ledger) close(entries []*entry, ok, panicked, unwanted bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range entries {
		if e.p.dead {
			continue
		}
		e.endSeq, e.end, e.ok, e.panicked, e.unwanted = l.next(), time.Now(), ok, panicked, unwanted
	}
}

func keyOf(r *kafka.Record) string {
	if r.Key == nil {
		return "\x00nil"
	}
	return string(r.Key)
}

// trace is everything, in order.
func (l *ledger) trace() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b strings.Builder
	lines, entries := l.lines, l.entries
	at := func(t time.Time) time.Duration { return t.Sub(l.begun) }
	starts, ends := map[int]*entry{}, map[int]*entry{}
	for _, e := range entries {
		starts[e.startSeq] = e
		if e.endSeq > 0 {
			ends[e.endSeq] = e
		}
	}
	byseq := map[int]line{}
	for _, ln := range lines {
		byseq[ln.seq] = ln
	}
	for seq := 1; seq <= l.seq; seq++ {
		if ln, ok := byseq[seq]; ok {
			fmt.Fprintf(&b, "%6d %12v %-7s %s %.600s\n", seq, ln.at, ln.who, ln.what, strings.ReplaceAll(fmt.Sprintf("%+v", ln.data), "\n", " "))
		}
		if e, ok := starts[seq]; ok {
			fmt.Fprintf(&b, "%6d %12v %-7v begin %s@%d epoch %d attempt %d call %d key %q\n", seq, at(e.start), e.p, e.tp, e.offset, e.epoch, e.attempt, e.call, e.key)
		}
		if e, ok := ends[seq]; ok {
			fmt.Fprintf(&b, "%6d %12v %-7v end   %s@%d epoch %d ok %v panic %v unwanted %v\n", seq, at(e.end), e.p, e.tp, e.offset, e.epoch, e.ok, e.panicked, e.unwanted)
		}
	}
	return b.String()
}
