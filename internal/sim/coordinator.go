package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// groupPhase is the coordinator's state of the group, in Kafka's words.
type groupPhase uint8

const (
	groupEmpty groupPhase = iota
	groupPreparing
	groupCompleting
	groupStable
)

// groupMember is one member as the coordinator knows it.
type groupMember struct {
	id, instance string
	// process is for the checker only: whose id it is.
	process            *process
	session, rebalance time.Duration
	protocols          []rebalance.Protocol
	assignment         []byte
	// joining and syncing are the requests that wait for their answer. isNew is true until the first JoinGroup answer.
	joining, syncing *call
	expires          int64
	armed            bool
	gone             bool
}

// groupState is what the coordinator knows of the group.
type groupState struct {
	phase      groupPhase
	generation kafka.Generation
	leader     string
	// protocol is the assignor that the present generation was begun with.
	protocol string
	members  []*groupMember
}

// pendingID is a member id that was given and not used yet.
type pendingID struct {
	id   string
	gone bool
}

// coordinator is the model of the group coordinator: the classic protocol as Kafka's brokers speak it.
type coordinator struct {
	w *World
	groupState
	// saved is the group as it was last written to the offsets topic: what the next coordinator loads.
	saved groupState
	// pending are the member ids given with MEMBER_ID_REQUIRED and not used yet.
	// A rebalance waits for them, too.
	pending []*pendingID
	// committed are the offsets stored, kafka.NoOffset for none.
	committed []int64
	// texts are the metadata beside them, writtenAt the offsets that the texts were committed with.
	texts     []string
	writtenAt []int64
	// marks are the leader epochs beside them, and what the checker wants to know.
	marks  []commitMark
	nextID int
	// timer tells the present join or sync timer from older ones.
	timer int64
	// delayUntil is the end of the initial delay of a group that was empty.
	delayUntil int64

	broker, announced       int
	loadingUntil, downUntil int64
}

// commitMark is what goes with a stored offset: its leader epoch, and, for the checker, the log that it is of and who stored it.
type commitMark struct {
	leaderEpoch int32
	line        *partitionLog
	process     *process
	epoch       kafka.AssignmentEpoch
	run         uint32
}

func newCoordinator(w *World) *coordinator {
	g := &coordinator{w: w, committed: make([]int64, w.script.Partitions)}
	g.texts, g.writtenAt = make([]string, w.script.Partitions), make([]int64, w.script.Partitions)
	for i := range g.committed {
		g.committed[i] = kafka.NoOffset
		g.marks = append(g.marks, commitMark{leaderEpoch: kafka.NoLeaderEpoch})
	}
	g.saved = groupState{}
	return g
}

// passingErrors are the codes that a coordinator in trouble answers with, without having executed anything.
var passingErrors = []kafka.ErrorCode{
	kafka.CoordinatorLoadInProgress, kafka.CoordinatorNotAvailable, kafka.NotCoordinator, kafka.RequestTimedOut,
	kafka.UnknownServerError, kafka.NetworkException, kafka.GroupAuthorizationFailed,
}

// serve executes one request.
func (g *coordinator) serve(c *call) {
	trouble := g.w.weather[c.process.slot].errors
	switch {
	case trouble > 0 && g.w.rng.IntN(100) < trouble:
		c.err = passingErrors[g.w.rng.IntN(len(passingErrors))]
	case g.downUntil > g.w.at && c.broker == g.broker:
		g.w.failLater(c)
		return
	case c.broker != g.broker:
		c.err = kafka.NotCoordinator
	case g.loadingUntil > g.w.at:
		c.err = kafka.CoordinatorLoadInProgress
	default:
		g.execute(c)
		return
	}
	g.w.reply(c)
}

func (g *coordinator) execute(c *call) {
	switch c.api {
	case apiJoin:
		g.join(c)
	case apiSync:
		g.sync(c)
	case apiHeartbeat:
		c.err = g.heartbeat(c)
		g.w.reply(c)
	case apiLeave:
		c.err = g.leave(c)
		g.w.reply(c)
	case apiCommit:
		g.commit(c)
	case apiOffsetFetch:
		c.offsets, c.texts, c.marks = slices.Clone(g.committed), slices.Clone(g.texts), slices.Clone(g.marks)
		for part := range c.offsets {
			// A transaction is open on it (UNSTABLE_OFFSET_COMMIT): the others have their answer.
			if n := g.w.weather[c.process.slot].errors; n > 0 && g.w.rng.IntN(100) < n {
				c.offsets[part] = notAnswered
			}
		}
		g.w.reply(c)
	case apiFind, apiMetadata, apiFetch, apiListOffsets:
	}
}

