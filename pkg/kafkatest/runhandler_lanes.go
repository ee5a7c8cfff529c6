package kafkatest

import (
	"cmp"
	"slices"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/kafka"
)

// runPartition is one partition's records, by offset, and what there is left to wait for.
type runPartition struct {
	records []kafka.Record
	// index has each record's place in what was given.
	index []int

	// lanes has each record's lane, nil until it is known, and keyed the lanes by their key. The log's lock is for these and
	// all below.
	lanes []*runLane
	keyed map[string]*runLane
	// acked has each record that is acknowledged, failures how often a call failed at it.
	acked    []bool
	failures []int
	// waiting counts the records that are not acknowledged and not in a lane that stopped.
	waiting int
}

// runLane is the records of a partition of which a failing one holds up the others: those of a partition, of a key, or a
// single one, as the registration's order says.
type runLane struct {
	// waiting counts those that are not acknowledged, stopped says that none of them is delivered any more.
	waiting int
	stopped bool
}

// start and end are the first offset, and the one after the last.
func (p *runPartition) start() int64 { return p.records[0].Offset }
func (p *runPartition) end() int64   { return p.records[len(p.records)-1].Offset + 1 }

// find returns a record's place in the partition.
func (p *runPartition) find(offset int64) (i int, found bool) {
	return slices.BinarySearchFunc(p.records, offset, func(r kafka.Record, offset int64) int { return cmp.Compare(r.Offset, offset) })
}

// divide puts the records into lanes. Where a function gives the key, they are put there when the consumer has asked it.
func (p *runPartition) divide(r *actors.Registration) {
	n := len(p.records)
	p.waiting, p.lanes, p.keyed = n, make([]*runLane, n), make(map[string]*runLane)
	p.acked, p.failures = make([]bool, n), make([]int, n)
	for i := range p.records {
		switch {
		case r.Order == actors.OrderPartition:
			p.join(i, nil)
		case r.Order == actors.OrderNone:
			p.enter(i, new(runLane))
		case r.KeyFunc == nil:
			p.join(i, p.records[i].Key)
		}
	}
}

// join puts a record into the lane of a key; nil is not the empty key.
func (p *runPartition) join(i int, key []byte) {
	name := "nil"
	if key != nil {
		name = "key " + string(key)
	}
	lane := p.keyed[name]
	if lane == nil {
		lane = new(runLane)
		p.keyed[name] = lane
	}
	p.enter(i, lane)
}

func (p *runPartition) enter(i int, lane *runLane) {
	switch {
	case p.lanes[i] != nil:
		return // the consumer started anew, and asked again
	case lane.stopped:
		p.waiting--
	default:
		lane.waiting++
	}
	p.lanes[i] = lane
}

// ack notes that a record is acknowledged.
func (p *runPartition) ack(i int) {
	if p.acked[i] {
		return
	}
	p.acked[i] = true
	if lane := p.lanes[i]; !lane.stopped {
		lane.waiting--
		p.waiting--
	}
}

// stop notes that no record of a record's lane is delivered any more.
func (p *runPartition) stop(i int) {
	if lane := p.lanes[i]; !lane.stopped {
		lane.stopped = true
		p.waiting -= lane.waiting
	}
}

// heads returns those of some records, in their order, that are the first ones of their lanes among them.
func (p *runPartition) heads(at []int) (heads []int) {
	var seen []*runLane
	for _, i := range at {
		if lane := p.lanes[i]; !slices.Contains(seen, lane) {
			seen, heads = append(seen, lane), append(heads, i)
		}
	}
	return heads
}
