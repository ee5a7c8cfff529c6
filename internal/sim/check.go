package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// checker knows the truth: what handlers acknowledged, under which epoch, and what the coordinator stored. Every check looks
// only at what a step changed, so that a step costs the same however long the run is.
type checker struct {
	w *World
	// commits counts what the coordinator stored; fell is, per partition, the last one that fell below the one before.
	commits int
	fell    []int
	// inside are the deliveries whose handlers are inside user code, per partition, over all processes.
	inside [][]*delivery
}

// elsewhere reports whether somebody has set the partition's commit back since the last one of a run of positions: what that
// was told to be committed may lie above it by now.
func (c *checker) elsewhere(t *truth) bool { return c.fell[t.part] > t.order }

// truth is what really happened to one partition under one epoch. Indexes are places in the log.
type truth struct {
	part  int
	epoch kafka.AssignmentEpoch
	// first is where the epoch began, next what is to be delivered next, floor the first record without an acknowledgment.
	first, next, floor int
	acked              []bool
	// log is where its places are, run and runs are the first and the last position epoch of it.
	log       *partitionLog
	run, runs uint32
	// stored is the last offset the coordinator stored under this epoch, order its place among all that were stored, or that of the
	// last before the run began.
	stored int64
	order  int
	// begun is where the run began, lowest the lowest offset that may be committed of it but where a user placed one; placed are those,
	// by position epoch. passed are the records that a seek forward, or a Skip, passed over and that nothing was stored above yet;
	// taken are those that were skipped in this run.
	begun, lowest int64
	placed        map[uint32]int64
	passed, taken map[int]struct{}
}

func newChecker(w *World) checker {
	n := w.script.Partitions
	return checker{w: w, inside: make([][]*delivery, n), fell: make([]int, n)}
}

// machine takes the errors of machines: a shell that does what it should never sees one.
func (c *checker) machine(err error) {
	if err != nil {
		c.w.violate("STATE", err.Error())
	}
}

// settle moves an epoch's floor.
func (t *truth) settle() {
	for i := t.floor - t.first; i < len(t.acked) && t.acked[i]; i++ {
		t.floor++
	}
}

func (t *truth) isAcked(index int) bool {
	return index < t.floor || index-t.first < len(t.acked) && t.acked[index-t.first]
}

func (t *truth) ack(index int) {
	for len(t.acked) <= index-t.first {
		t.acked = append(t.acked, false)
	}
	t.acked[index-t.first] = true
	t.settle()
}

// startFlow checks where a partition starts: where the group left it, never beyond, and never before while the member is in
// the present generation.
func (c *checker) startFlow(s *partitionShell, offset int64) *truth {
	l := c.w.logs[s.part]
	if s.line.topicID != l.topicID || s.topicID != l.topicID || s.part >= c.w.topic.count {
		return c.begin(s, offset) // it does not know yet that the topic is another one, or gone
	}
	committed, present := c.w.coordinator.committed[s.part], c.present(s.process)
	if line := c.w.coordinator.marks[s.part].line; line == nil || line.topicID != l.topicID || ofAnotherTopic(c.w.coordinator.texts[s.part], l.topicID) {
		committed = kafka.NoOffset
	}
	switch {
	case c.w.script.Strategy == StrategyManual:
		if offset > l.limit(l.floor) && offset > l.start {
			c.w.violate("G4", fmt.Sprintf("%s epoch %d starts at %d, beyond what was handled", tpOf(s.part), s.epoch, offset))
		}
	case committed == kafka.NoOffset && offset > l.start, committed != kafka.NoOffset && offset > committed:
		c.w.violate("G4", fmt.Sprintf("%s epoch %d starts at %d, the group committed %d", tpOf(s.part), s.epoch, offset, committed))
	case committed != kafka.NoOffset && offset < committed && present:
		c.w.violate("G4", fmt.Sprintf("%s epoch %d starts at %d, before the committed %d", tpOf(s.part), s.epoch, offset, committed))
	}
	return c.begin(s, offset)
}

// skipped checks that only what retention took was passed over.
func (c *checker) skipped(s *partitionShell, offset int64, line *partitionLog) {
	t := s.truth
	if !t.follow(line) {
		c.w.violate("LOG", fmt.Sprintf("%s epoch %d: goes on at %d of a log that parts with what was delivered below that", tpOf(s.part), s.epoch, offset))
		return
	}
	for l := t.log; t.next < len(l.records) && l.records[t.next].Offset < offset; t.next++ {
		if l.records[t.next].Offset >= l.start {
			c.w.violate("G1", fmt.Sprintf("%s: offset %d skipped, the log starts at %d", tpOf(s.part), l.records[t.next].Offset, l.start))
		}
		t.ack(t.next)
	}
}

