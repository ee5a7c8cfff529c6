package main

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/troupego/troupe/actors"
)

// click is one record's value.
type click struct {
	// Run tells the clicks of this run from older ones on the same topic.
	Run    string `json:"run"`
	Number int    `json:"number"`
}

// visitors is how many keys there are.
const visitors = 97

// click makes one click's record. Its key is the visitor.
func (s settings) click(number int) (key string, value []byte) {
	value, err := json.Marshal(click{Run: s.run, Number: number})
	if err != nil {
		panic(err) // a click has nothing that JSON cannot say
	}
	return "visitor-" + strconv.Itoa(number%visitors), value
}

// gatherLimit is how long a group that is not full waits for more.
const gatherLimit = 2 * time.Millisecond

var errRefused = errors.New("the store is busy")

// store writes clicks in groups. A service would have a database here that takes many rows at once.
type store struct {
	settings
	books *books

	mu      sync.Mutex
	waiting []*actors.RecordDelivery
	// since counts the groups, so that a timer knows whether its group is gone.
	since int
	// writes are the groups being written, closed says that none is begun any more.
	writes sync.WaitGroup
	closed bool
}

func newStore(s settings, books *books) *store { return &store{settings: s, books: books} }

// put takes a click and returns at once. It is the handler.
func (s *store) put(_ context.Context, d *actors.RecordDelivery) {
	s.books.given(d)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = append(s.waiting, d)
	switch len(s.waiting) {
	case s.groupSize:
		s.write()
	case 1:
		group := s.since
		time.AfterFunc(gatherLimit, func() { s.full(group) })
	}
}

// full writes a group that has waited long enough.
func (s *store) full(group int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.since == group {
		s.write()
	}
}

// write begins to write what is there. The caller holds mu.
func (s *store) write() {
	group := s.waiting
	s.waiting = nil
	s.since++
	if s.closed {
		return // the consumer is closed: what was not acknowledged comes again, to the next one
	}
	s.books.written()
	s.writes.Go(func() {
		if s.work > 0 {
			time.Sleep(rand.N(s.work))
		}
		rand.Shuffle(len(group), func(i, j int) { group[i], group[j] = group[j], group[i] })
		for _, d := range group {
			s.answer(d)
		}
	})
}

// answer acknowledges a click, or refuses it. A record is valid until then.
func (s *store) answer(d *actors.RecordDelivery) {
	var c click
	ours := json.Unmarshal(d.Record().Value, &c) == nil && c.Run == s.run && c.Number >= 0 && c.Number < s.records
	if !ours {
		c.Number = -1 // somebody else's record: the topic need not be ours alone
	}
	refuses := ours && s.refuseEvery > 0 && (c.Number+1)%s.refuseEvery == 0 && d.Attempt() == 1
	s.books.answers(d, c.Number, refuses)
	// An error says that the answer came too late: the partition has another owner, and so has the click.
	if refuses {
		_ = d.Nack(errRefused)
	} else {
		_ = d.Ack()
	}
}

// close waits for what is being written.
func (s *store) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.writes.Wait()
}
