package actors

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"github.com/troupego/troupe/internal/capability"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
)

// consumerHolder is who asks when a call is made on the consumer itself, without a token.
const consumerHolder capability.Holder = "the consumer"

// desk is the group's side of the tokens: who has one, who waits, and which calls wait for a callback to end.
type desk struct {
	*capability.Desk
	alarm alarm
	// asked are the calls for a token that are not answered yet, by the token's number.
	asked map[uint64]*request
	// granted are the keys of callbacks that are about to begin.
	granted map[uint64]*capability.Key
	// receivers are the actors that tokens were handed to, by their id.
	receivers map[string][]*Token
	// deferred are calls about everything that were made while a callback had a part of it.
	deferred []*request
}

// tokenLeft: Tree -> root -> group: who has or wants that token is done, or waits no longer.
type tokenLeft struct {
	silent
	id    uint64
	cause error
}

// tokenHanded: Tree -> root -> group: watch the receiver, and bring it the token.
type tokenHanded struct {
	silent
	// receiver is nil for a goroutine, which has it already.
	receiver *actor.PID
	token    *Token
}

func newDesk() *desk {
	return &desk{
		Desk: capability.NewDesk(), asked: make(map[uint64]*request), granted: make(map[uint64]*capability.Key),
		receivers: make(map[string][]*Token),
	}
}

// rights are those that operations need. What is not here only reads, or is the group's own.
var rights = map[string]capability.Rights{
	"pause": capability.MayPause, "resume": capability.MayPause, "seek": capability.MaySeek, "commit": capability.MayCommit,
	offsetsWord: capability.MayCommit,
	"skip":      capability.MaySkip,
}

// authorize refuses an operation on those partitions by who has no live token for it. Without a token at all it is refused where
// somebody else has one.
func (g *group) authorize(m *request, parts []*part) error {
	partitions := make([]kafka.TopicPartition, len(parts))
	for i, p := range parts {
		partitions[i] = p.tp
	}
	word := m.op.word()
	if m.key != nil {
		return heldError(g.desk.Authorize(m.key, rights[word], word, partitions))
	}
	err := heldError(g.desk.Free(word, consumerHolder, partitions))
	if held, ok := errors.AsType[*HeldError](err); ok && m.inside != nil && slices.Contains(m.inside.Partitions(), held.TopicPartition) {
		held.Reason = ErrSelfWait // nobody but the caller itself could give it back
	}
	return err
}

// defers reports whether a call has to wait: one about everything, while a callback has the token over a part of it. That is
// the tree's own doing and passes by itself.
func (g *group) defers(m *request) bool {
	about, ok := m.op.(interface{ everything() bool })
	if !ok || !about.everything() || m.key != nil || m.inside != nil {
		return false
	}
	partitions := make([]kafka.TopicPartition, 0, len(g.parts))
	for tp := range g.parts {
		partitions = append(partitions, tp)
	}
	misuse, held := errors.AsType[*capability.MisuseError](g.desk.Free(m.op.word(), consumerHolder, partitions))
	return held && misuse.Forced
}

// stepDesk steps the desk and runs what it says.
func (g *group) stepDesk(ctx actor.Context, in capability.DeskInput) {
	g.runDesk(ctx, g.desk.Step(time.Now(), in))
}

func (g *group) runDesk(ctx actor.Context, effects []capability.DeskEffect) {
	d := g.desk
	for _, effect := range effects {
		switch e := effect.(type) {
		case capability.Granted:
			if m := d.asked[e.ID]; m != nil {
				delete(d.asked, e.ID)
				m.op.(*tokenOperation).key = e.Key
				m.reply(nil)
			} else {
				d.granted[e.ID] = e.Key
			}
		case capability.Refused:
			if m := d.asked[e.ID]; m != nil {
				delete(d.asked, e.ID)
				m.reply(g.tokenRefused(m.op.(*tokenOperation), e.Err))
			}
		case capability.Revoked:
			g.tokenRevoked(e)
		}
	}
	at, ok := d.Deadline()
	d.alarm.setAt(g.shared.sys, g.self, at, ok)
	g.shared.board.tokens(d.Ledger())
	g.undefer(ctx)
}

// undefer carries out the calls that waited for callbacks.
func (g *group) undefer(ctx actor.Context) {
	waiting := g.desk.deferred
	g.desk.deferred = nil
	for _, m := range waiting {
		g.called(ctx, m)
	}
}

func (g *group) tokenRefused(op *tokenOperation, err error) error {
	if errors.Is(err, capability.ErrNothing) {
		named := slices.SortedFunc(slices.Values(op.named), kafka.TopicPartition.Compare)
		return &UnassignedError{Operation: op.word(), State: g.member.State().String(), Partitions: named}
	}
	return heldError(err)
}

// tokenRevoked tells of a token that its holder did not return.
func (g *group) tokenRevoked(e capability.Revoked) {
	cause := revocation(e)
	calls := make([]string, len(e.Inside))
	for i, level := range e.Inside {
		calls[i] = level.Op
	}
	g.shared.observe(event.TokenRevoked{
		Member: g.shared.member(), Holder: string(e.Grant.Holder), Operation: e.Grant.Op, Since: e.Grant.Since, Partitions: e.Grant.Partitions,
		Calls: calls, Err: cause,
	})
	g.shared.logger.Warn("token revoked", zap.String("holder", string(e.Grant.Holder)), zap.String("operation", e.Grant.Op),
		zap.Time("since", e.Grant.Since), zap.Strings("calls", calls), zap.Error(cause))
}

