package sim

import (
	"slices"
	"time"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// topicState is the topic: its incarnation, and how many partitions it has, 0 while there is none.
type topicState struct {
	id    kafka.TopicID
	count int
}

// topicLag is for how long brokers may answer as if a topic had not changed, and take commits of one that is gone.
const topicLag = time.Second

// changing reports whether members watch the topic.
func (s *Script) changing() bool { return s.MetadataAge > 0 }

// firstTopic is the topic at the beginning.
func (s *Script) firstTopic() topicState {
	if s.FirstPartitions > 0 {
		return topicState{id: topicID, count: min(s.FirstPartitions, s.Partitions)}
	}
	return topicState{id: topicID, count: s.Partitions}
}

// changeTopic makes the topic another one. Brokers learn of it one after the other.
func (w *World) changeTopic(now topicState) {
	w.topicBefore, w.topicChanged = w.topic, w.at
	w.topic = now
}

// seenTopic is the topic as some broker knows it.
func (w *World) seenTopic() topicState {
	if w.topicChanged > 0 && w.at-w.topicChanged < int64(topicLag) && w.change.IntN(2) == 0 {
		return w.topicBefore
	}
	return w.topic
}

// growTopic adds partitions.
func (w *World) growTopic(count int) {
	if w.topic.count == 0 || w.topic.count == w.script.Partitions {
		return
	}
	before := w.topic.count
	w.changeTopic(topicState{id: w.topic.id, count: min(before+count, w.script.Partitions)})
	for part := before; part < w.topic.count; part++ {
		w.logs[part].topicID = w.topic.id
		w.produce(part)
	}
}

// deleteTopic takes the topic away. The coordinator forgets its offsets a little later.
func (w *World) deleteTopic(f Fault) {
	if w.topic.count == 0 {
		return
	}
	w.deleted = w.topic
	w.forever = f.Amount == 1
	w.changeTopic(topicState{})
	for _, l := range w.logs {
		w.answerWaiting(l)
	}
	w.timeline.push(w.at+w.change.Int64N(int64(topicLag)), eventForget, int64(w.deleted.id[0]), nil)
	if !w.forever {
		w.timeline.push(w.at+int64(f.For), eventFaultEnds, 0, f)
	}
}

// forgetOffsets drops the offsets of a topic that is gone, unless it was made again before that.
func (w *World) forgetOffsets(id byte) {
	if w.topic.count > 0 || w.deleted.id[0] != id {
		return
	}
	g := w.coordinator
	for part := range g.committed {
		g.committed[part], g.texts[part], g.marks[part] = kafka.NoOffset, "", commitMark{leaderEpoch: kafka.NoLeaderEpoch}
	}
}

// recreateTopic makes the topic again, under its name: it is another one, with logs of its own.
func (w *World) recreateTopic() {
	if w.topic.count > 0 {
		return
	}
	w.forgetOffsets(w.deleted.id[0])
	id := w.deleted.id
	id[0]++
	w.stats.Recreated++
	w.changeTopic(topicState{id: id, count: w.deleted.count})
	for part := range w.logs {
		w.logs[part] = newLog(part, id)
		w.produce(part)
	}
}

// takesCommits reports whether the coordinator takes an offset of a partition: its view of topics that are gone lags, too.
func (g *coordinator) takesCommits(part int) bool {
	w := g.w
	return part < w.topic.count || part < w.topicBefore.count && w.at-w.topicChanged < int64(topicLag) && w.change.IntN(2) == 0
}

// topicView is actors/group_metadata.go: what a process knows of the topic.
type topicView struct {
	known topicState
	// missed counts the answers in a row without the topic.
	missed      int
	alarm       alarm
	busy, again bool
	failures    int
	urgency     int
	lastUrgent  int64
}

const (
	// goneAfter is how many answers in a row must miss a topic before it is taken as gone.
	goneAfter = 3
	urgentMax = 2 * time.Second
	calmAfter = 5 * time.Second
)

// urgent returns how long to wait before a refresh that something missing or doubted asks for.
func (v *topicView) urgent(now int64) time.Duration {
	if now-v.lastUrgent > int64(calmAfter) {
		v.urgency = 0
	}
	v.lastUrgent = now
	delay := time.Duration(0)
	if v.urgency > 0 {
		delay = min(50*time.Millisecond<<min(v.urgency, 10), urgentMax)
	}
	v.urgency++
	return delay
}

// refreshTopic asks for the topic; while one question is under way, once more after it.
func (g *groupShell) refreshTopic() {
	v := &g.topic
	if v.busy {
		v.again = true
		return
	}
	v.busy, v.again = true, false
	g.w.send(&call{api: apiMetadata, process: g.process, box: g.box}, g.w.script.Request)
}

// refreshSoon asks for the topic because something is missing or doubted.
func (g *groupShell) refreshSoon() {
	v := &g.topic
	if !g.w.script.changing() {
		return
	}
	if v.busy {
		v.again = true
		return
	}
	wait := v.urgent(g.w.at)
	if !v.alarm.set || g.process.at()+int64(wait) < v.alarm.at {
		g.w.setAlarmIn(&v.alarm, wait)
	}
}

// infos is what the member machine is told of topics.
func (v *topicView) infos() map[string]rebalance.TopicInfo {
	if v.known.count == 0 || v.missed >= goneAfter {
		return map[string]rebalance.TopicInfo{}
	}
	return map[string]rebalance.TopicInfo{topic: {ID: v.known.id, Partitions: int32(v.known.count)}}
}

// metadataAnswered takes over what a broker says of the topic. The call's seq is the question of a group leader's, 0 for none.
func (g *groupShell) metadataAnswered(c *call) {
	v := &g.topic
	if c.seq == 0 {
		v.busy = false
	}
	if c.err != nil {
		if c.seq > 0 {
			g.feed(rebalance.TopicsKnown{Seq: c.seq, Err: c.err})
			return
		}
		v.failures++
		v.again = false
		g.w.setAlarmIn(&v.alarm, min(backoffInitial<<min(v.failures-1, 16), backoffMax))
		return
	}
	v.failures = 0
	if c.topic.count == 0 {
		v.missed++
	} else {
		v.known, v.missed = c.topic, 0
	}
	if g.routeAnew() {
		g.feed(rebalance.TopicRecreated{Topic: topic})
	}
	if c.seq > 0 {
		g.feed(rebalance.TopicsKnown{Seq: c.seq, Partitions: v.infos()})
	}
	if g.process.ended || !g.w.script.changing() {
		return
	}
	if g.w.mutant != MutantGrowthUnseen {
		g.feed(rebalance.TopicsChanged{Partitions: v.infos()})
	}
	g.requestStarts()
	g.nextRefresh()
}

// routeAnew tells the partitions of the topic's id, and reports whether it is another one than a partition knows.
func (g *groupShell) routeAnew() (anew bool) {
	v := &g.topic
	for _, view := range g.parts {
		if view == nil || view.revoking || view.lost || v.known.count == 0 || view.topicID == v.known.id {
			continue
		}
		anew = anew || view.topicID != kafka.TopicID{}
		view.topicID = v.known.id
		g.w.post(view.shell.box, message{kind: messageLeaderKnown, epoch: uint64(view.epoch), payload: v.known.id})
	}
	return anew && g.w.mutant != MutantTopicIDIgnored
}

// nextRefresh sets the time of the next look: soon while something is missing.
func (g *groupShell) nextRefresh() {
	v := &g.topic
	if v.again {
		g.refreshTopic()
		return
	}
	missing := v.known.count == 0 || v.missed > 0 || slices.ContainsFunc(g.parts, func(view *grantView) bool {
		return view != nil && view.part >= v.known.count
	})
	wait := g.w.script.MetadataAge
	if missing {
		wait = max(v.urgent(g.w.at), backoffInitial)
	}
	g.w.setAlarmIn(&v.alarm, wait)
}

// ofAnotherTopic reports whether a commit's metadata marks it as another incarnation's of the topic.
func (g *groupShell) ofAnotherTopic(text string) bool {
	return g.w.script.changing() && g.w.mutant != MutantTopicIDIgnored && ofAnotherTopic(text, g.topic.known.id)
}

func ofAnotherTopic(text string, id kafka.TopicID) bool {
	if text == "" {
		return false
	}
	marked, _ := commit.ParseMetadata(commit.WithoutMap(text), kafka.NoOffset)
	return marked.OfAnotherTopic(id)
}

// leaderKnown tells a partition where it is read, and with that the topic's id.
func (s *partitionShell) leaderKnown(id kafka.TopicID) {
	if before := s.topicID; before != (kafka.TopicID{}) && before != id && s.w.mutant != MutantTopicIDIgnored {
		s.recreated()
		return
	}
	s.topicID = id
	abandon(s.wanting)
	s.wanting = nil
	if s.reset {
		s.lookUp()
		return
	}
	s.pump()
}

// recreated stands still: the topic was deleted and made anew, so neither position nor acknowledgments mean anything in it.
func (s *partitionShell) recreated() {
	s.orphaned = true
	if s.surplus != nil {
		s.surplus.Drop()
	}
	abandon(s.wanting)
	s.wanting = nil
	s.w.post(s.process.committer.box, message{kind: messagePartitionFenced, part: int32(s.part), epoch: uint64(s.epoch)})
}
