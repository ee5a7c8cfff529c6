package stacksim

import (
	"slices"
	"strings"
	"time"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
)

// check goes through what was noted. Nothing runs any more.
func (w *world) check() {
	w.index()
	w.checkHandled()
	w.checkOrder()
	w.checkCommits()
	w.checkMembers()
	w.checkEvents()
	w.checkIsolation()
	w.checkCalm()
	w.checkTokens()
	w.checkSeeks()
	c := &w.result.counts
	c.processes, c.records, c.deliveries, c.commits, c.overdue = len(w.processes), len(w.log), len(w.ledger.entries), len(w.ledger.commits), w.overdue
}

// visit is a record in one call, finish one in one ownership.
type visit struct {
	spot
	call int
}

type finish struct {
	spot
	p      *process
	tenure int
}

// index makes looking up quick.
func (w *world) index() {
	w.visits, w.finished = make(map[visit]bool), make(map[finish]int)
	for _, e := range w.ledger.entries {
		w.visits[visit{e.spot, e.call}] = true
		key := finish{e.spot, e.p, e.tenure}
		if was := w.finished[key]; e.ok && e.endSeq > 0 && (was == 0 || e.endSeq < was) {
			w.finished[key] = e.endSeq
		}
	}
}

// in reports whether a time is in one of the spans.
func in(spans []span, at time.Time) bool {
	return slices.ContainsFunc(spans, func(s span) bool { return !at.Before(s.from) && !at.After(s.until) })
}

// firsts are the first successes at each record, by anybody.
func (w *world) firsts() map[spot]*entry {
	first := make(map[spot]*entry)
	for _, e := range w.ledger.entries {
		if e.ok && e.endSeq > 0 && (first[e.spot] == nil || e.endSeq < first[e.spot].endSeq) {
			first[e.spot] = e
		}
	}
	return first
}

// checkHandled is G1: every record was handled, nothing else was, and each as it was written.
func (w *world) checkHandled() {
	first, times := w.firsts(), make(map[spot]int)
	for s := range w.log {
		if first[s] == nil && !w.leftOut(s, w.ledger.seq+1) {
			w.ledger.violated("G1", "%s@%d was never handled", s.tp, s.offset)
		}
	}
	for _, e := range w.ledger.entries {
		if e.ok {
			times[e.spot]++
		}
		if was, ok := w.log[e.spot]; !ok {
			w.ledger.violated("G1", "%s got %s@%d, which was aborted", e.p, e.tp, e.offset)
		} else if was.value != e.value {
			w.ledger.violated("RECORD", "%s got %q at %s@%d, written was %q", e.p, e.value, e.tp, e.offset, was.value)
		}
	}
	for _, n := range times {
		if n > 1 {
			w.result.counts.repeated++
		}
	}
}

// lane is what one thing at a time is done on in one process.
type lane struct {
	p   *process
	tp  kafka.TopicPartition
	key string
}

func (e *entry) lane() lane {
	l := lane{p: e.p, tp: e.tp}
	switch e.p.plan.order {
	case "key":
		l.key = e.key
	case "none":
		l.key = string(rune(e.offset))
	}
	return l
}

// byCall reports whether the kind of handler is inside until its call returns; the others are until their verdict, which
// nobody waits for over the end of an ownership.
func (p *process) byCall() bool { return p.plan.kind == "record" || p.plan.kind == "batch" }

// oneDelivery reports whether two entries may be in the hands of a handler at the same time.
func oneDelivery(a, b *entry) bool {
	return a.call == b.call || a.p.plan.kind == "async" && a.p.plan.maxRecords > 1 && a.p.plan.order != "none"
}

// checkOrder is G2.
func (w *world) checkOrder() {
	lanes := make(map[lane][]*entry)
	for _, e := range w.ledger.entries {
		lanes[e.lane()] = append(lanes[e.lane()], e)
	}
	for _, entries := range lanes {
		for i, e := range entries {
			for _, before := range entries[:i] {
				w.checkPair(before, e)
			}
		}
	}
}

