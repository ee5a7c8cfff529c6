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
	// handled says for each record whether any handler ever acknowledged it; floor is the first that none did.
	handled [][]bool
	floor   []int
	// inside counts the handlers inside user code per partition, over all processes.
	inside []int
}

// truth is what really happened to one partition under one epoch. Indexes are places in the log.
type truth struct {
	part  int
	epoch kafka.AssignmentEpoch
	// first is where the epoch began, next what is to be delivered next, floor the first record without an acknowledgment.
	first, next, floor int
	acked              []bool
	// stored is the last offset the coordinator stored under this epoch.
	stored int64
}

func newChecker(w *World) checker {
	n := w.script.Partitions
	return checker{w: w, handled: make([][]bool, n), floor: make([]int, n), inside: make([]int, n)}
}

// machine takes the errors of machines: a shell that does what it should never sees one.
func (c *checker) machine(err error) {
	if err != nil {
		c.w.violate("STATE", err.Error())
	}
}

func (c *checker) produced(part int) { c.handled[part] = append(c.handled[part], false) }

func (c *checker) retained(part int) { c.raise(part) }

// raise moves the floor of what was handled.
func (c *checker) raise(part int) {
	l, floor := c.w.logs[part], c.floor[part]
	for floor < len(l.records) && (c.handled[part][floor] || l.records[floor].Offset < l.start) {
		floor++
	}
	c.floor[part] = floor
}

// limit is the highest offset that may be committed when the record at index is not finished.
func (c *checker) limit(part, index int) int64 {
	if l := c.w.logs[part]; index < len(l.records) {
		return l.records[index].Offset
	}
	return c.w.logs[part].end
}

// settle moves an epoch's floor.
func (t *truth) settle() {
	for i := t.floor - t.first; i < len(t.acked) && t.acked[i]; i++ {
		t.floor++
	}
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
	committed, g := c.w.coordinator.committed[s.part], c.w.coordinator
	group := s.process.group
	present := g.phase == groupStable && group.generation == g.generation && g.find(group.memberID) != nil
	switch {
	case committed == kafka.NoOffset && offset > c.w.logs[s.part].start,
		committed != kafka.NoOffset && offset > committed:
		c.w.violate("G4", fmt.Sprintf("%s epoch %d starts at %d, the group committed %d", tpOf(s.part), s.epoch, offset, committed))
	case committed != kafka.NoOffset && offset < committed && present:
		c.w.violate("G4", fmt.Sprintf("%s epoch %d starts at %d, before the committed %d", tpOf(s.part), s.epoch, offset, committed))
	}
	first := c.w.logs[s.part].index(offset)
	t := &truth{part: s.part, epoch: s.epoch, first: first, next: first, floor: first, stored: kafka.NoOffset}
	s.process.truths = append(s.process.truths, t)
	return t
}

// skipped checks that only what retention took was passed over.
func (c *checker) skipped(s *partitionShell, offset int64) {
	l, t := c.w.logs[s.part], s.truth
	for ; t.next < len(l.records) && l.records[t.next].Offset < offset; t.next++ {
		if l.records[t.next].Offset >= l.start {
			c.w.violate("G1", fmt.Sprintf("%s: offset %d skipped, the log starts at %d", tpOf(s.part), l.records[t.next].Offset, l.start))
		}
		t.ack(t.next)
	}
}

