package commit

import (
	"errors"
	"fmt"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// wait lets time pass, with a Tick at each deadline on the way.
func (m *coordinator) wait(d time.Duration) error {
	until := m.now.Add(d)
	for range 1000 {
		deadline, ok := m.rounds.Deadline()
		if !ok || deadline.After(until) {
			m.now = until
			return nil
		}
		if deadline.After(m.now) {
			m.now = deadline
		}
		if err := m.step(Tick{}); err != nil {
			return err
		}
	}
	return errors.New("the deadline does not move")
}

func (m *coordinator) deliver() error {
	if m.answer == nil {
		return nil
	}
	answer := *m.answer
	m.answer, m.flight = nil, nil
	return m.step(answer)
}

func (m *coordinator) assign(tp kafka.TopicPartition) error {
	m.epoch++
	// What was open before is closed by this, and its flushes are answered with what they know.
	closing := Assigned{TopicPartition: tp, Epoch: m.epoch, Committed: m.has(tp), Metadata: m.texts[tp]}
	m.epochs[tp], m.offered[tp], m.floor[tp], m.runs[tp] = m.epoch, kafka.NoOffset, m.has(tp), 0
	m.lanes[tp] = &naiveLane{opened: m.now, confirmed: closing.Committed, text: closing.Metadata, high: max(closing.Committed, 0)}
	return m.step(closing)
}

func (m *coordinator) enter() error {
	m.entered, m.told, m.toldID = true, m.generation, m.member
	m.entries++
	return m.step(Entered{Generation: m.generation, MemberID: m.member})
}

func (m *coordinator) random() error {
	tp := kafka.TopicPartition{Topic: "t", Partition: int32(m.c.pick(4))}
	switch m.c.pick(21) {
	case 0:
		return m.assign(tp)
	case 1: // fence, now and then an old epoch
		epoch := m.epochs[tp]
		if m.c.pick(4) == 0 && epoch > 0 {
			epoch--
		} else {
			delete(m.epochs, tp)
			delete(m.offered, tp)
			delete(m.lanes, tp)
			// Another member owns it now and commits what it likes.
			m.stored[tp], m.texts[tp] = int64(m.c.pick(50)), ""
		}
		return m.step(Fenced{TopicPartition: tp, Epoch: epoch})
	case 2:
		if m.c.pick(3) > 0 {
			return nil
		}
		m.rebalancing = !m.rebalancing
		return nil
	case 3:
		m.entered = false
		return m.step(Held{})
	case 4, 5:
		if m.entered {
			return nil
		}
		if m.c.pick(2) == 0 {
			m.generation++
			m.rebalancing = false
		}
		return m.enter()
	case 6:
		switch m.c.pick(6) {
		case 0:
			m.generation++
		case 1:
			m.member = fmt.Sprintf("m%d", m.steps)
		case 2:
			m.entered = false
			return m.step(Departed{Cause: kafka.UnknownMemberID})
		}
		return nil
	case 7:
		if m.spaced {
			return nil
		}
		epoch := m.epochs[tp]
		if m.c.pick(8) == 0 {
			epoch += 100
		}
		return m.flush(tp, epoch, time.Duration(m.c.pick(2000))*time.Millisecond)
	case 8, 9, 10:
		return m.deliver()
	case 11:
		if len(m.late) > 0 {
			late := m.late[0]
			m.late = m.late[1:]
			if m.flight != nil && m.flight.ID == late.ID {
				m.flight, m.answer = nil, nil // it came before the shell gave up
			}
			return m.step(late)
		}
		return nil
	case 14:
		return m.place(tp)
	case 15:
		return m.rewind(tp)
	case 12, 13:
		return m.wait(time.Duration(m.c.pick(400)) * time.Millisecond)
	default:
		return m.offer(tp)
	}
}

func (m *coordinator) offer(tp kafka.TopicPartition) error {
	epoch, open := m.epochs[tp]
	if !open {
		return m.step(Offered{Offset{TopicPartition: tp, Epoch: m.epoch, Offset: 1 << 40}})
	}
	if m.c.pick(16) == 0 { // a late ack of an epoch before
		return m.step(Offered{Offset{TopicPartition: tp, Epoch: epoch - 1, Offset: 1 << 40}})
	}
	n := m.lanes[tp]
	if n.run > 0 && m.c.pick(16) == 0 { // a late one of a position epoch before
		return m.step(Offered{Offset{TopicPartition: tp, Epoch: epoch, PositionEpoch: n.run - 1, Offset: 1 << 40}})
	}
	offset := max(m.offered[tp], n.from) + int64(m.c.pick(5)) - 1
	if n.run == 0 {
		offset = max(offset, m.floor[tp]-1)
	}
	if offset < 0 {
		return nil
	}
	metadata := ""
	if !m.spaced && m.c.pick(6) > 0 {
		metadata = simMark
		if size := m.c.pick(12); size > 0 {
			metadata += mapSeparator + "0123456789AB"[:size]
		}
	}
	n.high = max(n.high, offset)
	given := Offset{TopicPartition: tp, Epoch: epoch, PositionEpoch: n.run, Offset: offset, Metadata: metadata, Finished: n.finished}
	if offset > m.offered[tp] {
		m.offered[tp] = offset
		n.finished += uint64(m.c.pick(6))
		given.Finished = n.finished
	}
	if offset >= m.offered[tp] {
		n.offers = append(n.offers, naiveOffer{m.now, given})
	}
	return m.step(Offered{given})
}

func (m *coordinator) flush(tp kafka.TopicPartition, epoch kafka.AssignmentEpoch, within time.Duration) error {
	m.flushID++
	m.flushes[m.flushID], m.targets[m.flushID], m.flushed[m.flushID] = m.now.Add(within), m.offered[tp], tp
	return m.step(Flush{ID: m.flushID, TopicPartition: tp, Epoch: epoch, Deadline: m.now.Add(within)})
}