// checkPair looks at two records of one lane, of which before began first.
func (w *world) checkPair(before, e *entry) {
	inside := before.endSeq == 0 || before.endSeq > e.startSeq
	moved, skipped := w.soughtBetween(e.p, e.tp, before.startSeq, e.startSeq), w.skipped(before.spot, e.startSeq)
	if inside && before.call != e.call && !oneDelivery(before, e) && (e.p.byCall() || before.epoch == e.epoch && !moved && !skipped) {
		w.ledger.violated("G2", "%s is inside %s@%d (epoch %d, call %d) and begins %s@%d (epoch %d, call %d)", e.p, before.tp, before.offset,
			before.epoch, before.call, e.tp, e.offset, e.epoch, e.call)
	}
	if before.epoch > e.epoch {
		w.ledger.violated("G2", "%s begins %s@%d of epoch %d after epoch %d", e.p, e.tp, e.offset, e.epoch, before.epoch)
	}
	if before.epoch != e.epoch || before.call == e.call || e.p.plan.order == "none" || moved {
		return
	}
	if before.offset > e.offset && e.attempt == 1 && !w.cutBySkip(before, e) {
		w.ledger.violated("G2", "%s begins %s@%d after %d", e.p, e.tp, e.offset, before.offset)
	}
	if before.offset < e.offset && !w.visits[visit{before.spot, e.call}] && !oneDelivery(before, e) && !skipped && !w.succeeded(before, e.startSeq) {
		w.ledger.violated("G2", "%s begins %s@%d (epoch %d) although %d is not finished", e.p, e.tp, e.offset, e.epoch, before.offset)
	}
}

// succeeded reports whether a record was finished in the ownership of an entry before a time.
func (w *world) succeeded(e *entry, seq int) bool {
	end := w.finished[finish{e.spot, e.p, e.tenure}]
	return end > 0 && end < seq
}

// checkCommits is G3 and what G4 says of commits.
func (w *world) checkCommits() {
	first := w.firsts()
	type term struct {
		p          *process
		generation kafka.Generation
		tp         kafka.TopicPartition
		tenure     int // a member that joins again may be told the same generation
	}
	last := make(map[term]int64)
	under := make(map[kafka.TopicPartition][]int64)
	for s := range w.log {
		under[s.tp] = append(under[s.tp], s.offset)
	}
	for _, c := range w.ledger.commits {
		for _, offset := range under[c.tp] {
			if f := first[spot{c.tp, offset}]; offset < c.offset && (f == nil || f.endSeq > c.seq) && !w.leftOut(spot{c.tp, offset}, c.seq) {
				w.ledger.violated("G3", "%s commits %s up to %d at #%d, %d is not finished", c.p, c.tp, c.offset, c.seq, offset)
			}
		}
		w.checkOpen(c)
		explained := in(w.late, c.at)
		t := term{c.p, c.generation, c.tp, c.tenure}
		if was, ok := last[t]; ok && c.offset < was && w.movedBack(c) {
			last[t] = c.offset
		} else if ok && c.offset < was {
			if w.result.counts.late++; !explained {
				w.ledger.violated("G4", "%s commits %s up to %d after %d in generation %d at #%d", c.p, c.tp, c.offset, was, c.generation, c.seq)
			}
		}
		last[t] = max(last[t], c.offset)
		if (c.owned == revoked || c.owned == lost) && c.generation <= c.revokedIn {
			if w.result.counts.late++; !explained {
				w.ledger.violated("G4", "%s commits %s up to %d in generation %d at #%d, which is %v in %d", c.p, c.tp, c.offset, c.generation, c.seq, c.owned, c.revokedIn)
			}
		}
	}
}

// checkOpen demands that nothing below a commit was open in the ownership that sent it.
func (w *world) checkOpen(c commitSeen) {
	for _, e := range w.ledger.entries {
		if e.p == c.p && e.tp == c.tp && e.tenure == c.tenure && e.offset < c.offset && e.startSeq < c.seq && !w.succeeded(e, c.seq) &&
			!w.skipped(e.spot, c.seq) && !w.soughtOver(e, c.seq) {
			w.ledger.violated("G3", "%s commits %s up to %d at #%d, %d is open in it", c.p, c.tp, c.offset, c.seq, e.offset)
		}
	}
}

