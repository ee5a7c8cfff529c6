package sim

import (
	"errors"
	"fmt"
	"time"

	"github.com/troupego/troupe/internal/capability"
)

// tokenUsers are the goroutines of a process's users that have to do with tokens.
type tokenUsers struct {
	w       *World
	process *process
	box     *mailbox
}

// tokenUser is one of them: it asks, or is a callback, or got a token from another.
type tokenUser struct {
	process *process
	id      uint64
	holder  capability.Holder
	asked   capability.Asked
	key     *capability.Key
	// call is the key of the operation that is under way.
	call *capability.Key
	// left is true when it does not wait any more, or is done; forgetful ones never return what they have.
	left, forgetful bool
	// steps are what it does before it returns the token.
	steps int
	// callback is the call of the group's that it is.
	callback *callbackCall
	// number is the place among those who asked.
	number int
}

// tokenAnswer is the answer to who asked.
type tokenAnswer struct {
	user *tokenUser
	key  *capability.Key
	err  error
}

// What users of tokens do: the numbers of eventToken.
const (
	// tokenBegins: somebody asks for a token, or calls without one.
	tokenBegins = iota
	// tokenActs: who has one goes on.
	tokenActs
	// tokenGivesUp: who waits does so no longer.
	tokenGivesUp
	// tokenOperates: a call without a token.
	tokenOperates
)

// tokenSoon plans the next user of a process.
func (p *process) tokenSoon() {
	if every := p.w.script.TokenEvery; every > 0 {
		p.w.timeline.push(p.w.at+1+p.w.token.Int64N(2*int64(every)), eventToken, tokenBegins, &tokenUser{process: p})
	}
}

// tokenDue does what an eventToken is for. Who is frozen does it later.
func (w *World) tokenDue(what int64, payload any) {
	o, _ := payload.(*operation)
	u, _ := payload.(*tokenUser)
	var p *process
	if o != nil {
		p = o.process
	} else {
		p = u.process
	}
	switch {
	case p.dead || p.ended:
		return
	case p.frozen:
		w.timeline.push(w.at+int64(100*time.Millisecond), eventToken, what, payload)
		return
	}
	switch what {
	case tokenBegins:
		if w.faulty {
			p.users.begin()
			p.tokenSoon()
		}
	case tokenActs:
		p.users.act(u)
	case tokenGivesUp:
		if u.key == nil && !u.left {
			u.left = true
			w.post(p.group.box, message{kind: messageTokenLeft, seq: u.id})
		}
	case tokenOperates:
		w.post(p.group.box, message{kind: messageOperation, payload: o})
	}
}

// some draws partitions: all of them, or a few.
func (x *tokenUsers) some() []int {
	n := x.w.script.Partitions
	set := 1 + x.w.token.IntN(1<<n-1)
	var parts []int
	for part := range n {
		if set&(1<<part) != 0 {
			parts = append(parts, part)
		}
	}
	return parts
}

func (x *tokenUsers) right() capability.Rights {
	right := []capability.Rights{capability.MaySeek, capability.MayCommit, capability.MayPause, 0}[x.w.token.IntN(4)]
	if right == capability.MaySeek && x.w.script.ControlEvery > 0 && x.w.control.IntN(2) == 0 {
		return capability.MaySkip
	}
	return right
}

// begin lets somebody ask for a token, or call without one.
func (x *tokenUsers) begin() {
	rng, script := x.w.token, &x.w.script
	group := x.process.group
	if rng.IntN(4) == 0 {
		x.w.post(group.box, message{kind: messageOperation, payload: &operation{process: x.process, right: x.right(), parts: x.some()}})
		return
	}
	if len(group.tokens.asked) > 5 {
		return
	}
	group.tokens.nextID++
	u := &tokenUser{process: x.process, id: group.tokens.nextID, steps: rng.IntN(5), forgetful: rng.IntN(6) == 0}
	u.holder = capability.Holder(fmt.Sprintf("user %d", u.id))
	u.asked = capability.Asked{ID: u.id, Holder: u.holder, Op: "repair", How: capability.Wait, Rights: capability.RightsOwned, For: script.TokenTimeout}
	if rng.IntN(3) == 0 {
		u.asked.How = capability.Try
	}
	if u.asked.All = rng.IntN(2) == 0; !u.asked.All {
		u.asked.Partitions = names(x.some())
	}
	if rng.IntN(3) == 0 {
		u.asked.Until = x.process.now().Add(time.Duration(rng.Int64N(int64(2 * script.TokenTimeout))))
	}
	x.w.post(group.box, message{kind: messageTokenWanted, payload: u})
	if rng.IntN(6) == 0 {
		x.later(u, tokenGivesUp)
	}
}

