package sim

import (
	"slices"
	"time"

	"github.com/troupego/troupe/internal/capability"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// startQueue is the partitions whose starting position is not decided, and the question for them that is under way.
type startQueue struct {
	waiting []int
	id      uint64
	// asked is how many partitions the question is about, fresh is true while it has no answer.
	asked   int
	fresh   bool
	answers []int64
	// anew: a commit is of a topic that was deleted.
	anew bool
	// texts are the metadata beside the answers.
	texts []string
	marks []commitMark
}

// assign starts the partitions granted and asks where they are to begin.
func (g *groupShell) assign(e rebalance.AssignPartitions) {
	for _, grant := range e.Grants {
		part := int(grant.TopicPartition.Partition)
		g.w.check.granted(g.parts[part], grant)
		if old := g.parts[part]; old != nil {
			if g.w.mutant != MutantReplacedEpoch {
				g.leaving = append(g.leaving, old) // lost, and its actor has not said so yet
			}
		}
		v := &grantView{part: part, epoch: grant.Epoch}
		g.parts[part] = v
		v.shell = newPartitionShell(g.process, grant)
		if g.topic.known.count > 0 {
			v.topicID = g.topic.known.id
			v.shell.topicID = v.topicID
		}
		g.loan.want[part] = true
	}
	g.settleLoan()
	g.owned(e.Grants)
	g.assigningCallback(e.Grants)
}

func (g *groupShell) requestStarts() {
	if len(g.starts.waiting) == 0 {
		return
	}
	known := g.topic.known.count
	if slices.ContainsFunc(g.starts.waiting, func(part int) bool { return part >= known }) {
		g.refreshSoon() // granted by a leader that knows more than we do
	}
	if !slices.ContainsFunc(g.starts.waiting, func(part int) bool { return part < known }) || g.starts.fresh && g.starts.asked == known {
		return
	}
	g.starts.id++
	g.starts.asked, g.starts.fresh, g.starts.anew = known, true, false
	g.starts.marks = make([]commitMark, g.w.script.Partitions)
	g.starts.texts = make([]string, g.w.script.Partitions)
	g.starts.answers = slices.Repeat([]int64{notAnswered}, g.w.script.Partitions)
	if g.w.script.Strategy == StrategyManual {
		g.w.timeline.push(g.w.at+g.w.extra.Int64N(int64(200*time.Millisecond)), eventPost, 0, &hookAnswer{group: g, id: g.starts.id})
		return
	}
	g.w.post(g.process.committer.box, message{kind: messageOffsetsWanted, seq: g.starts.id})
}

// offsetsFetched decides where the partitions start that wait for it. Those without an answer go on waiting.
func (g *groupShell) offsetsFetched(m *message) {
	if m.seq != g.starts.id {
		return
	}
	g.starts.fresh = false
	offsets, answer, anew := g.starts.answers, m.payload.(*call), false
	for part, offset := range answer.offsets[:g.starts.asked] {
		if offset == notAnswered {
			continue
		}
		offsets[part], g.starts.texts[part], g.starts.marks[part] = offset, answer.texts[part], answer.marks[part]
		if g.ofAnotherTopic(answer.texts[part]) {
			offsets[part], g.starts.texts[part], anew = kafka.NoOffset, "", true
		}
	}
	g.starts.anew = g.starts.anew || anew
	committed := make(map[int32]rebalance.Committed, len(g.starts.waiting))
	var waiting, open []int
	for _, part := range g.starts.waiting {
		if offsets[part] == notAnswered {
			open = append(open, part)
			continue
		}
		waiting = append(waiting, part)
		committed[int32(part)] = rebalance.Committed{Offset: offsets[part], LeaderEpoch: g.starts.marks[part].leaderEpoch}
	}
	others := rebalance.GroupCommitsNone
	switch {
	case g.starts.anew: // the group was here before: everything in the topic is new to it
		others = rebalance.GroupCommitsSome
	case slices.ContainsFunc(offsets, func(o int64) bool { return o >= 0 }):
		others = rebalance.GroupCommitsSome
	case slices.Contains(offsets[:g.starts.asked], notAnswered):
		others = rebalance.GroupCommitsUnknown
	}
	decisions := rebalance.DecideStarts(0, topic, committed, others, rebalance.ResetEarliest)
	g.starts.waiting = open
	for _, part := range waiting {
		v := g.parts[part]
		if v == nil {
			continue
		}
		g.w.post(g.process.committer.box, message{
			kind: messagePartitionOpened, part: int32(part), epoch: uint64(v.epoch), offset: offsets[part], payload: g.starts.texts[part],
		})
		g.w.post(v.shell.box, message{
			kind: messageStartDecided, epoch: uint64(v.epoch), offset: offsets[part],
			payload: &startDecision{decision: decisions[int32(part)], committed: offsets[part], text: g.starts.texts[part], anew: g.starts.anew, line: g.starts.marks[part].line},
		})
		if !v.started {
			v.started = true
			g.assignedCallback([]rebalance.Grant{{TopicPartition: tpOf(part), Epoch: v.epoch}})
		}
	}
}

// doubtLeader has the group look at the topic: what a partition reads is not where it was.
func (g *groupShell) doubtLeader(s *partitionShell) {
	g.w.post(g.box, message{kind: messageLeaderDoubted, part: int32(s.part), epoch: uint64(s.epoch)})
}

func (g *groupShell) stopWaiting(part int) {
	g.starts.waiting = slices.DeleteFunc(g.starts.waiting, func(p int) bool { return p == part })
}

// revoke begins REVOKING: each partition drains, commits and lets go by itself.
func (g *groupShell) revoke(e rebalance.RevokePartitions) {
	g.gone(e.Grants, false)
	for _, grant := range e.Grants {
		part := int(grant.TopicPartition.Partition)
		v := g.view(part, grant.Epoch)
		if v == nil {
			continue
		}
		v.revoking = true
		g.stopWaiting(part)
		if g.w.mutant == MutantJoinEarly || g.w.mutant == MutantJoinWhileRevoking && g.process.cooperative() && !e.Closing {
			g.feed(rebalance.PartitionReleased(grant))
		}
		g.w.post(v.shell.box, message{
			kind: messageDrainWanted, epoch: uint64(grant.Epoch),
			at: int64(e.DrainUntil.Sub(epochStart)), offset: int64(e.Deadline.Sub(epochStart)),
		})
	}
	g.w.check.tokens(g)
	g.revokingCallback(e)
	if g.w.mutant == MutantKeptRevoked && g.process.cooperative() && !e.Closing {
		g.giveUp(e)
	}
}

// giveUp is a mutant: it drains what is kept, too.
func (g *groupShell) giveUp(e rebalance.RevokePartitions) {
	for _, v := range g.parts {
		if v != nil && !v.revoking && !v.lost {
			g.w.post(v.shell.box, message{
				kind: messageDrainWanted, epoch: uint64(v.epoch), at: int64(e.DrainUntil.Sub(epochStart)), offset: int64(e.Deadline.Sub(epochStart)),
			})
		}
	}
}

// claimLost is a mutant: a JoinGroup claims what was lost, in the generation that it was lost in.
func (g *groupShell) claimLost(request *rebalance.JoinRequest) {
	if g.generation != kafka.NoGeneration || !g.process.cooperative() {
		return
	}
	for i := range request.Protocols {
		metadata, err := rebalance.EncodeSubscription(rebalance.Subscription{Topics: []string{topic}, Owned: g.lost, Generation: g.lostIn})
		g.w.check.machine(err)
		request.Protocols[i].Metadata = metadata
	}
}

// lose fences partitions at once: the key dies first, so that not even a round that is being built goes out.
func (g *groupShell) lose(e rebalance.LosePartitions) {
	g.lost, g.lostIn = nil, g.generation
	for _, grant := range e.Grants {
		if v := g.view(int(grant.TopicPartition.Partition), grant.Epoch); v != nil {
			v.lost, v.shell.gone = true, true
			g.lost = append(g.lost, grant.TopicPartition)
			if g.w.mutant != MutantLossByMessage && g.w.mutant != MutantFlowAfterLoss {
				v.shell.lose()
			}
		}
	}
	g.gone(e.Grants, true)
	g.w.check.tokens(g)
	g.lostCallback(e.Grants)
	if g.w.mutant != MutantCommitAfterFence {
		g.cutOff(e.Grants)
	}
	for _, grant := range e.Grants {
		part := int(grant.TopicPartition.Partition)
		v := g.view(part, grant.Epoch)
		if v == nil {
			continue
		}
		g.stopWaiting(part)
		g.lostWhileLeaving(v)
		g.fence(part, grant.Epoch)
		if g.w.mutant == MutantFlowAfterLoss {
			continue
		}
		g.w.post(v.shell.box, message{kind: messageOwnershipLost, epoch: uint64(grant.Epoch), err: e.Cause})
	}
}

func (g *groupShell) fence(part int, epoch kafka.AssignmentEpoch) {
	if g.w.mutant != MutantCommitAfterFence {
		g.w.post(g.process.committer.box, message{kind: messagePartitionFenced, part: int32(part), epoch: uint64(epoch)})
	}
}

// partitionReleased ends a partition's epoch: fenced at the committer, its actor stopped, the member told.
func (g *groupShell) partitionReleased(part int, epoch kafka.AssignmentEpoch) {
	v := g.view(part, epoch)
	if v == nil {
		return
	}
	v.released = true
	if g.parts[part] == v {
		g.parts[part] = nil
		g.loan.want[part] = false
		g.stopWaiting(part)
	} else {
		g.leaving = slices.DeleteFunc(g.leaving, func(other *grantView) bool { return other == v })
	}
	g.fence(part, epoch)
	g.settleLoan()
	v.shell.stop()
	if g.parts[part] == nil && !v.lost {
		g.gone([]rebalance.Grant{{TopicPartition: tpOf(part), Epoch: epoch}}, false) // OnRevoking may go on, but not commit it any more
	}
	g.w.check.tokens(g)
	if l := v.leaving; l != nil {
		l.left--
		g.leavingOn(l)
		return
	}
	g.feed(rebalance.PartitionReleased{TopicPartition: tpOf(part), Epoch: epoch})
}

// Who can hold the consumer's key.
const (
	groupHolder     capability.Holder = "group"
	committerHolder capability.Holder = "committer"
)

// loan is actors/token.go: the consumer's key, lent to the committer and recalled when the set of partitions changes.
type loan struct {
	mint       *capability.Mint
	key        *capability.Key
	lent       bool
	recalled   bool
	want, have []bool
	// dead are the last keys that were revoked: they must stay so.
	dead []*capability.Key
}

func (l *loan) broken() {
	if l.key != nil {
		l.mint.Revoke(l.key)
		l.bury(l.key)
	}
	l.key, l.lent, l.recalled = nil, false, false
	clear(l.have)
}

func (l *loan) bury(key *capability.Key) {
	if len(l.dead) > 3 {
		l.dead = l.dead[1:]
	}
	l.dead = append(l.dead, key)
}

// adjust makes the key at home cover what it should.
func (l *loan) adjust() error {
	var gone, fresh []kafka.TopicPartition
	had := 0
	for part := range l.want {
		if l.have[part] {
			had++
		}
		switch {
		case l.have[part] && !l.want[part]:
			gone = append(gone, tpOf(part))
		case !l.have[part] && l.want[part]:
			fresh = append(fresh, tpOf(part))
		}
	}
	if len(gone) > 0 && len(gone) == had {
		l.mint.Revoke(l.key)
		l.bury(l.key)
		l.key = nil
	} else if len(gone) > 0 {
		part, err := l.mint.Split(l.key, groupHolder, gone)
		if err != nil {
			return err
		}
		l.mint.Revoke(part)
		l.bury(part)
	}
	if len(fresh) > 0 {
		key, err := l.mint.Grant(groupHolder, fresh...)
		if err != nil {
			return err
		}
		if l.key == nil {
			l.key = key
		} else {
			if err := l.mint.Merge(l.key, key); err != nil {
				return err
			}
			l.bury(key)
		}
	}
	copy(l.have, l.want)
	return nil
}

// settleLoan brings the committer the key it should have.
func (g *groupShell) settleLoan() {
	l := &g.loan
	changed := !slices.Equal(l.want, l.have)
	switch {
	case l.lent && !l.recalled && changed:
		l.recalled = true
		g.w.post(g.process.committer.box, message{kind: messageKeyRecalled})
	case !l.lent:
		if changed {
			g.w.check.machine(l.adjust())
		}
		if l.key == nil {
			break
		}
		g.w.check.machine(l.key.Hand(groupHolder, committerHolder))
		l.lent = true
		g.w.post(g.process.committer.box, message{kind: messageKeyLent, payload: l.key})
	}
	g.w.check.keys(l)
}

func (g *groupShell) keyReturned(key *capability.Key) {
	if key != g.loan.key || !g.loan.recalled {
		return
	}
	g.loan.lent, g.loan.recalled = false, false
	g.settleLoan()
}

// cutOff kills the key over partitions that were lost, and mints one over the rest.
func (g *groupShell) cutOff(lost []rebalance.Grant) {
	for _, grant := range lost {
		g.loan.want[grant.TopicPartition.Partition] = false
	}
	g.loan.broken()
	g.settleLoan()
}