func (g *coordinator) find(id string) *groupMember {
	for _, m := range g.members {
		if m.id == id {
			return m
		}
	}
	return nil
}

func (g *coordinator) findInstance(instance string) *groupMember {
	if instance == "" {
		return nil
	}
	for _, m := range g.members {
		if m.instance == instance {
			return m
		}
	}
	return nil
}

// known returns the member of a request, or the code for one that is not in the group.
func (g *coordinator) known(id, instance string) (*groupMember, error) {
	if instance != "" {
		holder := g.findInstance(instance)
		switch {
		case holder == nil:
			return nil, kafka.UnknownMemberID
		case holder.id != id:
			return nil, kafka.FencedInstanceID
		}
		return holder, nil
	}
	if m := g.find(id); m != nil {
		return m, nil
	}
	return nil, kafka.UnknownMemberID
}

func (g *coordinator) heartbeat(c *call) error {
	m, err := g.known(c.member, c.instance)
	switch {
	case err != nil:
		return err
	case c.gen != g.generation:
		return kafka.IllegalGeneration
	}
	g.touch(m)
	if g.phase == groupPreparing {
		return kafka.RebalanceInProgress
	}
	return nil
}

func (g *coordinator) leave(c *call) error {
	if g.usePending(c.member) {
		g.tryComplete()
		return nil
	}
	m, err := g.known(c.member, c.instance)
	if err != nil {
		return err
	}
	g.w.check.leaves(m)
	g.remove(m, "leave")
	return nil
}

// commit stores offsets. Whether it may is decided as Kafka does: by member and generation, not by who owns a partition.
func (g *coordinator) commit(c *call) {
	defer g.w.reply(c)
	m, err := g.known(c.round.MemberID, c.round.GroupInstanceID)
	switch {
	case err != nil:
		c.err = err
	case c.round.Generation != g.generation:
		c.err = kafka.IllegalGeneration
	case g.phase == groupCompleting:
		c.err = kafka.RebalanceInProgress
	}
	if c.err != nil {
		return
	}
	g.touch(m)
	c.results = make(map[kafka.TopicPartition]error, len(c.round.Offsets))
	lossy := g.w.weather[c.process.slot].loss > 0
	for i := range c.round.Offsets {
		offset := &c.round.Offsets[i]
		if !g.takesCommits(int(offset.TopicPartition.Partition)) {
			c.results[offset.TopicPartition] = kafka.UnknownTopicOrPartition
			continue
		}
		if limit := g.w.script.MetadataLimit; limit > 0 && len(offset.Metadata) > limit {
			g.w.stats.TooLarge++
			c.results[offset.TopicPartition] = kafka.OffsetMetadataTooLarge
			continue
		}
		if lossy && g.w.rng.IntN(20) == 0 {
			// The append timed out: it may or may not be there.
			c.results[offset.TopicPartition] = kafka.CoordinatorNotAvailable
			if g.w.rng.IntN(2) == 0 {
				continue
			}
		} else {
			c.results[offset.TopicPartition] = nil
		}
		part := int(offset.TopicPartition.Partition)
		g.marks[part] = g.w.check.stored(c.process, offset, g.committed[part])
		g.committed[part], g.texts[part], g.writtenAt[part] = offset.Offset, offset.Metadata, offset.Offset
	}
}

// usePending takes an id out of those given, and reports whether it was one.
func (g *coordinator) usePending(id string) bool {
	for i, p := range g.pending {
		if p.id == id {
			p.gone = true
			g.pending = slices.Delete(g.pending, i, i+1)
			return true
		}
	}
	return false
}

// pendingDue drops an id that was not used for a session.
func (g *coordinator) pendingDue(p *pendingID) {
	if !p.gone && g.usePending(p.id) {
		g.tryComplete()
	}
}

