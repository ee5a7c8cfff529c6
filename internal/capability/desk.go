package capability

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// Why a token ended that was not returned by its holder, or was not granted.
var (
	// ErrOverdue: the holder's time was over.
	ErrOverdue = errors.New("the holder's time is over")
	// ErrInside: the holder was done while somebody was still inside a call with the token.
	ErrInside = errors.New("returned while a call with it was under way")
	// ErrNothing: there are no partitions that the token could be over, or one that was named is not owned.
	ErrNothing = errors.New("no partition to hold a token over")
	// ErrClosed: the desk was closed while somebody waited.
	ErrClosed = errors.New("the consumer has ended")
)

// How says what happens to an [Asked] whose partitions are under another token.
type How uint8

const (
	// Try: it is refused.
	Try How = iota
	// Wait: it waits its turn.
	Wait
	// Force: the partitions are taken away from whoever has them. It is for a rebalance, which cannot wait.
	Force
)

// DeskInput is one thing that happened, given to [Desk.Step].
type DeskInput interface{ deskInput() }

// Asked: Holder wants the token over Partitions for Op; All means those that are owned when it is granted. It is answered by
// exactly one Granted or Refused with the same ID, unless an Ended with that ID comes first. IDs differ.
type Asked struct {
	ID         uint64
	Holder     Holder
	Op         string
	How        How
	Rights     Rights
	Partitions []kafka.TopicPartition
	All        bool
	// Until is when it is over: the token ends if it was not returned, and nobody waits any longer. Zero for never. With Force
	// it is granted whatever the time.
	Until time.Time
	// For is how long the token may be out at most, from when it is granted; zero for as long as it takes.
	For time.Duration
}

// Ended: whoever asked is done, or waits no longer. Cause is nil for a token that was returned; else it says what became of
// the holder.
type Ended struct {
	ID    uint64
	Cause error
}

// Owned: these partitions came into the consumer's hands.
type Owned struct{ Partitions []kafka.TopicPartition }

// Gone: these partitions are being given up, or were lost. No token covers them any more, and none will until they are owned
// again, but by Force. Who waits for some of them waits for the others.
type Gone struct{ Partitions []kafka.TopicPartition }

// DeskTick: the time that [Desk.Deadline] named has come.
type DeskTick struct{}

func (Asked) deskInput()    {}
func (Ended) deskInput()    {}
func (Owned) deskInput()    {}
func (Gone) deskInput()     {}
func (DeskTick) deskInput() {}

// DeskEffect is one thing the shell must do after [Desk.Step], in the order given.
type DeskEffect interface{ deskEffect() }

// Granted: the token is Key, held by who asked.
type Granted struct {
	ID  uint64
	Key *Key
}

// Refused: there is no token for who asked. Err is a *MisuseError.
type Refused struct {
	ID  uint64
	Err error
}

// Revoked: a token ended that its holder had not returned, or while a call with it was under way: Inside has those calls, the
// lowest first. Cause is one of the sentinels above, or what [Ended] said.
type Revoked struct {
	Grant  Grant
	Cause  error
	Inside []Level
}

func (Granted) deskEffect() {}
func (Refused) deskEffect() {}
func (Revoked) deskEffect() {}

// Grant is one token that is out, as the ledger has it.
type Grant struct {
	ID     uint64
	Holder Holder
	// Op is what it is for.
	Op         string
	Since      time.Time
	Partitions []kafka.TopicPartition
	// Forced is true for those of a rebalance.
	Forced bool
}

// grant is a token that is out.
type grant struct {
	Grant
	key   *Key
	until time.Time
}

// Desk decides who gets the token over which partitions: one holder for each partition at a time, in the order of asking. It
// is the ledger, too. It is owned by the group actor alone and not safe for concurrent use; the keys it grants are.
//
// Invariants (checked by Valid): those of its Mint; every live key of it is in the ledger; who waits has a reason to: some
// partition of it is under a token, or wanted by somebody who asked before. What is under a token is owned, but for those
// by Force.
type Desk struct {
	mint   *Mint
	owned  map[kafka.TopicPartition]struct{}
	grants []*grant
	queue  []Asked
}

// NewDesk returns a desk without tokens and without partitions.
func NewDesk() *Desk {
	return &Desk{mint: NewMint(), owned: make(map[kafka.TopicPartition]struct{})}
}

// Step takes one input at the time now and returns what to do, in order.
func (d *Desk) Step(now time.Time, in DeskInput) []DeskEffect {
	d.prune()
	var effects []DeskEffect
	switch in := in.(type) {
	case Asked:
		effects = d.asked(now, in)
	case Ended:
		effects = d.ended(in)
	case Owned:
		for _, tp := range in.Partitions {
			d.owned[tp] = struct{}{}
		}
	case Gone:
		d.gone(ordered(in.Partitions))
	case DeskTick:
		for _, g := range slices.Clone(d.grants) {
			if over(g.until, now) {
				effects = append(effects, d.end(g, ErrOverdue)...)
			}
		}
	}
	return append(effects, d.serve(now)...)
}