// deliveredFirst checks that new records come in order and without a gap.
func (c *checker) deliveredFirst(s *partitionShell, records []kafka.Record) {
	t := s.truth
	if index := c.w.logs[s.part].index(records[0].Offset); index != t.next {
		c.w.violate("G1", fmt.Sprintf("%s: record %d delivered, %d is next", tpOf(s.part), index, t.next))
	}
	t.next += len(records)
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
	s := d.shell
	p, t := s.process, s.truth
	if s.machine.State() != rebalance.PartitionAssigned || d.ended {
		c.w.violate("G4", fmt.Sprintf("%s epoch %d: offset %d delivered in %s", tpOf(s.part), s.epoch, d.records[i].Offset, s.machine.State()))
		return
	}
	if d.attempt > 1 {
		c.w.stats.Redelivered++
	}
	index := c.w.logs[s.part].index(d.records[i].Offset)
	if !c.w.script.AnyOrder && index != t.floor {
		name := "G1"
		if index < t.floor {
			name = "G2"
		}
		c.w.violate(name, fmt.Sprintf("%s epoch %d: record %d handled, the first without an ack is %d", tpOf(s.part), s.epoch, index, t.floor))
	}
	// A member that the coordinator has not heard of for a session knows that it may be out, a moment after it woke.
	limit := int64(c.w.script.Session + 3*time.Second)
	switch {
	case p.seenAlive < 0 || c.w.at-p.seenAlive <= limit:
	case c.w.at-p.wokeAt <= int64(10*time.Millisecond) && p.wokeAt > 0:
		c.w.stats.Woken++
	default:
		c.w.violate("G4", fmt.Sprintf("%s epoch %d: offset %d delivered %v after the last sign of life",
			tpOf(s.part), s.epoch, d.records[i].Offset, time.Duration(c.w.at-p.seenAlive)))
	}
}

// acked is called when user code has acknowledged a record.
func (c *checker) acked(d *delivery, i int) {
	part := d.shell.part
	index := c.w.logs[part].index(d.records[i].Offset)
	c.handled[part][index] = true
	c.raise(part)
	if !d.ended {
		d.shell.truth.ack(index)
	}
}

// handlerEntered and handlerExited are called around user code.
func (c *checker) handlerEntered(p *process, part int) {
	if p.running[part]++; p.running[part] > 1 {
		c.w.violate("G2", fmt.Sprintf("%s: two handlers at once in process %d", tpOf(part), p.number))
	}
	if c.inside[part]++; c.inside[part] > 1 {
		c.w.stats.Overlaps++
	}
}

func (c *checker) handlerExited(p *process, part int) {
	p.running[part]--
	c.inside[part]--
}

func (c *checker) handlerLeft(_ *process, part int) { c.inside[part]-- }

// committing is called when a round is put on the wire: it needs a key that covers it and partitions that are ours.
func (c *checker) committing(committer *committerShell, round *commit.Round) {
	group := committer.process.group
	key := group.loan.key
	for i := range round.Offsets {
		offset := &round.Offsets[i]
		part := int(offset.TopicPartition.Partition)
		v := group.view(part, offset.Epoch)
		if v == nil || v.lost || v.released {
			c.w.violate("G4", fmt.Sprintf("%s epoch %d: offset %d sent after the epoch was over", offset.TopicPartition, offset.Epoch, offset.Offset))
			return
		}
		if key == nil || !key.Valid() || !slices.Contains(key.Partitions(), offset.TopicPartition) {
			c.w.violate("G10", fmt.Sprintf("%s epoch %d: committed without a valid key", offset.TopicPartition, offset.Epoch))
		}
	}
}

// stored is called when the coordinator stores an offset.
func (c *checker) stored(p *process, offset *commit.Offset, before int64) {
	c.w.stats.Commits++
	part, name := int(offset.TopicPartition.Partition), offset.TopicPartition
	i := slices.IndexFunc(p.truths, func(t *truth) bool { return t.part == part && t.epoch == offset.Epoch })
	if i < 0 {
		c.w.violate("G4", fmt.Sprintf("%s: commit of epoch %d, which never began", name, offset.Epoch))
		return
	}
	t := p.truths[i]
	switch {
	case offset.Offset > c.limit(part, t.floor):
		c.w.violate("G3", fmt.Sprintf("%s epoch %d: %d stored, %d is not acknowledged", name, t.epoch, offset.Offset, c.limit(part, t.floor)))
	case offset.Offset > c.limit(part, c.floor[part]):
		c.w.violate("G1", fmt.Sprintf("%s: %d stored, nobody ever acknowledged %d", name, offset.Offset, c.limit(part, c.floor[part])))
	case offset.Offset < before:
		c.w.violate("G4", fmt.Sprintf("%s epoch %d: %d stored after %d", name, t.epoch, offset.Offset, before))
	}
	t.stored = offset.Offset
}