// touch counts a sign of life.
func (g *coordinator) touch(m *groupMember) {
	m.expires = g.w.at + int64(m.session)
	if p := m.process; p != nil {
		p.seenAlive = g.w.at
	}
	if !m.armed {
		m.armed = true
		g.w.timeline.push(m.expires, eventSession, 0, m)
	}
}

// sessionDue looks whether a member was silent for its session. One that waits for an answer is alive.
func (g *coordinator) sessionDue(m *groupMember) {
	m.armed = false
	if m.gone || g.loadingUntil > g.w.at {
		return
	}
	if m.joining != nil || m.syncing != nil || m.expires > g.w.at {
		m.armed = true
		g.w.timeline.push(max(m.expires, g.w.at+int64(100*time.Millisecond)), eventSession, 0, m)
		return
	}
	g.w.check.expired(m, "session expired")
	g.remove(m, "session expired")
}

// remove takes a member out of the group, and rebalances without it.
func (g *coordinator) remove(m *groupMember, _ string) {
	m.gone = true
	g.members = slices.DeleteFunc(g.members, func(other *groupMember) bool { return other == m })
	if m.joining != nil {
		m.joining.err = kafka.UnknownMemberID
		g.w.reply(m.joining)
	}
	if m.syncing != nil {
		m.syncing.err = kafka.UnknownMemberID
		g.w.reply(m.syncing)
	}
	m.joining, m.syncing = nil, nil
	switch g.phase {
	case groupStable, groupCompleting:
		g.prepare()
	case groupPreparing:
		g.tryComplete()
	case groupEmpty:
	}
}

// add takes a new member in.
func (g *coordinator) add(c *call, id string) *groupMember {
	m := &groupMember{id: id, instance: c.join.GroupInstanceID, process: c.process}
	g.members = append(g.members, m)
	g.update(m, c)
	return m
}

// update takes over what a JoinGroup says.
func (g *coordinator) update(m *groupMember, c *call) {
	m.session, m.rebalance = c.join.SessionTimeout, c.join.RebalanceTimeout
	m.protocols, m.process = c.join.Protocols, c.process
}

func (g *coordinator) newID(c *call) string {
	g.nextID++
	if c.join.GroupInstanceID != "" {
		return fmt.Sprintf("%s-%d", c.join.GroupInstanceID, g.nextID)
	}
	return fmt.Sprintf("member-%d", g.nextID)
}

// save writes the group, as it is on completing a rebalance.
func (g *coordinator) save() {
	g.saved = g.groupState
	g.saved.members = make([]*groupMember, len(g.members))
	for i, m := range g.members {
		twin := *m
		twin.joining, twin.syncing, twin.armed = nil, nil, false
		g.saved.members[i] = &twin
	}
}

// load makes the saved group the present one, as a new coordinator does. Sessions begin anew.
func (g *coordinator) load() {
	for _, m := range g.members {
		m.gone = true
	}
	for _, p := range g.pending {
		p.gone = true
	}
	g.pending = nil
	g.timer++
	g.groupState = g.saved
	g.save()
	for _, m := range g.members {
		g.touchLoaded(m)
	}
}

func (g *coordinator) touchLoaded(m *groupMember) {
	m.expires, m.armed = max(g.loadingUntil, g.w.at)+int64(m.session), true
	g.w.timeline.push(m.expires, eventSession, 0, m)
}

// move makes the next broker the coordinator. Requests that waited are answered, or their connections break.
func (g *coordinator) move(loading time.Duration, broken bool) {
	for _, m := range g.members {
		for _, c := range []*call{m.joining, m.syncing} {
			switch {
			case c == nil:
			case broken:
				g.w.failLater(c)
			default:
				c.err = kafka.NotCoordinator
				g.w.reply(c)
			}
		}
		m.joining, m.syncing = nil, nil
	}
	g.broker = (g.broker + 1) % brokers
	g.loadingUntil = g.w.at + int64(loading)
	g.load()
}

// protocolMembers are the members as the group leader is told of them.
func (g *coordinator) protocolMembers() []rebalance.JoinMember {
	out := make([]rebalance.JoinMember, 0, len(g.members))
	for _, m := range g.members {
		out = append(out, rebalance.JoinMember{MemberID: m.id, GroupInstanceID: m.instance, Metadata: m.metadata(g.protocol)})
	}
	return out
}