// prune forgets tokens that were returned: that their holder is done will be said, or not, and changes nothing.
func (d *Desk) prune() {
	d.grants = slices.DeleteFunc(d.grants, func(g *grant) bool { return !g.key.alive() })
}

// over reports whether a time has come, if it is one.
func over(until, now time.Time) bool { return !until.IsZero() && !now.Before(until) }

// earlier returns the first of two times that are one.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// Deadline returns when the first token is overdue, or somebody has waited long enough.
func (d *Desk) Deadline() (at time.Time, ok bool) {
	for _, g := range d.grants {
		at = earlier(at, g.until)
	}
	for _, waiting := range d.queue {
		at = earlier(at, waiting.Until)
	}
	return at, !at.IsZero()
}

func (d *Desk) asked(now time.Time, in Asked) []DeskEffect {
	in.Partitions = ordered(in.Partitions)
	if in.How == Force {
		d.mint.Withdraw(d.wanted(in)...)
		return []DeskEffect{d.grant(now, in)}
	}
	if err := d.unowned(in); err != nil {
		return []DeskEffect{Refused{ID: in.ID, Err: err}}
	}
	if in.How == Wait {
		d.queue = append(d.queue, in)
		return nil
	}
	if err := d.free(now, in, len(d.queue)); err != nil {
		return []DeskEffect{Refused{ID: in.ID, Err: err}}
	}
	return []DeskEffect{d.grant(now, in)}
}

// unowned refuses who asks for a partition that is not owned.
func (d *Desk) unowned(in Asked) *MisuseError {
	for _, tp := range in.Partitions {
		if _, owned := d.owned[tp]; !owned && !in.All {
			return &MisuseError{Op: in.Op, Asker: in.Holder, Partition: tp, Reason: ErrNothing}
		}
	}
	return nil
}

func (d *Desk) ended(in Ended) []DeskEffect {
	d.queue = slices.DeleteFunc(d.queue, func(waiting Asked) bool { return waiting.ID == in.ID })
	for _, g := range d.grants {
		if g.ID == in.ID {
			return d.end(g, in.Cause)
		}
	}
	return nil
}

// end takes a token back.
func (d *Desk) end(g *grant, cause error) []DeskEffect {
	covered := g.key.Partitions()
	alive, inside := d.mint.Confiscate(g.key)
	d.grants = slices.DeleteFunc(d.grants, func(other *grant) bool { return other == g })
	if cause == nil && len(inside) > 0 {
		cause = ErrInside
	}
	if cause == nil || !alive {
		return nil // returned, if only just now
	}
	g.Partitions = covered
	return []DeskEffect{Revoked{Grant: g.Grant, Cause: cause, Inside: inside}}
}

// gone takes partitions away from all tokens and from those who wait for them.
func (d *Desk) gone(partitions []kafka.TopicPartition) {
	d.mint.Withdraw(partitions...)
	for i := range d.queue {
		d.queue[i].Partitions = without(d.queue[i].Partitions, partitions)
	}
	for _, tp := range partitions {
		delete(d.owned, tp)
	}
}

// serve grants what can be granted, in the order of asking. Nobody overtakes who asked before for one of the same partitions.
func (d *Desk) serve(now time.Time) []DeskEffect {
	var effects []DeskEffect
	for i := 0; i < len(d.queue); {
		waiting := d.queue[i]
		err := d.free(now, waiting, i)
		if err != nil && err.Reason == ErrHeld {
			i++
			continue
		}
		d.queue = slices.Delete(d.queue, i, i+1)
		if err != nil {
			effects = append(effects, Refused{ID: waiting.ID, Err: err})
			continue
		}
		effects = append(effects, d.grant(now, waiting))
	}
	return effects
}

// wanted returns the partitions that an Asked is about, as things are.
func (d *Desk) wanted(in Asked) []kafka.TopicPartition {
	if !in.All {
		return in.Partitions
	}
	all := make([]kafka.TopicPartition, 0, len(d.owned))
	for tp := range d.owned {
		all = append(all, tp)
	}
	return ordered(all)
}

// free reports why an Asked cannot be granted now: a token that is out, or one of the first waiting, which asked before; or
// why it never will be.
func (d *Desk) free(now time.Time, in Asked, before int) *MisuseError {
	wanted := d.wanted(in)
	if len(wanted) == 0 {
		return &MisuseError{Op: in.Op, Asker: in.Holder, Reason: ErrNothing}
	}
	held := d.held(in.Op, in.Holder, wanted)
	if over(in.Until, now) {
		refused := &MisuseError{Op: in.Op, Asker: in.Holder, Reason: ErrOverdue}
		if held != nil {
			refused.Holder, refused.HolderOp, refused.Since, refused.Partition, refused.Forced = held.Holder, held.HolderOp, held.Since, held.Partition, held.Forced
		}
		return refused
	}
	if held != nil {
		return held
	}
	for _, earlier := range d.queue[:before] {
		if tp, both := common(wanted, d.wanted(earlier)); both {
			return &MisuseError{Op: in.Op, Asker: in.Holder, Holder: earlier.Holder, HolderOp: earlier.Op, Partition: tp, Reason: ErrHeld}
		}
	}
	return nil
}

