package stacksim

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// The kinds of actions of somebody who controls a member by hand.
const (
	actSeek        = "seek"
	actSkip        = "skip"
	actSetBack     = "set-back" // CommitOffsets of an offset below the committed one
	actUnsubscribe = "unsubscribe"
	actAbandon     = "abandon"
)

var controls = []string{actSeek, actSeek, actSeek, actSkip, actSkip, actSetBack, actUnsubscribe, actAbandon}

// move is one call that changes what is handled: where it began and ended in the order of everything.
type move struct {
	kind             string
	p                *process
	tp               kafka.TopicPartition
	startSeq, endSeq int
	ended            time.Time
	// to is where a seek goes, or the record that is skipped; from is what was committed when it was called.
	from, to int64
	// tenure is the ownership in which it was called, zero when it was over as the call returned.
	tenure int
	err    error
}

// addControls gives some histories somebody who seeks, skips, commits by hand, changes subscriptions and abandons members. Like
// users of tokens they have randomness of their own. Calm histories have none: what they demand is that nothing is repeated.
func (p *plan) addControls() {
	r := rand.New(rand.NewPCG(p.seed, 0x6374726c))
	if p.calm != "" || !chance(r, 50) {
		return
	}
	for range 4 + r.IntN(20) {
		a := p.newAction(r, pick(r, controls...))
		a.lasts = between(r, 0, 8*time.Second)
		p.actions = append(p.actions, a)
	}
}

func (w *world) actControl(p *process, a action) {
	tp := kafka.TopicPartition{Topic: w.plan.topics[a.topic].name, Partition: a.partition}
	r := w.fate(a.kind, p.name, tp, int64(a.at), 0)
	if a.kind == actAbandon {
		w.ledger.mu.Lock()
		p.abandoned = time.Now()
		w.ledger.mu.Unlock()
		w.endProcess(p, "Abandon", p.consumer.Abandon)
		return
	}
	w.controlling.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), between(r, time.Millisecond, 5*time.Second))
		defer cancel()
		switch a.kind {
		case actSeek:
			w.seek(ctx, p, tp, r)
		case actSkip:
			w.skip(ctx, p, r)
		case actSetBack:
			w.setBack(ctx, p, tp, r)
		case actUnsubscribe:
			w.unsubscribe(ctx, p, a)
		}
	})
}

func (w *world) seek(ctx context.Context, p *process, tp kafka.TopicPartition, r *rand.Rand) {
	committed, end := max(0, w.committed()[tp]), w.endOffsets()[tp]
	to := r.Int64N(end + 1)
	if chance(r, 50) { // a little before or beyond what is committed
		to = min(max(0, committed+int64(r.IntN(20))-10), end)
	}
	m := w.beginMove(actSeek, p, tp, committed, to)
	w.endMove(m, p.consumer.Seek(ctx, rebalance.StartAtOffset(to), tp))
}

// skip leaves out a record that a handler has, if there is one.
func (w *world) skip(ctx context.Context, p *process, r *rand.Rand) {
	w.ledger.mu.Lock()
	open := slices.DeleteFunc(slices.Clone(w.ledger.entries), func(e *entry) bool { return e.p != p || e.endSeq > 0 })
	w.ledger.mu.Unlock()
	if len(open) == 0 {
		return
	}
	s := open[r.IntN(len(open))].spot
	m := w.beginMove(actSkip, p, s.tp, s.offset, s.offset)
	w.endMove(m, p.consumer.Skip(ctx, s.tp, s.offset, "the history asks for it"))
}

func (w *world) setBack(ctx context.Context, p *process, tp kafka.TopicPartition, r *rand.Rand) {
	committed := max(0, w.committed()[tp])
	to := r.Int64N(committed + 1)
	m := w.beginMove(actSetBack, p, tp, committed, to)
	w.endMove(m, p.consumer.CommitOffsets(ctx, kafka.OffsetAndMetadata{TopicPartition: tp, Offset: to, Metadata: "by hand"}))
}

