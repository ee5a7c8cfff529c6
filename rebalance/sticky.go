package rebalance

import (
	"encoding/binary"
	"iter"
	"maps"
	"slices"

	"github.com/troupego/troupe/pkg/kafka"
)

// Sticky returns Kafka's sticky assignor for eager members: as even as the subscriptions allow, and of all the ways to be
// that even one that moves the fewest partitions. What a member had is in its user data, in the format that the Java
// client, librdkafka, sarama and franz-go share, so members of all of them keep what they had whoever leads.
//
// A partition that two members had is left to the one with the later generation, and to neither when the generations are
// the same. Among partitions that move, and among those to be given up, one goes to a member in its rack where that costs
// neither evenness nor a move.
//
// "As even as the subscriptions allow": there is no chain of members, each of whom could hand a partition to the next, by
// which a member could rid itself of one to another who has at least two fewer. With equal subscriptions the counts differ
// by at most one. In huge groups with unequal subscriptions the search for chains and for the fewest moves is cut short;
// what is then left holds for each two members, as in the Java client, but not always for longer chains.
func Sticky() Assignor { return stickyAssignor{} }

type stickyAssignor struct{}

// Name returns "sticky".
func (stickyAssignor) Name() string { return "sticky" }

// Protocol returns [Eager].
func (stickyAssignor) Protocol() RebalanceProtocol { return Eager }

// UserData returns the previous assignment, nil when there was none. Topics whose names do not fit the format make it nil.
func (stickyAssignor) UserData(_ []string, owned []kafka.TopicPartition, generation kafka.Generation) []byte {
	if generation == kafka.NoGeneration && len(owned) == 0 {
		return nil
	}
	return stickyAssignor{}.AssignmentData(owned, generation)
}

// AssignmentData returns the same bytes for the leader to send: members of the sarama client know what they had only from
// there, others do without.
func (stickyAssignor) AssignmentData(partitions []kafka.TopicPartition, generation kafka.Generation) []byte {
	data, err := encodeStickyData(partitions, generation)
	if err != nil {
		return nil
	}
	return data
}

// Assign balances and keeps.
func (stickyAssignor) Assign(members []AssignorMember, topics map[string]TopicInfo) map[string][]kafka.TopicPartition {
	group := newStickyGroup(members, topics, func(m AssignorMember) claim {
		// Bytes that cannot be read are no claim, as in the Java client.
		c, _ := decodeStickyData(m.UserData)
		return c
	})
	group.assign()
	return group.result()
}

// CooperativeSticky returns Kafka's sticky assignor for cooperative members. It divides as [Sticky] does, and what members
// have is what they say they own. A partition that moves while another member still says it owns it is given to nobody: the
// owner lets go of it and joins again, and the round after that gives it away.
func CooperativeSticky() Assignor { return cooperativeStickyAssignor{} }

type cooperativeStickyAssignor struct{}

// Name returns "cooperative-sticky".
func (cooperativeStickyAssignor) Name() string { return "cooperative-sticky" }

// Protocol returns [Cooperative].
func (cooperativeStickyAssignor) Protocol() RebalanceProtocol { return Cooperative }

// UserData returns the generation in 4 bytes, as the Java client sends it for leaders that know no subscription version 2.
func (cooperativeStickyAssignor) UserData(_ []string, _ []kafka.TopicPartition, generation kafka.Generation) []byte {
	return appendInt32(nil, int32(generation))
}

// Assign balances, keeps, and holds back what still has another owner.
func (cooperativeStickyAssignor) Assign(members []AssignorMember, topics map[string]TopicInfo) map[string][]kafka.TopicPartition {
	group := newStickyGroup(members, topics, ownedClaim)
	group.assign()
	group.holdBack()
	return group.result()
}

// ownedClaim reads what a cooperative member owns. A subscription before version 2 has no generation; then the Java client
// puts it in 4 bytes of user data, and librdkafka and franz-go in the format of the eager sticky assignor.
func ownedClaim(m AssignorMember) claim {
	generation := m.Generation
	if generation < 0 {
		if len(m.UserData) == 4 {
			generation = kafka.Generation(int32(binary.BigEndian.Uint32(m.UserData)))
		} else if data, err := decodeStickyData(m.UserData); err == nil {
			generation = data.generation
		}
	}
	return claim{partitions: m.Owned, generation: generation}
}

// claim is what a member says it has, given to it in that generation.
type claim struct {
	partitions []kafka.TopicPartition
	generation kafka.Generation
}

// nobody stands where a member's index does.
const nobody = -1

// stickyGroup is one assignment in the making. Members and topics are named by index, in order.
type stickyGroup struct {
	members []AssignorMember
	claims  []claim // by member, as they came
	topics  []stickyTopic
	index   map[string]int // of topics
	load    []int32        // by member, how many it has
	racks   bool           // some member says where it is, and some topic where its replicas are
}

