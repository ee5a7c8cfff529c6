package rebalance

import (
	"fmt"
	"slices"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

func (m *Member) queryTopics() {
	m.emit(QueryTopics{Seq: m.send(requestTopics), Topics: slices.Clone(m.union)})
}

func (m *Member) topicsKnown(now time.Time, in TopicsKnown) error {
	if !m.answered(requestTopics, in.Seq) {
		return nil
	}
	if in.Err != nil {
		wait := m.backoff.next()
		if !now.Add(wait).Before(m.generationEnds) {
			wait = max(0, m.generationEnds.Sub(now))
		}
		m.retryLater(now, requestTopics, "Metadata", in.Err, wait)
		return nil
	}
	m.watched = make(map[string]TopicInfo, len(m.union))
	for _, topic := range m.union {
		if info, ok := in.Partitions[topic]; ok {
			m.watched[topic] = info
		}
	}
	m.assign()
	m.sendSync()
	return nil
}

// assign makes the plan for the group. Every member gets an entry; nobody gets what it did not ask for, nor what another
// one has, whatever the assignor says.
func (m *Member) assign() {
	assignor := m.assignorNamed(m.protocol)
	plan := assignor.Assign(m.roster, m.watched)
	annotator, annotates := assignor.(AssignmentAnnotator)
	m.assignments = make([]MemberAssignment, 0, len(m.roster))
	given := make(map[kafka.TopicPartition]bool)
	m.heldBack = false
	for _, member := range m.roster {
		asked := make(map[string]bool, len(member.Topics))
		for _, topic := range member.Topics {
			asked[topic] = true
		}
		var mine []kafka.TopicPartition
		for _, tp := range plan[member.MemberID] {
			var wrong error
			switch {
			case !asked[tp.Topic]:
				wrong = ErrForeignPartition
			case given[tp]:
				wrong = ErrGivenTwice
			}
			if wrong != nil {
				m.emit(Refused{Err: fmt.Errorf("assignor %q: member %q, %s: %w", m.protocol, member.MemberID, tp, wrong)})
				continue
			}
			given[tp] = true
			mine = append(mine, tp)
		}
		assignment := Assignment{Partitions: mine}
		if annotates {
			assignment.UserData = annotator.AssignmentData(mine, m.generation)
		}
		encoded, err := EncodeAssignment(assignment)
		if err != nil {
			m.emit(Refused{Err: fmt.Errorf("assignment of member %q: %w", member.MemberID, err)})
		}
		m.assignments = append(m.assignments, MemberAssignment{MemberID: member.MemberID, Assignment: encoded})
	}
	for _, member := range m.roster {
		m.heldBack = m.heldBack || slices.ContainsFunc(member.Owned, func(tp kafka.TopicPartition) bool {
			return !given[tp] && tp.Partition >= 0 && tp.Partition < m.watched[tp.Topic].Partitions
		})
	}
}

func (m *Member) sendSync() {
	m.emit(SendSync{Seq: m.send(requestSync), Request: SyncRequest{
		GroupID:         m.config.GroupID,
		MemberID:        m.memberID,
		GroupInstanceID: m.config.GroupInstanceID,
		Generation:      m.generation,
		Protocol:        m.protocol,
		Assignments:     slices.Clone(m.assignments),
	}})
}

func (m *Member) syncAnswered(now time.Time, in SyncAnswered) error {
	if !m.answered(requestSync, in.Seq) {
		return nil
	}
	if in.Err != nil {
		return m.syncFailed(now, in.Err)
	}
	if p := in.Response.Protocol; p != "" && p != m.protocol {
		return m.joinAgain(now, "SyncGroup",
			fmt.Errorf("SyncGroup: %w: protocol %q instead of %q", ErrBadAnswer, p, m.protocol))
	}
	return m.enter(now, in.Response.Assignment)
}

// enter begins the generation with the partitions assigned.
func (m *Member) enter(now time.Time, encoded []byte) error {
	assignment, err := DecodeAssignment(encoded)
	if err != nil {
		// Joining again would not mend a leader that writes nonsense and would disturb the whole group each time.
		m.emit(Refused{Err: err})
	}
	m.entered = m.generation
	topics := m.asked
	if m.leads() {
		topics = m.union
	}
	m.emit(EnterGeneration{
		Generation: m.generation, MemberID: m.memberID, Leader: m.leads(), Topics: slices.Clone(topics), Protocol: m.protocol,
		Early: m.cooperative(),
	})
	if err := m.move(StateAssigning, "SyncGroup answered", nil); err != nil {
		return err
	}
	if m.leads() && (m.heldBack || m.watched == nil && m.cooperative()) {
		m.followUp = now.Add(m.config.RebalanceTimeout)
	}
	grants, moved := m.grant(assignment.Partitions)
	m.previous, m.previousGeneration = partitionsIn(m.held.in(holdStarting, holdStarted)), m.generation
	m.emit(AssignPartitions{Grants: grants})
	if m.postponed != nil {
		return nil // Step leaves now, with all of it
	}
	if len(moved) > 0 {
		return m.revoke(now, moved, reasonGivenUp, nil)
	}
	if m.again != "" {
		return m.rebalance(now, m.again, nil)
	}
	return m.assignedIfStarted()
}

// reasonGivenUp is why a member joins again that was told to give up partitions (KIP-429): others wait for them.
const reasonGivenUp = "partitions given up"

// reasonNoOwner is why a group leader begins a rebalance that others should have: whoever was to give up partitions has joined
// again by itself, unless it is a static member that was started anew meanwhile (KIP-345). That one is given what is left of its
// predecessor's partitions and knows of no others, and those would be nobody's for good. So would partitions that were to
// move, or came up, while the leader itself was started anew (KIP-814): it does not know the plan.
const reasonNoOwner = "partitions may have no owner"

// grant gives every partition that is new an epoch of its own. Partitions that the member kept keep theirs; those that it
// holds and was not given, or lets go, are moved: they are to be given up.
func (m *Member) grant(partitions []kafka.TopicPartition) (grants, moved []Grant) {
	sorted := slices.Compact(slices.SortedFunc(slices.Values(partitions), kafka.TopicPartition.Compare))
	held := m.held.epochs()
	for _, tp := range sorted {
		if !slices.Contains(m.asked, tp.Topic) || tp.Partition < 0 {
			m.emit(Refused{Err: fmt.Errorf("rebalance: %s assigned: %w", tp, ErrForeignPartition)})
			continue
		}
		if epoch, kept := held[tp]; kept {
			if !m.held.unwanted[Grant{TopicPartition: tp, Epoch: epoch}] {
				delete(held, tp)
			}
			continue
		}
		if slices.Contains(m.letGo, tp.Topic) { // asked for before it was let go; a rebalance follows
			continue
		}
		m.epoch++
		grant := Grant{TopicPartition: tp, Epoch: m.epoch}
		m.held.set(grant, holdStarting)
		grants = append(grants, grant)
	}
	for tp, epoch := range held {
		moved = append(moved, Grant{TopicPartition: tp, Epoch: epoch})
		m.held.set(moved[len(moved)-1], holdRevoking)
	}
	slices.SortFunc(moved, compareGrants)
	return grants, moved
}

func (m *Member) assignedIfStarted() error {
	if m.held.count(holdStarting) > 0 {
		return nil
	}
	return m.move(StateAssigned, "all partitions started", nil)
}

func (m *Member) partitionStarted(in PartitionStarted) error {
	grant := Grant(in)
	if phase, ok := m.held.phase(grant); !ok || phase != holdStarting {
		// Revoked or lost meanwhile, or told twice.
		return nil
	}
	m.held.set(grant, holdStarted)
	if m.state != StateAssigning {
		return nil
	}
	return m.assignedIfStarted()
}

func (m *Member) syncFailed(now time.Time, err error) error {
	cause := described("SyncGroup", err)
	switch verdictOf(err) {
	case verdictForgetID:
		return m.lose(now, cause, err, forgetMemberID)
	case verdictFatal:
		return m.fail(cause, err)
	case verdictRejoin, verdictNewID:
		return m.joinAgain(now, cause, err)
	case verdictRetry:
		return m.retrySync(now, err, m.backoff.next())
	case verdictSlow:
		return m.retrySync(now, err, m.backoff.slow())
	}
	return m.joinAgain(now, cause, err)
}

// retrySync repeats SyncGroup while the coordinator may still know the generation: a coordinator that moved does, and
// the group is spared a rebalance.
func (m *Member) retrySync(now time.Time, err error, wait time.Duration) error {
	if now.Add(wait).Before(m.generationEnds) {
		m.retryLater(now, requestSync, "SyncGroup", err, wait)
		return nil
	}
	if illegal := m.move(StateJoining, described("SyncGroup", err), err); illegal != nil {
		return illegal
	}
	m.reason = described("SyncGroup", err)
	m.retryLater(now, requestJoin, "SyncGroup", err, wait)
	return nil
}

// joinAgain leaves SYNCING for a new JoinGroup with the same member id: at once for the first time, then with backoff.
func (m *Member) joinAgain(now time.Time, cause string, err error) error {
	m.reason = cause
	wait := m.backoff.soon()
	if wait > 0 {
		m.emit(Refused{Err: &AttemptError{Op: "SyncGroup", Attempt: m.backoff.failures, RetryAt: now.Add(wait), Err: err}})
	}
	return m.toJoining(now, cause, err, wait)
}

func (m *Member) syncTick(now time.Time) error {
	if !now.Before(m.generationEnds) {
		return m.joinAgain(now, "generation expired before SyncGroup", ErrGenerationExpired)
	}
	if m.request.kind == requestTopics {
		m.queryTopics()
	} else {
		m.sendSync()
	}
	return nil
}

// topicsChanged compares what the group leader assigned over with what there is now.
func (m *Member) topicsChanged(now time.Time, in TopicsChanged) error {
	if !m.leads() {
		return nil
	}
	switch m.state {
	case StateAssigning, StateAssigned, StateSyncing:
	case StateUnjoined, StateJoining, StateRevoking, StateRevoked, StateLeaving, StateFatal:
		// A JoinGroup is under way or about to be; the plan after it is made over fresh counts.
		return nil
	}
	if m.watched == nil {
		if m.state != StateSyncing {
			// A static leader that came back and was told to skip the assignment (KIP-814): this is its first look.
			m.watched = make(map[string]TopicInfo, len(m.union))
			for _, topic := range m.union {
				if info, ok := in.Partitions[topic]; ok {
					m.watched[topic] = info
				}
			}
			for _, grant := range m.held.in(holdStarting, holdStarted) {
				if tp := grant.TopicPartition; tp.Partition >= m.watched[tp.Topic].Partitions { // the plan was made before it went
					return m.rebalanceOrRemember(now, fmt.Sprintf("%s is gone", tp))
				}
			}
		}
		return nil
	}
	for _, topic := range m.union {
		before, had := m.watched[topic]
		after, has := in.Partitions[topic]
		if cause := topicChange(topic, before, had, after, has); cause != "" {
			return m.rebalanceOrRemember(now, cause)
		}
	}
	return nil
}

// topicChange says how a topic differs, empty when it does not. A topic id is compared only where both are known.
func topicChange(topic string, before TopicInfo, had bool, after TopicInfo, has bool) string {
	switch {
	case !had && !has:
		return ""
	case !had:
		return fmt.Sprintf("topic %s appeared", topic)
	case !has:
		return fmt.Sprintf("topic %s is gone", topic)
	case before.Partitions != after.Partitions:
		return fmt.Sprintf("topic %s has %d partitions instead of %d", topic, after.Partitions, before.Partitions)
	case before.ID != after.ID && !before.ID.IsZero() && !after.ID.IsZero():
		return fmt.Sprintf("topic %s was made anew", topic)
	}
	return ""
}