// unsubscribe lets a topic go, or the pattern, and takes it up again, sooner or later.
func (w *world) unsubscribe(ctx context.Context, p *process, a action) {
	if !p.changing.CompareAndSwap(false, true) {
		return
	}
	defer p.changing.Store(false)
	name := w.plan.topics[a.topic].name
	again := p.registration([]string{name})
	if p.plan.pattern {
		name = everyTopic.String()
	}
	w.ledger.note(p.name, "Unsubscribe "+name, p.consumer.Unsubscribe(ctx, name))
	select {
	case <-time.After(a.lasts):
	case <-w.over:
	}
	for {
		within, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		err := p.consumer.Subscribe(within, again)
		cancel()
		w.ledger.note(p.name, "Subscribe "+name, err)
		_, there := errors.AsType[*api.ConfigError](err) // of a call whose time was over, and which was carried out
		if err == nil || there || errors.Is(err, actors.ErrClosing) || p.ended() {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (p *process) ended() bool {
	select {
	case <-p.consumer.Done():
		return true
	default:
		return false
	}
}

func (w *world) beginMove(kind string, p *process, tp kafka.TopicPartition, from, to int64) *move {
	l := w.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	l.noteLocked(p.name, kind, []any{tp, from, to})
	m := &move{kind: kind, p: p, tp: tp, startSeq: l.seq, from: from, to: to, tenure: p.tenure[tp]}
	l.moves = append(l.moves, m)
	return m
}

func (w *world) endMove(m *move, err error) {
	l := w.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	l.noteLocked(m.p.name, m.kind+" returns", []any{m.tp, m.from, m.to, err})
	m.endSeq, m.ended, m.err = l.seq, time.Now(), err
	if m.p.tenure[m.tp] != m.tenure {
		m.tenure = 0
	}
}

// soughtBetween reports whether somebody sought a partition of a process between two moments, or may have.
func (w *world) soughtBetween(p *process, tp kafka.TopicPartition, after, before int) bool {
	return slices.ContainsFunc(w.ledger.moves, func(m *move) bool {
		lasts := m.endSeq == 0 || m.err != nil || m.endSeq > after
		return m.kind == actSeek && m.p == p && m.tp == tp && m.startSeq < before && lasts
	})
}

// sought reports whether somebody asked for the position that a partition goes on at.
func (w *world) sought(s eventSeen, e event.PositionReset) bool {
	return e.Reason == rebalance.ReasonSought && slices.ContainsFunc(w.ledger.moves, func(m *move) bool {
		return m.kind == actSeek && m.p == s.p && m.tp == e.TopicPartition && m.to == e.To && m.startSeq < s.seq
	})
}

// soughtOver reports whether a process may have sought beyond a record after it was begun: then nobody waits for it any more.
func (w *world) soughtOver(e *entry, by int) bool {
	return slices.ContainsFunc(w.ledger.moves, func(m *move) bool {
		lasts := m.endSeq == 0 || m.err != nil || m.endSeq > e.startSeq
		return m.kind == actSeek && m.p == e.p && m.tp == e.tp && m.startSeq < by && lasts && e.offset < m.to
	})
}

// skipped reports whether somebody may have had a record left out by then.
func (w *world) skipped(s spot, by int) bool {
	return slices.ContainsFunc(w.ledger.moves, func(m *move) bool { return m.skips(s) && m.startSeq < by })
}

// cutBySkip reports whether two entries were in one call that a skip may have cut: what it did not come to comes again as if it was
// new.
func (w *world) cutBySkip(before, e *entry) bool {
	return w.visits[visit{e.spot, before.call}] && slices.ContainsFunc(w.ledger.moves, func(m *move) bool {
		return m.kind == actSkip && m.p == e.p && m.tp == e.tp && before.startSeq < m.endSeq && m.startSeq < e.startSeq
	})
}

func (m *move) skips(s spot) bool {
	_, refused := errors.AsType[*actors.SkipError](m.err)
	return m.kind == actSkip && m.tp == s.tp && m.to == s.offset && !refused
}

// leftOut reports whether somebody may have asked by then that a record is not handled: by a skip, or a seek beyond it from
// before it.
func (w *world) leftOut(s spot, by int) bool {
	return slices.ContainsFunc(w.ledger.moves, func(m *move) bool {
		over := m.kind == actSeek && m.tp == s.tp && m.from <= s.offset && s.offset < m.to
		return m.startSeq < by && (over || m.skips(s))
	})
}

// movedBack reports whether a process may commit an offset of a partition that is lower than its last one.
func (w *world) movedBack(c commitSeen) bool {
	return slices.ContainsFunc(w.ledger.moves, func(m *move) bool {
		return m.kind != actSkip && m.p == c.p && m.tp == c.tp && m.startSeq < c.seq && m.to <= c.offset
	})
}

// leftByHand reports whether a record was still with an asynchronous handler or an actor when a seek left its position, or when it
// was skipped: nothing waits for those, a drain neither.
func (w *world) leftByHand(before, e *entry) bool {
	if kind := before.p.plan.kind; kind != "async" && kind != "actor" {
		return false
	}
	return slices.ContainsFunc(w.ledger.moves, func(m *move) bool {
		left := m.kind == actSeek && m.tp == before.tp || m.skips(before.spot)
		return left && m.p == before.p && m.startSeq > before.startSeq && m.startSeq < e.startSeq
	})
}

// checkSeeks: what is committed after a seek has returned was handled since, in the same ownership, from where it went on. What
// is on its way as it returns may still arrive.
func (w *world) checkSeeks() {
	for _, m := range w.ledger.moves {
		w.result.counts.moves++
		if m.kind != actSeek || m.err != nil || m.endSeq == 0 || m.tenure == 0 {
			continue
		}
		for _, c := range w.ledger.commits {
			if c.p != m.p || c.tp != m.tp || c.tenure != m.tenure || !c.at.After(m.ended) || in(w.late, c.at) || w.soughtAgain(m, c.seq) {
				continue
			}
			w.checkSought(m, c)
		}
	}
}

// soughtAgain reports whether another seek may have come between a seek and a moment.
func (w *world) soughtAgain(m *move, by int) bool {
	return slices.ContainsFunc(w.ledger.moves, func(o *move) bool {
		lasts := o.endSeq == 0 || o.err != nil || o.endSeq > m.startSeq
		return o != m && o.kind == actSeek && o.p == m.p && o.tp == m.tp && o.startSeq < by && lasts
	})
}

func (w *world) checkSought(m *move, c commitSeen) {
	since := make(map[int64]bool)
	for _, e := range w.ledger.entries {
		if e.p == m.p && e.tp == m.tp && e.tenure == m.tenure && e.ok && e.startSeq > m.startSeq && e.endSeq < c.seq {
			since[e.offset] = true
		}
	}
	for s := range w.log {
		if s.tp == m.tp && s.offset >= m.to && s.offset < c.offset && !since[s.offset] && !w.skipped(s, c.seq) {
			w.ledger.violated("SEEK", "%s sought %s to %d at #%d and commits %d at #%d, %d was not handled in between", m.p, m.tp, m.to, m.startSeq, c.offset, c.seq, s.offset)
		}
	}
}