// deliveredFirst checks that new records come in order and without a gap.
func (c *checker) deliveredFirst(s *partitionShell, records []kafka.Record) {
	t := s.truth
	if index := t.log.index(records[0].Offset); index != t.next {
		c.w.violate("G1", fmt.Sprintf("%s: record %d delivered, %d is next", tpOf(s.part), index, t.next))
	}
	t.next += len(records)
	c.windowHeld(s, records)
	c.w.stats.Records += len(records)
}

// inTransit checks the window.
func (c *checker) inTransit(s *partitionShell) {
	if n := s.tracker.InTransit(); n > c.w.script.MaxInTransit {
		c.w.violate("G8", fmt.Sprintf("%s: %d records in transit, at most %d allowed", tpOf(s.part), n, c.w.script.MaxInTransit))
	}
}

// recordStarted is called when user code begins with a record.
func (c *checker) recordStarted(d *delivery, i int) {
	s, t := d.shell, d.truth
	if s.machine.State() != rebalance.PartitionAssigned || d.over() {
		c.w.violate("G4", fmt.Sprintf("%s epoch %d: offset %d delivered in %s", tpOf(s.part), s.epoch, d.offset(i), s.machine.State()))
		return
	}
	c.mayBegin(d)
	if d.tries(i) > 1 {
		c.w.stats.Redelivered++
	}
	if state := s.process.group.member.State(); state == rebalance.StateJoining || state == rebalance.StateSyncing {
		c.w.stats.Kept++
	}
	index := t.log.index(d.offset(i))
	if _, taken := t.taken[index]; taken {
		c.w.violate("SKIP", fmt.Sprintf("%s epoch %d: offset %d is handled, which was skipped", tpOf(s.part), s.epoch, d.offset(i)))
	}
	if d.engine != nil {
		c.laneStarted(d, index)
	} else if !c.w.script.AnyOrder && index != t.floor {
		c.w.violate("G2", fmt.Sprintf("%s epoch %d: record %d handled, the first without an ack is %d", tpOf(s.part), s.epoch, index, t.floor))
	}
	c.late(d, i)
}

// late judges a record that is begun though the coordinator has not heard of the member for a session.
func (c *checker) late(d *delivery, i int) {
	if c.silent(d.shell.process) {
		s := d.shell
		c.w.stats.Woken += c.trusted(s.process, d.pace.looked, fmt.Sprintf("%s epoch %d: offset %d delivered", tpOf(s.part), s.epoch, d.offset(i)))
	}
}

// silent reports whether the coordinator has not heard of a process for a session, and some time that messages take.
func (c *checker) silent(p *process) bool {
	return p.seenAlive >= 0 && c.w.at-p.seenAlive > int64(c.w.script.Session+3*time.Second)
}

// trusted judges what a silent member does. It must know that it may be out; it cannot in one moment after a freeze: before
// the next look at the clock, where the last one was before the freeze. That is counted.
func (c *checker) trusted(p *process, looked int64, what string) (woken int) {
	if p.resumedAt > p.seenAlive {
		c.w.stats.Suspended++ // by its own clock no time has passed; the coordinator knows better
		return 0
	}
	h := p.heartbeat
	woke := p.wokeAt > 0 && c.w.at-p.wokeAt <= int64(4*time.Second)
	name := "G4"
	switch {
	case p.wokeAt > 0 && h.enteredAt >= p.wokeAt && h.pulse.State() == rebalance.PulseBeating && (woke || !h.answered):
		name = "ENTERED"
	case woke:
		name = "WOKEN"
		if looked < p.wokeAt && !c.w.script.Strict {
			return 1
		}
	}
	c.w.violate(name, fmt.Sprintf("%s %v after the last sign of life, %v after waking, member in %s, heartbeat %s", what,
		time.Duration(c.w.at-p.seenAlive), time.Duration(c.w.at-p.wokeAt), p.group.member.State(), h.pulse.State()))
	return 0
}

// acked is called when user code has acknowledged a record.
func (c *checker) acked(d *delivery, i int) {
	index := d.truth.log.index(d.offset(i))
	if d.engine != nil {
		d.shell.begun = slices.DeleteFunc(d.shell.begun, func(b begunRecord) bool { return b.index == index })
	}
	c.finished(d.truth, index, d.over())
}