// held refuses an operation on partitions of which one, in order, is under a token.
func (d *Desk) held(op string, asker Holder, partitions []kafka.TopicPartition) *MisuseError {
	for _, g := range d.grants {
		if tp, both := common(partitions, g.key.Partitions()); both {
			holder, holderOp := g.key.top()
			return &MisuseError{
				Op: op, Asker: asker, Holder: holder, HolderOp: holderOp, Since: g.Since, Partition: tp, Reason: ErrHeld, Forced: g.Forced,
			}
		}
	}
	return nil
}

// common returns the first partition that is in both, which are ordered.
func common(a, b []kafka.TopicPartition) (kafka.TopicPartition, bool) {
	for i, j := 0, 0; i < len(a) && j < len(b); {
		switch c := a[i].Compare(b[j]); {
		case c == 0:
			return a[i], true
		case c < 0:
			i++
		default:
			j++
		}
	}
	return kafka.TopicPartition{}, false
}

func (d *Desk) grant(now time.Time, in Asked) DeskEffect {
	partitions := d.wanted(in)
	key, err := d.mint.Grant(in.Holder, partitions...)
	if err != nil {
		return Refused{ID: in.ID, Err: err}
	}
	key.op = in.Op
	key.family.rights, key.family.since, key.family.forced = in.Rights, now, in.How == Force
	g := &grant{
		Grant: Grant{ID: in.ID, Holder: in.Holder, Op: in.Op, Since: now, Partitions: partitions, Forced: in.How == Force},
		key:   key, until: in.Until,
	}
	if in.For > 0 {
		g.until = earlier(g.until, now.Add(in.For))
	}
	d.grants = append(d.grants, g)
	return Granted{ID: in.ID, Key: key}
}

// Free refuses an operation by somebody without a token, with a *MisuseError, if one of the partitions is under one.
func (d *Desk) Free(op string, asker Holder, partitions []kafka.TopicPartition) error {
	if err := d.held(op, asker, ordered(partitions)); err != nil {
		return err
	}
	return nil
}

// Authorize refuses an operation by who has acquired key for it, with a *MisuseError, unless the key is a live one of this
// desk, covers the partitions, and has that right.
func (d *Desk) Authorize(key *Key, right Rights, op string, partitions []kafka.TopicPartition) error {
	by := key.Holder()
	if err := key.Check(by, op, partitions...); err != nil {
		return err
	}
	if !d.mint.own(key) {
		return &MisuseError{Op: op, Asker: by, Reason: ErrRevoked}
	}
	if right&^key.family.rights != 0 {
		return &MisuseError{Op: op, Asker: by, Holder: by, HolderOp: key.op, Since: key.family.since, Reason: ErrNotAllowed, Rights: key.family.rights}
	}
	return nil
}

// Ledger returns the tokens that are out, in the order of granting, each with who has it now. One that was returned and whose
// [Ended] is still to come is not out any more: others may have its partitions by now.
func (d *Desk) Ledger() []Grant {
	ledger := make([]Grant, 0, len(d.grants))
	for _, g := range d.grants {
		entry := g.Grant
		entry.Holder, _ = g.key.top()
		entry.Partitions = g.key.Partitions()
		if g.key.alive() && entry.Partitions != nil {
			ledger = append(ledger, entry) // the others were returned just now
		}
	}
	return ledger
}

// Close ends every token for ever, and refuses who waits with ErrClosed.
func (d *Desk) Close() []DeskEffect {
	var effects []DeskEffect
	for _, waiting := range d.queue {
		effects = append(effects, Refused{ID: waiting.ID, Err: &MisuseError{Op: waiting.Op, Asker: waiting.Holder, Reason: ErrClosed}})
	}
	for _, g := range d.grants {
		d.mint.Revoke(g.key)
	}
	d.grants, d.queue = nil, nil
	clear(d.owned)
	return effects
}

// Valid checks the invariants named at the type. It is exact only while no key is in use by another goroutine.
func (d *Desk) Valid() error {
	if err := d.mint.Valid(); err != nil {
		return err
	}
	live := 0
	for _, g := range d.grants {
		if g.key.Holder() == "" {
			continue
		}
		live++
		for _, tp := range g.key.Partitions() {
			if _, owned := d.owned[tp]; !owned && !g.Forced {
				return fmt.Errorf("capability: %s is not owned and under the token of %q", tp, g.Holder)
			}
		}
	}
	if keys := d.mint.Live(); keys != live {
		return fmt.Errorf("capability: %d keys are live, the ledger has %d", keys, live)
	}
	for i, waiting := range d.queue {
		if err := d.free(time.Time{}, waiting, i); err == nil || err.Reason != ErrHeld {
			return fmt.Errorf("capability: %q waits for %s without a reason: %w", waiting.Holder, waiting.Op, err)
		}
	}
	return nil
}