// later plans what a user does next.
func (x *tokenUsers) later(u *tokenUser, what int64) {
	x.w.timeline.push(x.w.at+x.w.token.Int64N(int64(x.w.script.TokenFor)+1), eventToken, what, u)
}

func (x *tokenUsers) receive(m *message) {
	switch m.kind { //nolint:exhaustive // the other messages are not for users
	case messageTokenAnswered:
		a := m.payload.(*tokenAnswer)
		if a.key == nil {
			a.user.left = true
			return
		}
		a.user.key = a.key
		if a.user.left { // it came too late, and goes back with the word that its user is gone
			return
		}
		x.later(a.user, tokenActs)
	case messageOperated:
		u := m.payload.(*operation).user
		x.used(u.call.Return(u.holder))
		u.call = nil
	default:
		x.w.unknownMessage(x, m)
	}
}

// used takes the outcome of what a user does with a key that it had: it may have been revoked meanwhile.
func (x *tokenUsers) used(err error) {
	if err != nil && !errors.Is(err, capability.ErrRevoked) {
		x.w.violate("TOKEN", err.Error())
	}
	x.w.check.tokens(x.process.group)
}

// act is one step of who has a token.
func (x *tokenUsers) act(u *tokenUser) {
	if u.left {
		return
	}
	if u.steps == 0 {
		x.finish(u)
		return
	}
	u.steps--
	switch what := x.w.token.IntN(5); {
	case u.call != nil:
		// Somebody else tries to come in while a call is under way.
		if key, err := u.key.Acquire(u.holder, "second"); err == nil {
			x.w.violate("TOKEN", fmt.Sprintf("%q is inside twice", key.Holder()))
		}
	case what == 0:
		x.hand(u)
		return
	default:
		x.call(u)
	}
	x.later(u, tokenActs)
}

// call operates with the token.
func (x *tokenUsers) call(u *tokenUser) {
	call, err := u.key.Acquire(u.holder, "operation")
	if err != nil {
		x.used(err)
		return
	}
	x.process.group.follows(u.key, call)
	u.call = call
	var parts []int
	for _, tp := range call.Partitions() {
		parts = append(parts, int(tp.Partition))
	}
	if x.w.token.IntN(6) == 0 {
		parts = x.some() // of others as well
	}
	x.w.post(x.process.group.box, message{kind: messageOperation, payload: &operation{process: x.process, user: u, key: call, right: x.right(), parts: parts}})
}

// hand gives the token on. The giver's is dead from here on.
func (x *tokenUsers) hand(u *tokenUser) {
	holder := u.holder + "'"
	var passed *capability.Key
	var err error
	if x.w.mutant == MutantHandRevives {
		if passed, err = u.key.Acquire(u.holder, "hand"); err == nil {
			err = passed.Hand(u.holder, holder)
		}
	} else {
		passed, err = u.key.Pass(u.holder, holder)
	}
	if err != nil {
		x.used(err)
		x.later(u, tokenActs)
		return
	}
	x.w.stats.Handed++
	group := x.process.group
	group.follows(u.key, passed)
	for _, known := range group.tokens.keys {
		known.dead = known.dead || known.key == u.key
	}
	u.left = true
	receiver := &tokenUser{process: x.process, id: u.id, holder: holder, key: passed, steps: x.w.token.IntN(4), forgetful: x.w.token.IntN(6) == 0}
	x.w.check.tokens(group)
	x.later(receiver, tokenActs)
}

// follows notes a key that lies on another one, for the checker.
func (g *groupShell) follows(below, top *capability.Key) {
	for _, known := range g.tokens.keys {
		if known.key == below {
			g.tokens.keys = append(g.tokens.keys, &knownKey{key: top, epochs: known.epochs})
			return
		}
	}
}

// finish returns a token, or dies with it, or forgets it.
func (x *tokenUsers) finish(u *tokenUser) {
	var cause error
	switch {
	case u.callback != nil:
		x.w.post(x.process.group.box, message{kind: messageCallbackDone, seq: u.id})
	case u.forgetful && x.w.faulty:
	case x.w.token.IntN(4) == 0:
		cause = errHolderDied
		fallthrough
	default:
		if cause == nil {
			err := u.key.Return(u.holder)
			if errors.Is(err, capability.ErrOutOfOrder) {
				x.later(u, tokenActs)
				return
			}
			x.used(err)
		}
		x.w.post(x.process.group.box, message{kind: messageTokenLeft, seq: u.id, err: cause})
	}
	u.left = true
}
