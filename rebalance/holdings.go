package rebalance

import (
	"cmp"
	"slices"

	"github.com/troupego/troupe/pkg/kafka"
)

// holdPhase is how far a granted partition is on its way in and out of this member.
type holdPhase uint8

const (
	holdStarting holdPhase = iota // granted, PartitionStarted awaited
	holdStarted                   // running
	holdRevoking                  // to be drained, PartitionReleased awaited
	holdLost                      // not ours any more, PartitionReleased awaited
	holdPhases
)

// holdings are the grants that the member handed out and has not got back. A partition may be in it twice: lost under an
// old epoch and not yet released, and granted anew.
type holdings struct {
	phases map[Grant]holdPhase
	counts [holdPhases]int
	// unwanted are grants to be revoked as soon as the state allows it, whatever an assignment says of their partitions.
	unwanted map[Grant]bool
}

// unwant marks what is held of topics, and reports whether that is anything.
func (h *holdings) unwant(topics []string) bool {
	found := false
	for _, grant := range h.in(holdStarting, holdStarted) {
		if slices.Contains(topics, grant.TopicPartition.Topic) {
			if h.unwanted == nil {
				h.unwanted = make(map[Grant]bool)
			}
			h.unwanted[grant], found = true, true
		}
	}
	return found
}

// moveUnwanted puts every grant that is marked into a phase and returns them in order.
func (h *holdings) moveUnwanted(to holdPhase) []Grant {
	grants := slices.DeleteFunc(h.in(holdStarting, holdStarted), func(g Grant) bool { return !h.unwanted[g] })
	for _, g := range grants {
		h.set(g, to)
	}
	return grants
}

func (h *holdings) set(g Grant, phase holdPhase) {
	if h.phases == nil {
		h.phases = make(map[Grant]holdPhase)
	}
	if old, ok := h.phases[g]; ok {
		h.counts[old]--
	}
	h.phases[g] = phase
	h.counts[phase]++
}

func (h *holdings) drop(g Grant) {
	if old, ok := h.phases[g]; ok {
		h.counts[old]--
		delete(h.phases, g)
		delete(h.unwanted, g)
	}
}

func (h *holdings) clear() { *h = holdings{} }

func (h *holdings) phase(g Grant) (holdPhase, bool) {
	phase, ok := h.phases[g]
	return phase, ok
}

func (h *holdings) count(phase holdPhase) int { return h.counts[phase] }

// owned counts the grants that are the member's: all but the lost ones.
func (h *holdings) owned() int { return len(h.phases) - h.counts[holdLost] }

// in returns the grants in one of the phases, in order.
func (h *holdings) in(phases ...holdPhase) []Grant {
	var out []Grant
	for g, phase := range h.phases {
		if slices.Contains(phases, phase) {
			out = append(out, g)
		}
	}
	slices.SortFunc(out, compareGrants)
	return out
}

// move puts every grant that is the member's into a phase and returns them in order.
func (h *holdings) move(to holdPhase) []Grant {
	grants := h.in(holdStarting, holdStarted, holdRevoking)
	for _, g := range grants {
		h.set(g, to)
	}
	return grants
}

func compareGrants(a, b Grant) int {
	return cmp.Or(a.TopicPartition.Compare(b.TopicPartition), cmp.Compare(a.Epoch, b.Epoch))
}

// valid checks what holds of all grants in whatever state: an epoch that was given out, one ownership of each partition, and
// counts that are true.
func (h *holdings) valid(last kafka.AssignmentEpoch) error {
	var counts [holdPhases]int
	owned := make(map[kafka.TopicPartition]bool)
	for grant, phase := range h.phases {
		counts[phase]++
		if grant.Epoch == 0 || grant.Epoch > last {
			return invalid("epoch %d of %s, the last was %d", grant.Epoch, grant.TopicPartition, last)
		}
		if phase == holdLost {
			continue
		}
		if owned[grant.TopicPartition] {
			return invalid("%s is owned twice", grant.TopicPartition)
		}
		owned[grant.TopicPartition] = true
	}
	for grant := range h.unwanted {
		if _, held := h.phases[grant]; !held {
			return invalid("%s (epoch %d) is unwanted and not held", grant.TopicPartition, grant.Epoch)
		}
	}
	if counts != h.counts {
		return invalid("counts %v, in truth %v", h.counts, counts)
	}
	return nil
}

// epochs returns the epoch of each partition that is the member's.
func (h *holdings) epochs() map[kafka.TopicPartition]kafka.AssignmentEpoch {
	out := make(map[kafka.TopicPartition]kafka.AssignmentEpoch, h.owned())
	for g, phase := range h.phases {
		if phase != holdLost {
			out[g.TopicPartition] = g.Epoch
		}
	}
	return out
}