// handlerEntered is called when a handler begins: never while another one of the same process is inside. One of another
// process may be inside only where Kafka itself allows it: a delivery that was given up (its drain passed, or its partition
// was lost), or one of a member that is out of the group and does not know.
func (c *checker) handlerEntered(d *delivery) {
	part := d.shell.part
	for _, other := range c.inside[part] {
		if d.engine != nil && other.engine == d.engine {
			continue // laneStarted looks at these
		}
		if other.shell.process == d.shell.process {
			c.w.violate("G2", fmt.Sprintf("%s: two handlers at once in process %d", tpOf(part), d.shell.process.number))
		}
		c.w.stats.Overlaps++
		// A record that was inside when its ownership was lost may go on.
		if !other.over() && !other.shell.gone && !d.shell.gone && c.present(other.shell.process) && c.present(d.shell.process) {
			c.w.violate("G2", fmt.Sprintf("%s: handled by processes %d and %d, both in generation %d", tpOf(part),
				other.shell.process.number, d.shell.process.number, c.w.coordinator.generation))
		}
	}
	c.inside[part] = append(c.inside[part], d)
}

// present reports whether a process is in the group's present generation and knows it.
func (c *checker) present(p *process) bool {
	g := c.w.coordinator
	return !p.ended && g.phase == groupStable && p.group.generation == g.generation && g.find(p.group.memberID) != nil
}

func (c *checker) handlerExited(d *delivery) {
	inside := c.inside[d.shell.part]
	if i := slices.Index(inside, d); i >= 0 {
		c.inside[d.shell.part] = slices.Delete(inside, i, i+1)
	}
}

// crashed takes a process's handlers out of user code.
func (c *checker) crashed(p *process) {
	for part := range c.inside {
		c.inside[part] = slices.DeleteFunc(c.inside[part], func(d *delivery) bool { return d.shell.process == p })
	}
}

// committing is called when a round is put on the wire: it needs a key that covers it and partitions that are ours.
func (c *checker) committing(committer *committerShell, request *call) {
	round := request.round
	group := committer.process.group
	key := group.loan.key
	for i := range round.Offsets {
		offset := &round.Offsets[i]
		part := int(offset.TopicPartition.Partition)
		if key == nil || !key.Valid() || !slices.Contains(key.Partitions(), offset.TopicPartition) {
			c.w.violate("G10", fmt.Sprintf("%s epoch %d: committed without a valid key", offset.TopicPartition, offset.Epoch))
		}
		// Lost partitions are cut off at once; that one was released is known to the committer when it is told.
		v := group.view(part, offset.Epoch)
		if v != nil && v.lost || offset.Epoch <= committer.fenced[part] {
			c.w.violate("G4", fmt.Sprintf("%s epoch %d: offset %d sent after the epoch was over", offset.TopicPartition, offset.Epoch, offset.Offset))
		}
	}
	if p := committer.process; c.silent(p) {
		c.w.stats.LateCommits += c.trusted(p, request.at, "a round is sent")
	}
}

// stored is called when the coordinator stores an offset. It returns what is to be remembered of it.
func (c *checker) stored(p *process, offset *commit.Offset, before int64) commitMark {
	c.w.stats.Commits++
	part, name := int(offset.TopicPartition.Partition), offset.TopicPartition
	t, last := p.truthOf(offset), c.w.coordinator.marks[part]
	if t == nil {
		c.w.violate("G4", fmt.Sprintf("%s: commit of epoch %d, which never began", name, offset.Epoch))
		return last
	}
	c.passOver(t, offset.Offset)
	c.placedStored(p, offset)
	mark := commitMark{leaderEpoch: offset.LeaderEpoch, line: t.log, process: p, epoch: offset.Epoch, run: offset.PositionEpoch}
	// An offset may fall below one of a log that is gone, or that says so of itself, and where the position was set back.
	falls := last.line != nil && last.line.topicID != t.log.topicID || ofAnotherTopic(c.w.coordinator.texts[part], t.log.topicID) ||
		offset.PositionEpoch > 0 && !(last.process == p && last.epoch == offset.Epoch && last.run == offset.PositionEpoch)
	switch {
	case offset.Offset < t.lowest && !t.isPlaced(offset):
		c.w.violate("SEEK", fmt.Sprintf("%s epoch %d: %d stored of a run that began at %d", name, t.epoch, offset.Offset, t.begun))
	case offset.Offset > t.log.limit(t.floor):
		c.w.violate("G3", fmt.Sprintf("%s epoch %d: %d stored, %d is not acknowledged", name, t.epoch, offset.Offset, t.log.limit(t.floor)))
	case offset.Offset > t.log.limit(t.log.floor):
		c.w.violate("G1", fmt.Sprintf("%s: %d stored, nobody ever acknowledged %d", name, offset.Offset, t.log.limit(t.log.floor)))
	case offset.Offset < before && !falls:
		c.w.violate("G4", fmt.Sprintf("%s epoch %d: %d stored after %d", name, t.epoch, offset.Offset, before))
	}
	if l := t.log; l != c.w.logs[part] && (l.successor == nil || offset.Offset > l.cut) {
		c.w.stats.Stray++
	}
	c.commits++
	if t.order = c.commits; offset.Offset < before {
		c.fell[part] = c.commits
	}
	t.stored = offset.Offset
	if offset.Metadata != "" {
		c.storedMap(offset, t)
	}
	return mark
}

