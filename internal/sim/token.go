package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/troupego/troupe/internal/capability"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// tokenDesk is the group's side of the tokens, as actors/desk.go has it.
type tokenDesk struct {
	*capability.Desk
	alarm alarm
	// asked are the users that have no answer, in the order of asking.
	asked []*tokenUser
	// granted are the keys of callbacks that are about to begin.
	granted map[uint64]*capability.Key
	nextID  uint64
	number  int
	// keys are all that were ever made, for the checker.
	keys []*knownKey
	callbacks
}

// knownKey is what the checker knows of a key.
type knownKey struct {
	key *capability.Key
	// epochs are those that its partitions had when it was granted.
	epochs []kafka.AssignmentEpoch
	// dead from when it was seen dead, or given on.
	dead bool
}

// newTokens gives a process what its tokens need.
func (g *groupShell) newTokens() {
	g.tokens = tokenDesk{Desk: capability.NewDesk(), granted: map[uint64]*capability.Key{}}
	g.tokens.alarm.box, g.tokens.callbackAlarm.box = g.box, g.box
	g.process.users = &tokenUsers{w: g.w, process: g.process}
	if g.w.script.TokenEvery > 0 || g.w.script.Callbacks {
		g.process.users.box = g.process.newBox(g.process.users)
	}
}

// names are the partitions of numbers.
func names(parts []int) []kafka.TopicPartition {
	out := make([]kafka.TopicPartition, len(parts))
	for i, part := range parts {
		out[i] = tpOf(part)
	}
	return out
}

// stepDesk steps the desk and runs what it says.
func (g *groupShell) stepDesk(in capability.DeskInput) {
	d := &g.tokens
	for _, effect := range d.Step(g.process.now(), in) {
		g.deskSays(effect)
	}
	at, ok := d.Deadline()
	g.w.setAlarm(&d.alarm, at, ok)
	if err := d.Valid(); err != nil {
		g.w.violate("TOKEN", err.Error())
	}
	g.w.check.tokens(g)
}

func (g *groupShell) deskSays(effect capability.DeskEffect) {
	d := &g.tokens
	switch e := effect.(type) {
	case capability.Granted:
		if u := d.answered(e.ID); u != nil {
			g.w.check.served(g, u, e.Key)
			g.w.stats.Tokens++
			g.w.post(g.process.users.box, message{kind: messageTokenAnswered, payload: &tokenAnswer{user: u, key: e.Key}})
		} else {
			d.granted[e.ID] = e.Key
		}
		g.knows(e.Key)
	case capability.Refused:
		if u := d.answered(e.ID); u != nil {
			g.w.stats.TokensRefused++
			g.w.post(g.process.users.box, message{kind: messageTokenAnswered, payload: &tokenAnswer{user: u, err: e.Err}})
		}
	case capability.Revoked:
		g.w.stats.TokensRevoked++
	}
}

// knows notes a key for the checker.
func (g *groupShell) knows(key *capability.Key) {
	known := &knownKey{key: key, epochs: make([]kafka.AssignmentEpoch, g.w.script.Partitions)}
	for part, v := range g.parts {
		if v != nil {
			known.epochs[part] = v.epoch
		}
	}
	g.tokens.keys = append(g.tokens.keys, known)
}

// answered takes a user out of those who have no answer.
func (d *tokenDesk) answered(id uint64) *tokenUser {
	i := slices.IndexFunc(d.asked, func(u *tokenUser) bool { return u.id == id })
	if i < 0 {
		return nil
	}
	u := d.asked[i]
	d.asked = slices.Delete(d.asked, i, i+1)
	return u
}

// tokenWanted is a user's call for a token.
func (g *groupShell) tokenWanted(u *tokenUser) {
	asked := u.asked
	if wants := g.wants(u); g.w.mutant == MutantTokenOvertakes && g.mine(wants) && g.tokens.Free("token", asked.Holder, wants) == nil {
		asked.How, asked.Partitions, asked.All = capability.Force, wants, false
	}
	d := &g.tokens
	d.number++
	u.number = d.number
	d.asked = append(d.asked, u)
	g.stepDesk(asked)
}

// mine reports whether partitions are owned, and not being given up.
func (g *groupShell) mine(partitions []kafka.TopicPartition) bool {
	return !slices.ContainsFunc(partitions, func(tp kafka.TopicPartition) bool {
		v := g.parts[tp.Partition]
		return v == nil || v.revoking || v.lost
	})
}

// wants is what a user wants, as things are.
func (g *groupShell) wants(u *tokenUser) []kafka.TopicPartition {
	if !u.asked.All {
		return u.asked.Partitions
	}
	var parts []int
	for part, v := range g.parts {
		if v != nil && !v.revoking && !v.lost {
			parts = append(parts, part)
		}
	}
	return names(parts)
}

