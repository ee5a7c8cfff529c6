package sim

import "slices"

// actorSide is the partition's side of a user's actor under the key order or without an order (actors/partition_parallel.go).
type actorSide struct {
	// open are the deliveries that the actor holds, respawn is when it comes back after it has failed.
	open    []*delivery
	respawn alarm
}

// hand claims records for the user's actor.
func (e *engine) hand() *delivery {
	claims := e.claim(nil)
	e.eager = true
	if len(claims) == 0 {
		return nil
	}
	return &delivery{shell: e.shell, truth: e.truth, engine: e, claims: claims, open: len(claims), acked: make([]bool, len(claims))}
}

// handOut gives the user's actor deliveries, as many as the workers allow.
func (s *partitionShell) handOut() {
	pool := s.process.handlers
	for s.up && !s.paused {
		if !pool.takeSeat(s.box) {
			return
		}
		d := s.engine.hand()
		if d == nil {
			pool.giveSeat()
			return
		}
		s.open = append(s.open, d)
		d.pace.looked = s.w.at
		for i := range d.claims {
			s.w.check.recordStarted(d, i)
			pool.acknowledgeLater(&handle{engine: s.engine, claim: d, at: i, seq: d.claims[i].Seq, record: d.claims[i].Record})
		}
	}
}

// actorSettles is the user's actor's verdict on one record; when it fails, it may be the actor that does.
func (p *handlerPool) actorSettles(h *handle) {
	d := h.claim
	if d.acked[h.at] {
		return // it was skipped meanwhile
	}
	fails := p.w.faulty && p.w.rng.IntN(100) < p.w.script.FailPercent
	if fails && !d.ended && p.w.extra.IntN(2) == 0 {
		p.w.post(d.shell.box, message{kind: messageActorFailed, payload: d})
		return
	}
	h.settled = true
	stale := d.ended || h.engine.ended
	p.w.check.settled(d, h.record.Offset, !fails, stale)
	if stale {
		p.w.stats.Stale++
		return
	}
	d.acked[h.at] = true
	h.engine.settleOne(h.seq, fails)
	if d.open--; d.open == 0 {
		p.w.post(d.shell.box, message{kind: messageHanded, payload: d})
	}
}

// handed ends a delivery that the user's actor has settled.
func (s *partitionShell) handed(d *delivery) {
	at := slices.Index(s.open, d)
	if at < 0 {
		s.w.stats.Stale++
		return
	}
	s.open = slices.Delete(s.open, at, at+1)
	d.ended = true
	s.process.handlers.giveSeat()
	s.pump()
}

// actorFailed takes back what the user's actor held: it comes again, to the next one.
func (s *partitionShell) actorFailed(d *delivery) {
	if !s.up || !slices.Contains(s.open, d) {
		return
	}
	s.up = false
	for _, d := range s.open {
		d.ended = true
		s.w.check.put(d)
		s.engine.takeBack(d)
		s.process.handlers.giveSeat()
	}
	s.open = nil
	s.w.setAlarmIn(&s.respawn, backoffInitial)
}

// takeBack lets what a delivery did not settle be claimed again.
func (e *engine) takeBack(d *delivery) {
	if e.ended {
		return
	}
	for i := range d.claims {
		seq := d.claims[i].Seq
		if d.acked[i] || e.shell.w.mutant == MutantTakeBackForgets || !e.lanes.Fail(seq) {
			continue
		}
		switch head, parked, _ := e.lanes.Head(seq); {
		case !parked:
		case slices.Contains(e.refused, head):
			e.report(seq)
		default:
			e.lanes.Unpark(head)
		}
	}
	e.notify()
}

// endOpen ends what the user's actor holds, with the engine.
func (s *partitionShell) endOpen() {
	for _, d := range s.open {
		d.ended = true
		s.process.handlers.giveSeat()
	}
	s.open = nil
}

// takeSeat lets a partition hand a delivery out; otherwise it gets a messagePlaceFree when there may be a seat.
func (p *handlerPool) takeSeat(box *mailbox) bool {
	if p.seats < p.w.script.Workers {
		p.seats++
		return true
	}
	if !slices.Contains(p.standing, box) {
		p.standing = append(p.standing, box)
	}
	return false
}

func (p *handlerPool) giveSeat() {
	p.seats--
	p.passSeat()
}

// forget takes a partition that is gone out of the line; it may have been told of a seat that others wait for.
func (p *handlerPool) forget(box *mailbox) {
	p.standing = slices.DeleteFunc(p.standing, func(b *mailbox) bool { return b == box })
	p.passSeat()
}

// passSeat tells whoever waits longest of a seat.
func (p *handlerPool) passSeat() {
	for p.seats < p.w.script.Workers && len(p.standing) > 0 {
		box := p.standing[0]
		p.standing = append(p.standing[:0], p.standing[1:]...)
		if !box.dead {
			p.w.post(box, message{kind: messagePlaceFree})
			return
		}
	}
}

// actorRespawned is the user's actor after a failure.
func (s *partitionShell) actorRespawned() {
	s.up = true
	s.pump()
}