// confirmed checks that what the machine takes for committed is stored.
func (c *checker) confirmed(offset *commit.Offset) {
	if stored := c.w.coordinator.committed[offset.TopicPartition.Partition]; stored < offset.Offset {
		c.w.violate("G5", fmt.Sprintf("%s epoch %d: %d confirmed, the coordinator has %d", offset.TopicPartition, offset.Epoch, offset.Offset, stored))
	}
}

// released checks how a partition was let go: drained and committed, or at the deadlines, or lost.
func (c *checker) released(s *partitionShell, e rebalance.Release) {
	if e.Lost || s.tracker == nil {
		return
	}
	if d := s.delivery; d != nil && c.w.at < s.drainUntil {
		c.w.violate("G5", fmt.Sprintf("%s epoch %d: released %v before the end of the drain with a handler inside",
			tpOf(s.part), s.epoch, time.Duration(s.drainUntil-c.w.at)))
	}
	if stored := c.w.coordinator.committed[s.part]; e.Cause == nil && stored < s.finalTarget {
		c.w.violate("G5", fmt.Sprintf("%s epoch %d: released as committed at %d, the coordinator has %d", tpOf(s.part), s.epoch, s.finalTarget, stored))
	}
}

// joining checks what must be over before JoinGroup, and that the member id is the one the coordinator gave.
func (c *checker) joining(g *groupShell, id string) {
	for _, v := range append(slices.Clone(g.leaving), g.parts...) {
		if v != nil && !v.lost && !v.released {
			c.w.violate("G5", fmt.Sprintf("JoinGroup while %s epoch %d is %s", tpOf(v.part), v.epoch, v.shell.machine.State()))
		}
	}
	if id != g.knownID {
		c.w.violate("ID", fmt.Sprintf("JoinGroup with member id %q, the coordinator gave %q", id, g.knownID))
	}
}

// expired is called when the coordinator puts a member out. Without a fault that explains it that must not happen to one
// that is alive, whatever its handlers do.
func (c *checker) expired(m *groupMember, why string) {
	p := m.process
	calm := c.w.at-c.w.disturbedUntil > int64(2*c.w.script.Session+c.w.script.Request)
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
	if late := c.w.at - p.closeBy; late > int64(time.Millisecond) && p.wokeAt < p.closeBy && c.w.disturbedUntil < p.closeAsked {
		c.w.violate("G8", fmt.Sprintf("closed %v late", time.Duration(late)))
	}
	calm := p.closeAsked-c.w.disturbedUntil > int64(2*c.w.script.Session+c.w.script.Request)
	if errors.Is(err, rebalance.ErrLeaveUnfinished) && calm && c.w.disturbedUntil < p.closeAsked && p.closeBy-p.closeAsked > int64(5*time.Second) {
		c.w.violate("G8", "closing ended at its deadline: "+err.Error())
	}
}

// failed checks that only another process with the same instance id is a reason to give up.
func (c *checker) failed(_ *process, err error) {
	if !errors.Is(err, kafka.FencedInstanceID) || !c.w.script.Static {
		c.w.violate("STATE", "member failed: "+err.Error())
	}
}

// refused takes what a member does not follow. Failed attempts are ordinary; these are not.
func (c *checker) refused(err error) {
	switch {
	case errors.Is(err, rebalance.ErrBadAnswer), errors.Is(err, rebalance.ErrForeignPartition), errors.Is(err, rebalance.ErrMalformed):
		c.w.violate("STATE", err.Error())
	case errors.Is(err, rebalance.ErrNotReleased) && c.w.disturbedUntil+int64(5*time.Second) < c.w.at:
		c.w.violate("G5", err.Error())
	}
}

// assigned checks the group leader's plan: each partition has exactly one owner.
func (c *checker) assigned() {
	owners := make([]int, c.w.script.Partitions)
	for _, m := range c.w.coordinator.members {
		assignment, err := rebalance.DecodeAssignment(m.assignment)
		c.machine(err)
		for _, tp := range assignment.Partitions {
			owners[tp.Partition]++
		}
	}
	for part, n := range owners {
		if n != 1 {
			c.w.violate("STATE", fmt.Sprintf("%s has %d owners in generation %d", tpOf(part), n, c.w.coordinator.generation))
		}
	}
}