// demanded checks that what a user was told to be committed is stored.
func (c *checker) demanded(s *partitionShell, d demand, err error) {
	if err == nil {
		c.w.stats.Demands++
	}
	if stored := c.w.coordinator.committed[s.part]; err == nil && stored < d.target && d.run == s.positionEpoch && !c.gone(s.truth) && !c.elsewhere(s.truth) &&
		c.w.script.Strategy != StrategyManual {
		c.w.violate("G5", fmt.Sprintf("%s epoch %d: commit of %d confirmed, the coordinator has %d", tpOf(s.part), s.epoch, d.target, stored))
	}
}

// confirmed checks that what the machine takes for committed is stored.
func (c *checker) confirmed(committer *committerShell, offset *commit.Offset) {
	if lane := &committer.lanes[offset.TopicPartition.Partition]; lane.epoch == offset.Epoch {
		lane.committed, lane.counted, lane.at, lane.confirmed = offset.Offset, offset.Finished, c.w.at, true
	}
	if t := committer.process.truthOf(offset); t == nil || c.gone(t) || c.elsewhere(t) {
		return
	}
	if stored := c.w.coordinator.committed[offset.TopicPartition.Partition]; stored < offset.Offset {
		c.w.violate("G5", fmt.Sprintf("%s epoch %d: %d confirmed, the coordinator has %d", offset.TopicPartition, offset.Epoch, offset.Offset, stored))
	}
}

// released checks how a partition was let go: drained and committed, or at the deadlines, or lost.
func (c *checker) released(s *partitionShell, e rebalance.Release) {
	if e.Lost || s.tracker == nil || s.orphaned {
		return
	}
	inside := s.delivery != nil || s.left != nil || s.engine != nil && s.engine.lanes.Claimed() > 0
	if inside && s.process.at() < s.drainUntil {
		c.w.violate("G5", fmt.Sprintf("%s epoch %d: released %v before the end of the drain with a handler inside",
			tpOf(s.part), s.epoch, time.Duration(s.drainUntil-s.process.at())))
	}
	if stored := c.w.coordinator.committed[s.part]; e.Cause == nil && stored < s.finalTarget && !c.gone(s.truth) && !c.elsewhere(s.truth) &&
		c.w.script.Strategy != StrategyManual {
		c.w.violate("G5", fmt.Sprintf("%s epoch %d: released as committed at %d, the coordinator has %d", tpOf(s.part), s.epoch, s.finalTarget, stored))
	}
}

// joining checks what must be over before JoinGroup, and that the member id is the one the coordinator gave.
func (c *checker) joining(g *groupShell, id string) {
	for _, v := range append(slices.Clone(g.leaving), g.parts...) {
		if v != nil && !v.lost && !v.released && (v.revoking || !g.process.cooperative()) {
			c.w.violate("G5", fmt.Sprintf("JoinGroup while %s epoch %d is %s", tpOf(v.part), v.epoch, v.shell.machine.State()))
		}
	}
	if id != g.knownID {
		c.w.violate("ID", fmt.Sprintf("JoinGroup with member id %q, the coordinator gave %q", id, g.knownID))
	}
}

// calm reports whether nothing that may cost somebody the membership has gone wrong for long.
func (c *checker) calm() bool {
	return c.w.disturbedUntil == 0 || c.w.at-c.w.disturbedUntil > int64(2*c.w.script.Session+2*c.w.script.Rebalance+c.w.script.Request)
}

// expired is called when the coordinator puts a member out. Without a fault that explains it that must not happen to one
// that is alive, whatever its handlers do.
func (c *checker) expired(m *groupMember, why string) {
	p := m.process
	// A request that was lost may be waited for as long as a JoinGroup may take.
	calm := c.calm()
	if p != nil && p.group.member.State() == rebalance.StateLeaving && c.w.script.Callbacks {
		return // it does not come back, and its callbacks, or those of others, take their time
	}
	if p == nil || p.dead || p.ended || p.frozen || !calm || p.group.member.MemberID() != m.id {
		return
	}
	c.w.violate("G6", fmt.Sprintf("member %q was put out (%s) in %s", m.id, why, p.group.member.State()))
}