// revocation is why a token was revoked, in public words.
func revocation(e capability.Revoked) error {
	switch {
	case errors.Is(e.Cause, capability.ErrOverdue):
		return ErrTokenOverdue
	case errors.Is(e.Cause, capability.ErrInside):
		return insideError("return", string(e.Grant.Holder), e.Grant.Since, e.Inside)
	}
	return e.Cause
}

// tokenHanded brings a token to an actor and watches it.
func (g *group) tokenHanded(ctx actor.Context, m *tokenHanded) {
	if m.token.Holder() == "" {
		return // ended meanwhile
	}
	if m.receiver == nil { // a goroutine, which looks after itself
		g.shared.board.tokens(g.desk.Ledger())
		return
	}
	tokens := g.desk.receivers[m.receiver.Id]
	if len(tokens) == 0 {
		ctx.Watch(m.receiver)
	}
	tokens = slices.DeleteFunc(tokens, func(t *Token) bool { return t.Holder() == "" })
	g.desk.receivers[m.receiver.Id] = append(tokens, m.token)
	ctx.Send(m.receiver, &TokenHanded{Token: m.token})
	g.shared.board.tokens(g.desk.Ledger())
}

// receiverEnded takes back the tokens of an actor that has ended: one that it never took is returned, another is revoked.
func (g *group) receiverEnded(m *actor.Terminated) {
	tokens := g.desk.receivers[m.Who.Id]
	delete(g.desk.receivers, m.Who.Id)
	for _, t := range tokens {
		if t.accepted.Load() {
			t.over(fmt.Errorf("%w: actor %s", ErrHolderDied, m.Who.Id))
		} else {
			t.over(nil)
		}
	}
}

// closeDesk ends every token.
func (g *group) closeDesk() {
	g.desk.alarm.stop()
	g.desk.Close()
	g.shared.board.tokens(nil)
}

// tokenOperation asks for a token.
type tokenOperation struct {
	id    uint64
	asked capability.Asked
	named []kafka.TopicPartition
	key   *capability.Key
}

func (o *tokenOperation) word() string { return "token" }

func (o *tokenOperation) run(ctx actor.Context, g *group, m *request) {
	if g.ended() {
		m.reply(ErrClosing)
		return
	}
	if len(o.named) == 0 {
		o.asked.All = true
	} else {
		parts, err := g.targets(o.word(), o.named)
		if err != nil {
			m.reply(err)
			return
		}
		leaving := &UnassignedError{Operation: o.word(), State: g.member.State().String()}
		for _, p := range parts {
			o.asked.Partitions = append(o.asked.Partitions, p.tp)
			if p.phase == partLeaving {
				leaving.Partitions = append(leaving.Partitions, p.tp)
			}
		}
		if len(leaving.Partitions) > 0 { // nobody but a callback of the rebalance gets a token over them any more
			m.reply(leaving)
			return
		}
	}
	g.desk.asked[o.id] = m
	g.stepDesk(ctx, o.asked)
}

// errNoOperation refuses a token that nobody could tell from another.
var errNoOperation = errors.New("troupe: token: the operation is blank: it has to say what the token is for, as errors and events name it")

// Token returns the token over partitions that are owned, all of them when none is named, for operation, which errors and
// events name. With wait it waits its turn, in the order of asking; else it fails at once with a *[HeldError] if somebody has
// one of them. See api.Consumer.Token.
func (t *Tree) Token(ctx context.Context, operation string, wait bool, named []kafka.TopicPartition) (*Token, error) {
	if strings.TrimSpace(operation) == "" {
		return nil, errNoOperation
	}
	if err := t.selfWait(ctx, operation, named); err != nil {
		return nil, err
	}
	how := capability.Try
	if wait {
		how = capability.Wait
	}
	id := t.shared.tokens.Add(1)
	op := &tokenOperation{id: id, named: named, asked: capability.Asked{
		ID: id, Holder: capability.Holder(fmt.Sprintf("%s (token %d)", operation, id)), Op: operation, How: how, Rights: capability.RightsOwned,
		For: t.shared.settings.TokenTimeout, // from when it is granted; its context ends it by itself
	}}
	if err := t.do(ctx, nil, op); err != nil {
		t.shared.sys.root.Send(t.top(), &tokenLeft{id: id}) // it may be granted all the same
		return nil, err
	}
	token := t.newToken(op.key, id)
	token.release = context.AfterFunc(ctx, func() {
		t.shared.sys.root.Send(t.top(), &tokenLeft{id: id, cause: fmt.Errorf("%w: %w", ErrTokenOverdue, endOf(ctx))})
	})
	return token, nil
}

// WithToken waits for a token, calls f with it, and takes it back however f ends.
func (t *Tree) WithToken(ctx context.Context, operation string, f func(ctx context.Context, token *Token) error, named []kafka.TopicPartition) (err error) {
	token, err := t.Token(ctx, operation, true, named)
	if err != nil {
		return err
	}
	died := fmt.Errorf("%w: %s", ErrHolderDied, operation)
	defer func() {
		if died != nil {
			token.left(died) // not returned before, or the group would take it for one that was
			return
		}
		switch misused := token.Return(); {
		case errors.Is(misused, ErrTokenInside):
			err = errors.Join(err, misused)
			token.left(nil)
		case errors.Is(misused, ErrTokenHanded):
			token.left(nil)
		}
	}()
	err = f(withToken(ctx, token), token)
	died = nil
	return err
}
