package sim

import "time"

// pauseRegister is the register of what a process's user has paused (actors/pause.go). It outlives the partitions.
type pauseRegister struct {
	paused []bool
	// calls numbers the calls of Pause and Resume per partition; known is true from when a call of Pause has returned until
	// Resume is called: nothing may begin meanwhile.
	calls []int
	known []bool
}

// pauseWaiter is a call of Pause or Resume that waits for its partitions.
type pauseWaiter struct {
	process *process
	left    int
	parts   []int
	calls   []int
}

func (x *pauseWaiter) one() {
	x.left--
	if x.left > 0 {
		return
	}
	r := &x.process.pauses
	for i, part := range x.parts {
		if r.calls[part] == x.calls[i] {
			r.known[part] = r.paused[part]
			x.process.w.check.pauseReturned(x.process, part)
		}
	}
}

// setPause is Tree.Pause or Tree.Resume.
func (p *process) setPause(paused bool, parts []int) {
	if paused {
		p.w.stats.Pauses++
	}
	x := &pauseWaiter{process: p, parts: parts}
	for _, part := range parts {
		p.pauses.paused[part], p.pauses.known[part] = paused, false
		p.pauses.calls[part]++
		x.calls = append(x.calls, p.pauses.calls[part])
	}
	var owned []*partitionShell
	for _, v := range append(append([]*grantView{}, p.group.leaving...), p.group.parts...) {
		for _, part := range parts {
			if v != nil && v.part == part && !v.shell.stopped {
				owned = append(owned, v.shell)
			}
		}
	}
	x.left = len(owned)
	if len(owned) == 0 {
		x.left = 1
		x.one()
	}
	for _, s := range owned {
		p.w.post(s.box, message{kind: messagePauseChanged, payload: x})
	}
}

// pauseChanged looks at the register.
func (s *partitionShell) pauseChanged(x *pauseWaiter) {
	s.waiters = append(s.waiters, x)
	if s.paused = s.process.pauses.paused[s.part]; s.paused {
		if d := s.delivery; d != nil {
			d.suspended = s.w.mutant != MutantPauseLetsNext
			s.haltRunner(d)
		}
		if s.engine != nil {
			s.engine.pause()
		}
		s.pausedNow()
		return
	}
	s.answerPauses()
	if s.engine != nil {
		s.engine.resume()
	}
	s.pump()
}

// pausedNow answers those who wait for the pause, once nothing can begin and nothing runs.
func (s *partitionShell) pausedNow() {
	if len(s.waiters) == 0 {
		return
	}
	quiet := s.delivery == nil || s.w.script.AnyOrder || s.w.mutant == MutantPauseReturnsEarly
	if s.engine != nil {
		quiet = quiet && (s.engine.pause() == 0 && s.left == nil || s.w.mutant == MutantPauseReturnsEarly)
	}
	if quiet {
		s.answerPauses()
	}
}

func (s *partitionShell) answerPauses() {
	waiters := s.waiters
	s.waiters = nil
	for _, x := range waiters {
		x.one()
	}
}

// What a user does besides: the numbers of eventUser.
const (
	userCommits = iota
	userPauses
	// userResumes ends every pause of a process.
	userResumes
	userPlaces
	// userControls seeks, skips a record, or commits offsets of several partitions.
	userControls
)

// userSoon plans what the users of a process do next.
func (p *process) userSoon(what int64) {
	every := p.w.script.CommitEvery
	switch what {
	case userPauses:
		every = p.w.script.PauseEvery
	case userPlaces:
		every = p.w.script.PlaceEvery
	case userControls:
		if every = p.w.script.ControlEvery; every > 0 {
			p.w.timeline.push(p.w.at+1+p.w.control.Int64N(2*int64(every)), eventUser, what, p)
		}
		return
	}
	if every > 0 {
		p.w.timeline.push(p.w.at+1+p.w.extra.Int64N(2*int64(every)), eventUser, what, p)
	}
}

// free reports whether a user without a token may act on partitions.
func (p *process) free(parts []int) bool {
	return p.group.tokens.Free("call", "the consumer", names(parts)) == nil
}

// userActs commits, or pauses for a while, in a process.
func (p *process) userActs(what int64) {
	if p.dead || p.ended {
		return
	}
	switch {
	case what == userResumes:
		p.resumeAll()
		return
	case p.frozen:
	case what == userPlaces:
		p.userPlacesNow()
	case what == userControls:
		p.userControlsNow()
	case what == userCommits:
		for _, v := range p.group.parts {
			if v != nil && p.free([]int{v.part}) {
				p.w.post(v.shell.box, message{kind: messageCommitWanted, at: p.at() + int64(5*time.Second)})
			}
		}
	case p.w.faulty && p.closeBy == 0:
		parts := []int{p.w.extra.IntN(p.w.script.Partitions)}
		if p.w.extra.IntN(3) == 0 {
			parts = parts[:0]
			for part := range p.w.script.Partitions {
				parts = append(parts, part)
			}
		}
		if !p.free(parts) {
			break
		}
		p.setPause(true, parts)
		p.w.timeline.push(p.w.at+1+p.w.extra.Int64N(int64(p.w.script.PauseFor)+1), eventUser, userResumes, p)
		return
	}
	p.userSoon(what)
}

// resumeAll ends every pause of a process, as soon as its user can.
func (p *process) resumeAll() {
	if p.frozen {
		p.w.timeline.push(p.w.at+int64(100*time.Millisecond), eventUser, userResumes, p)
		return
	}
	var parts []int
	for part, paused := range p.pauses.paused {
		if paused {
			parts = append(parts, part)
		}
	}
	if p.w.faulty && !p.free(parts) {
		p.w.timeline.push(p.w.at+int64(100*time.Millisecond), eventUser, userResumes, p)
		return
	}
	p.setPause(false, parts)
	p.userSoon(userPauses)
}