// keys checks the keys of a process.
func (c *checker) keys(l *loan) {
	if err := l.mint.Valid(); err != nil {
		c.w.violate("G10", err.Error())
	}
	if n := l.mint.Live(); n > 1 {
		c.w.violate("G10", fmt.Sprintf("%d live keys", n))
	}
	for _, key := range l.dead {
		if key.Valid() {
			c.w.violate("G10", "a dead key came to life")
		}
	}
}

// left checks that closing is bounded, and ends early when nothing is in the way.
func (c *checker) left(p *process, err error) {
	if late := c.w.at - p.closeBy; late > int64(time.Millisecond+2*c.w.script.Stall)+p.behind && p.wokeAt < p.closeBy && c.w.disturbedUntil < p.closeAsked {
		c.w.violate("G8", fmt.Sprintf("closed %v late", time.Duration(late)))
	}
	if len(p.group.tokens.queue) > 0 {
		return // for callbacks
	}
	waits := func(v *grantView) bool { return v != nil && !v.released }
	if errors.Is(err, rebalance.ErrLeaveUnfinished) && p.group.leaveAnswered && !slices.ContainsFunc(p.group.parts, waits) &&
		!slices.ContainsFunc(p.group.leaving, waits) {
		c.w.violate("G8", "closing waited for nothing: "+err.Error())
	}
	calm := c.w.disturbedUntil == 0 && c.w.script.StallPermyriad == 0 && !c.w.script.Callbacks
	if errors.Is(err, rebalance.ErrLeaveUnfinished) && calm && p.closeBy-p.closeAsked > int64(5*time.Second) {
		c.w.violate("G8", "closing ended at its deadline: "+err.Error())
	}
}

// leaves checks that a static member keeps its place when it stops.
func (c *checker) leaves(m *groupMember) {
	if m.instance != "" {
		c.w.violate("STATIC", fmt.Sprintf("static member %q sent LeaveGroup", m.instance))
	}
}

// fenced checks that a member whose place another process has taken gives up for good.
func (c *checker) fenced(g *groupShell, fenced bool) {
	if state := g.member.State(); fenced && !g.process.ended && state != rebalance.StateLeaving {
		c.w.violate("STATIC", fmt.Sprintf("static member %q was fenced and is in %s", g.process.instance, state))
	}
}

// failed checks that only another process with the same instance id is a reason to give up.
func (c *checker) failed(p *process, err error) {
	p.replace = !c.w.faulty // whoever took the place went away with the faults
	if !errors.Is(err, kafka.FencedInstanceID) || !c.w.script.Static {
		c.w.violate("STATE", "member failed: "+err.Error())
	}
}

// refused takes what a member does not follow. Failed attempts are ordinary; these are not.
func (c *checker) refused(g *groupShell, err error) {
	switch {
	case errors.Is(err, rebalance.ErrNotReleased) && g.closing && len(g.tokens.queue) > 0: // closing is shorter than a callback
	case errors.Is(err, rebalance.ErrBadAnswer), errors.Is(err, rebalance.ErrForeignPartition), errors.Is(err, rebalance.ErrMalformed):
		c.w.violate("STATE", err.Error())
	case errors.Is(err, rebalance.ErrNotReleased) && c.w.disturbedUntil+int64(5*time.Second) < c.w.at && c.w.script.StallPermyriad == 0:
		c.w.violate("G5", err.Error())
	}
}

// assigned checks the group leader's plan: each partition has exactly one owner, or none while a cooperative member says that
// it has it.
func (c *checker) assigned() {
	owners, claimed := make([]int, c.w.script.Partitions), make([]bool, c.w.script.Partitions)
	g := c.w.coordinator
	for _, m := range g.members {
		assignment, err := rebalance.DecodeAssignment(m.assignment)
		c.machine(err)
		for _, tp := range assignment.Partitions {
			owners[tp.Partition]++
		}
		subscription, err := rebalance.DecodeSubscription(m.metadata(g.protocol))
		c.machine(err)
		for _, tp := range subscription.Owned {
			claimed[tp.Partition] = true
		}
	}
	for part, n := range owners {
		if n > 1 || n == 0 && !claimed[part] && !c.w.script.changing() {
			c.w.violate("STATE", fmt.Sprintf("%s has %d owners in generation %d", tpOf(part), n, c.w.coordinator.generation))
		}
	}
}