// stickyTopic is a topic that exists and that somebody asks for.
type stickyTopic struct {
	name     string
	info     TopicInfo
	askers   []int // members, ascending
	claimant []int // by partition: the member whose claim is good, or nobody
	owner    []int // by partition: who gets it, or nobody
}

// newStickyGroup reads the members' claims.
func newStickyGroup(members []AssignorMember, topics map[string]TopicInfo, claimOf func(AssignorMember) claim) *stickyGroup {
	ordered, asking := askingMembers(members)
	g := &stickyGroup{members: ordered, index: make(map[string]int), load: make([]int32, len(ordered))}
	replicas := false
	for _, name := range slices.Sorted(maps.Keys(asking)) {
		info := topics[name]
		if info.Partitions <= 0 {
			continue
		}
		g.index[name] = len(g.topics)
		g.topics = append(g.topics, stickyTopic{
			name: name, info: info, askers: asking[name],
			claimant: slices.Repeat([]int{nobody}, int(info.Partitions)),
			owner:    slices.Repeat([]int{nobody}, int(info.Partitions)),
		})
		replicas = replicas || len(info.Racks) > 0
	}
	g.racks = replicas && slices.ContainsFunc(ordered, func(m AssignorMember) bool { return m.Rack != "" })
	for _, member := range ordered {
		g.claims = append(g.claims, claimOf(member))
	}
	g.judgeClaims()
	return g
}

// judgeClaims settles for each partition whose claim is good: that of the latest generation, if only one member makes it
// and still asks for the topic. The generations of a group's other partitions do not matter: a member that missed a round
// still works on what nobody else was given.
func (g *stickyGroup) judgeClaims() {
	const disputed = nobody - 1
	latest := make([][]kafka.Generation, len(g.topics))
	for t, topic := range g.topics {
		latest[t] = slices.Repeat([]kafka.Generation{kafka.NoGeneration}, len(topic.claimant))
	}
	for m, c := range g.claims {
		generation := max(c.generation, kafka.NoGeneration)
		for t, p := range g.known(c.partitions) {
			claimant, best := &g.topics[t].claimant[p], &latest[t][p]
			switch {
			case *claimant == nobody || generation > *best:
				*claimant, *best = m, generation
			case generation == *best && *claimant != m:
				*claimant = disputed
			}
		}
	}
	asks := make([]bool, len(g.members))
	for _, topic := range g.topics {
		for _, m := range topic.askers {
			asks[m] = true
		}
		for p, m := range topic.claimant {
			if m == disputed || m >= 0 && !asks[m] {
				topic.claimant[p] = nobody
			}
		}
		for _, m := range topic.askers {
			asks[m] = false
		}
	}
}

// known walks over those partitions that exist and somebody asks for: index of the topic, and partition.
func (g *stickyGroup) known(partitions []kafka.TopicPartition) iter.Seq2[int, int32] {
	return func(yield func(int, int32) bool) {
		for _, tp := range partitions {
			t, ok := g.index[tp.Topic]
			if ok && tp.Partition >= 0 && tp.Partition < g.topics[t].info.Partitions && !yield(t, tp.Partition) {
				return
			}
		}
	}
}

// assign decides who gets what.
func (g *stickyGroup) assign() {
	if len(g.topics) == 0 {
		return
	}
	everybody := g.topics[0].askers
	if slices.ContainsFunc(g.topics, func(t stickyTopic) bool { return !slices.Equal(t.askers, everybody) }) {
		newUnevenGroup(g).assign()
		return
	}
	g.spreadEvenly()
}

// give makes a member the owner of a partition.
func (g *stickyGroup) give(t int, p int32, member int) {
	g.topics[t].owner[p] = member
	g.load[member]++
}

// holdBack takes away again what another member says it owns, unless the one who is to have it owns it by a good claim.
// Claims that are not good count too: stale as they may be, somebody may be working.
func (g *stickyGroup) holdBack() {
	for m, c := range g.claims {
		for t, p := range g.known(c.partitions) {
			topic := g.topics[t]
			if owner := topic.owner[p]; owner != nobody && owner != m && owner != topic.claimant[p] {
				topic.owner[p] = nobody
			}
		}
	}
}

// result names members and topics again; every member has an entry.
func (g *stickyGroup) result() map[string][]kafka.TopicPartition {
	out := make(map[string][]kafka.TopicPartition, len(g.members))
	for _, member := range g.members {
		out[member.MemberID] = nil
	}
	mine := make([][]kafka.TopicPartition, len(g.members))
	for _, topic := range g.topics {
		for p, owner := range topic.owner {
			if owner != nobody {
				mine[owner] = append(mine[owner], kafka.TopicPartition{Topic: topic.name, Partition: int32(p)})
			}
		}
	}
	for m, partitions := range mine {
		out[g.members[m].MemberID] = partitions
	}
	return out
}