// checkMembers is G5: two members inside one partition only where Kafka allows it.
func (w *world) checkMembers() {
	by := make(map[kafka.TopicPartition][]*entry)
	for _, e := range w.ledger.entries {
		by[e.tp] = append(by[e.tp], e)
	}
	for _, entries := range by {
		for i, e := range entries {
			for _, before := range entries[:i] {
				if before.p == e.p || before.endSeq > 0 && before.endSeq < e.startSeq {
					continue
				}
				w.result.counts.overlaps++
				if !w.mayOverlap(before, e) && !w.mayOverlap(e, before) { // the newer one may be the one that does not know of its loss
					w.ledger.violated("G5", "%s begins %s@%d while %s is inside %d", e.p, e.tp, e.offset, before.p, before.offset)
				}
			}
		}
	}
}

// mayOverlap reports whether the process of before had given the partition up or lost it, or was gone.
func (w *world) mayOverlap(before, e *entry) bool {
	p := before.p
	if before.startSeq < e.startSeq && w.leftByHand(before, e) {
		return true
	}
	if !p.died.IsZero() && !p.died.After(e.start) || p.closeErr != nil || !p.abandoned.IsZero() && !p.abandoned.After(e.start) {
		return true
	}
	return slices.ContainsFunc(w.ledger.events, func(s eventSeen) bool {
		if s.p != p || s.seq < before.startSeq {
			return false
		}
		switch seen := s.e.(type) {
		case event.PartitionsLost:
			return slices.Contains(seen.Partitions, e.tp)
		case event.HandlerAbandoned:
			return seen.TopicPartition == e.tp && seen.Epoch == before.epoch
		case event.PartitionReleased:
			return seen.TopicPartition == e.tp && seen.Epoch == before.epoch && seen.Uncommitted > 0
		}
		return false
	})
}

// checkEvents is G9 and G10, and what G4 says of deliveries.
func (w *world) checkEvents() {
	type ownershipOf struct {
		p     *process
		tp    kafka.TopicPartition
		epoch kafka.AssignmentEpoch
	}
	failures, told, released := make(map[ownershipOf]map[int]bool), make(map[ownershipOf]int), make(map[ownershipOf]int)
	for _, s := range w.ledger.events {
		switch e := s.e.(type) {
		case event.HandlerFailed:
			w.result.counts.failures++
			told[ownershipOf{s.p, e.TopicPartition, e.Epoch}]++
			if e.Panic && !strings.Contains(e.Err.Error(), "scripted") {
				w.ledger.violated("G10", "%s: %v", s.p, e.Err)
			}
		case event.ActorRestarted:
			w.ledger.violated("G10", "%s: actor %s restarted: %v", s.p, e.Actor, e.Err)
		case event.Refused:
			if s.p.plan.limit > 0 && strings.Contains(e.Err.Error(), "giving up: ") {
				continue // it could not say that it leaves, and says so
			}
			w.ledger.violated("REFUSED", "%s: %v", s.p, e.Err)
		case event.StrategyFailed, event.PartitionFailed:
			w.ledger.violated("G10", "%s: %s %+v", s.p, e.Name(), e)
		case event.CallbackFailed:
			if !s.p.plan.badCallbacks && !strings.Contains(e.Err.Error(), "context") {
				w.ledger.violated("CALLBACK", "%s: %s: %v", s.p, e.Callback, e.Err)
			}
		case event.Closed:
			if e.Err != nil && s.p.closing.IsZero() { // one that cannot say that it leaves says so
				w.ledger.violated("FATAL", "%s: %v", s.p, e.Err)
			}
		case event.PartitionsLost:
			w.result.counts.lost++
			if w.plan.calm != "" {
				w.ledger.violated("G6", "%s lost %v: %v", s.p, e.Partitions, e.Err)
			}
		case event.PositionReset:
			if e.Reason != "no_commit" && e.Reason != "new_partition" && !w.sought(s, e) {
				w.ledger.violated("POSITION", "%s: %+v", s.p, e)
			}
		case event.ProcessingOverdue:
			w.result.counts.gaveUp++
		case event.HandlerAbandoned:
			w.result.counts.abandoned++
		case event.PartitionsAssigned:
			w.result.counts.rebalances++
		case event.PartitionReleased:
			released[ownershipOf{s.p, e.TopicPartition, e.Epoch}] = s.seq
		}
	}
	for _, e := range w.ledger.entries {
		key := ownershipOf{e.p, e.tp, e.epoch}
		if seq, ok := released[key]; ok && e.startSeq > seq {
			w.ledger.violated("G4", "%s begins %s@%d of epoch %d, which was released at #%d", e.p, e.tp, e.offset, e.epoch, seq)
		}
		if e.endSeq > 0 && !e.ok && !e.unwanted && e.p.died.IsZero() && e.p.byCall() && !w.soughtBetween(e.p, e.tp, e.startSeq, w.ledger.seq+1) && !w.skipped(e.spot, w.ledger.seq+1) {
			if failures[key] == nil {
				failures[key] = make(map[int]bool)
			}
			failures[key][e.call] = true
		}
	}
	for key, calls := range failures {
		if told[key] < len(calls) {
			w.ledger.violated("G9", "%d calls failed in %s at %s (epoch %d), %d were told", len(calls), key.p, key.tp, key.epoch, told[key])
		}
	}
}

