package sim

import (
	"slices"
	"time"
)

// session is actors/session.go: until when the membership can be trusted. The heartbeat moves that on; whoever delivers,
// begins a record or sends a round looks at it first.
type session struct {
	w       *World
	process *process
	// until is 0 before the first generation: the heartbeat may be held up and hear of it late, so that is no session to trust.
	until int64
	// lapsed is true from when a session was given up until the next one begins.
	lapsed bool
	// waiting are actors, held the handlers' goroutines, that wait for a new reason to look again.
	waiting []*mailbox
	held    []*delivery
}

// begin starts the session of a generation: it counts from when its SyncGroup was sent, for the answer may have waited.
func (s *session) begin(since int64) {
	if s.w.mutant == MutantNoNudge || s.w.mutant == MutantSessionFromEntering {
		since = s.process.at()
	}
	s.lapsed = false
	s.until = since + int64(s.w.script.Session)
	s.tell()
}

// alive: a heartbeat that was sent at a time has been answered.
func (s *session) alive(sentAt time.Time) {
	if until := int64(sentAt.Sub(epochStart) + s.w.script.Session); !s.lapsed && until > s.until {
		s.until = until
		s.tell()
	}
}

func (s *session) lapse() {
	s.lapsed = true
	s.tell()
}

func (s *session) tell() {
	waiting, held := s.waiting, s.held
	s.waiting, s.held = nil, nil
	for _, b := range waiting {
		s.w.post(b, message{kind: messagePlaceFree})
	}
	for _, d := range held {
		s.w.post(d.shell.process.handlers.box, message{kind: messageHandlerGoesOn, payload: d})
	}
}

func (s *session) over() bool {
	if s.until == 0 && s.w.mutant == MutantNoSessionTrusted {
		return false
	}
	return s.process.at() >= s.until && s.w.mutant != MutantSessionNotAsked
}

// enter lets an actor begin something; otherwise it gets a messagePlaceFree when there is a new reason to ask again.
func (s *session) enter(box *mailbox) bool {
	if !s.over() {
		return true
	}
	if !slices.Contains(s.waiting, box) {
		s.waiting = append(s.waiting, box)
	}
	return false
}

// hold is session.hold, one turn of its loop at a time: it reports whether a handler may go on. If not, a
// messageHandlerGoesOn comes when that may have changed.
func (s *session) hold(d *delivery) bool {
	if d.canceled || !s.over() && !d.lost {
		d.held, d.lost = false, false
		d.pace.looked = s.w.at
		return true
	}
	d.held = true
	d.lost = s.w.mutant == MutantLapseForGood && (d.lost || s.lapsed)
	if !d.lost && !slices.Contains(s.held, d) {
		s.held = append(s.held, d)
	}
	return false
}

// pacer is the pacer of actors/session.go: it says before which records of a delivery the clock is worth a look.
type pacer struct {
	next, step int
	last       int64
	// looked is when the clock was looked at last, for the checker.
	looked int64
}

const (
	pacerMax  = 16
	pacerFast = 500 * time.Microsecond
)

func (p *pacer) due(i int, now int64) bool {
	if i < p.next {
		return false
	}
	if p.step == 0 || now-p.last > int64(pacerFast) {
		p.step = 1
	} else {
		p.step = min(2*p.step, pacerMax)
	}
	p.next, p.last = i+p.step, now
	return true
}