// tokenLeft is the word that a user is done.
func (g *groupShell) tokenLeft(id uint64, cause error) {
	g.tokens.answered(id)
	g.stepDesk(capability.Ended{ID: id, Cause: cause})
}

func partitionsOf(grants []rebalance.Grant) []kafka.TopicPartition {
	out := make([]kafka.TopicPartition, len(grants))
	for i, grant := range grants {
		out[i] = grant.TopicPartition
	}
	return out
}

// owned lets tokens be granted over partitions that came.
func (g *groupShell) owned(grants []rebalance.Grant) {
	if len(grants) > 0 {
		g.stepDesk(capability.Owned{Partitions: partitionsOf(grants)})
	}
}

// gone takes partitions that are given up, lost, or let go at last, out of all tokens.
func (g *groupShell) gone(grants []rebalance.Grant, lost bool) {
	if g.w.mutant == MutantRevokedUnderToken && !lost || g.w.mutant == MutantLostUnderToken && lost {
		return
	}
	parts := partitionsOf(grants)
	for _, u := range g.tokens.asked { // they wait for the others
		u.asked.Partitions = slices.DeleteFunc(slices.Clone(u.asked.Partitions), func(tp kafka.TopicPartition) bool {
			return slices.Contains(parts, tp)
		})
	}
	g.stepDesk(capability.Gone{Partitions: parts})
}

// closeDesk ends every token, with the group's actor.
func (g *groupShell) closeDesk() {
	for _, effect := range g.tokens.Close() {
		g.deskSays(effect)
	}
	g.w.check.tokens(g)
	for _, known := range g.tokens.keys {
		if known.key.Holder() != "" {
			g.w.violate("TOKEN", fmt.Sprintf("the key of %q outlives the group", known.key.Holder()))
		}
	}
	if len(g.tokens.asked) > 0 {
		g.w.violate("TOKEN", fmt.Sprintf("%q waits for a group that has ended", g.tokens.asked[0].holder))
	}
}

// operation is one control call: with a token, or without.
type operation struct {
	process *process
	user    *tokenUser
	key     *capability.Key
	right   capability.Rights
	parts   []int
	// resume is the other half of a pause.
	resume bool
}

// operate carries out a control call, if its caller may.
func (g *groupShell) operate(o *operation) {
	var err error
	switch {
	case g.w.mutant == MutantNoAuthority:
	case o.key != nil:
		err = g.tokens.Authorize(o.key, o.right, "operation", names(o.parts))
	default:
		err = g.tokens.Free("operation", "the consumer", names(o.parts))
	}
	if err == nil {
		g.carryOut(o)
	} else {
		g.w.stats.OperationsRefused++
	}
	if o.user != nil {
		g.w.post(g.process.users.box, message{kind: messageOperated, payload: o})
	} else if o.resume && err != nil && g.w.faulty {
		g.w.timeline.push(g.w.at+int64(100*time.Millisecond), eventToken, tokenOperates, o)
	}
}

func (g *groupShell) carryOut(o *operation) {
	var owned []int
	for _, part := range o.parts {
		if g.parts[part] != nil {
			owned = append(owned, part)
		}
	}
	if len(owned) == 0 {
		return
	}
	g.w.stats.Operations++
	g.w.check.operates(g, o, owned)
	p := g.process
	switch o.right { //nolint:exhaustive // the others are not called for
	case capability.MayPause:
		if !g.w.faulty && !o.resume {
			return
		}
		p.setPause(!o.resume, owned)
		if !o.resume {
			g.w.timeline.push(g.w.at+1+g.w.token.Int64N(int64(g.w.script.TokenFor)+1), eventToken, tokenOperates,
				&operation{process: p, right: capability.MayPause, parts: owned, resume: true})
		}
	case capability.MayCommit:
		if g.w.faulty && g.w.script.ControlEvery > 0 && p.w.control.IntN(2) == 0 {
			p.placeTogether(owned)
			return
		}
		for _, part := range owned {
			g.w.post(g.parts[part].shell.box, message{kind: messageCommitWanted, at: p.at() + int64(5*time.Second)})
		}
	case capability.MaySeek:
		for _, part := range owned {
			back := g.w.token.Int64N(6)
			if g.w.script.ControlEvery > 0 {
				p.seek(part)
				continue
			}
			g.w.post(g.parts[part].shell.box, message{kind: messageSeek, seq: uint64(seekBack), offset: back})
		}
	case capability.MaySkip:
		p.skip(owned[p.w.control.IntN(len(owned))])
	}
}

// errHolderDied is why the token of a user that is gone is revoked.
var errHolderDied = errors.New("the holder has ended")