// isolated is how long a record may wait in a calm history, for other partitions' blocked handlers.
const isolated = 4 * time.Second

// checkIsolation is G7: while the handler of one partition is blocked the records of the others are handled.
func (w *world) checkIsolation() {
	if w.plan.calm != calmBlocks {
		return
	}
	first := w.firsts()
	for _, b := range w.blocks {
		if b.begun.IsZero() {
			continue
		}
		for s, r := range w.log {
			also := slices.ContainsFunc(w.blocks, func(o *block) bool { return o.tp == s.tp })
			if also || r.at.Before(b.begun) || r.at.After(b.ended.Add(-isolated)) {
				continue
			}
			w.result.counts.beside++
			if f := first[s]; f != nil && f.end.Sub(r.at) > isolated {
				w.ledger.violated("G7", "%s@%d waited for %v while %s was blocked", s.tp, s.offset, f.end.Sub(r.at), b.tp)
			}
		}
	}
}

// moment is how long a record may wait in a calm history that moves members, at a partition that does not move.
const moment = 2 * time.Second

// stoodFor is the longest time in a span in which nothing of a partition was finished: one that has much to do may be behind.
func stoodFor(ends []time.Time, from, to time.Time) (longest time.Duration) {
	slices.SortFunc(ends, time.Time.Compare)
	for _, end := range ends {
		if end.After(from) && !end.After(to) {
			longest, from = max(longest, end.Sub(from)), end
		}
	}
	return longest
}

// checkCalm is G5 where nothing fails: what was handled is not handled again, however partitions move, and those that stay
// with their member flow on.
func (w *world) checkCalm() {
	if w.plan.calm == "" {
		return
	}
	first := w.firsts()
	for _, e := range w.ledger.entries {
		if f := first[e.spot]; e.ok && f != e {
			w.ledger.violated("G5", "%s handled %s@%d at %v, which %s had at %v", e.p, e.tp, e.offset, e.end.Sub(w.ledger.begun), f.p, f.end.Sub(w.ledger.begun))
		}
	}
	if w.plan.calm != calmMoves || !slices.Equal(w.plan.lists[0], []string{"cooperative-sticky"}) {
		return
	}
	ends := make(map[kafka.TopicPartition][]time.Time)
	for _, f := range first {
		ends[f.tp] = append(ends[f.tp], f.end)
	}
	for s, r := range w.log {
		f := first[s]
		if f == nil || f.end.Sub(r.at) <= moment || stoodFor(ends[s.tp], r.at, f.end) <= moment {
			continue
		}
		moved := slices.ContainsFunc(w.ledger.changes, func(c change) bool {
			return c.tp == s.tp && c.at.After(r.at.Add(-moment)) && !c.at.After(f.end)
		})
		if !moved {
			w.ledger.violated("G5", "%s@%d waited for %v at a partition that did not move", s.tp, s.offset, f.end.Sub(r.at))
		}
	}
}
