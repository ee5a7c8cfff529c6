package kafkatest

import (
	"context"
	"sync"
	"time"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
)

// runPoll is how often the verdicts of those who acknowledge later are looked at.
const runPoll = 5 * time.Millisecond

// runLog is what a run knows of its records. The handler is wrapped, so it is told each delivery, and each verdict of a
// function; the verdicts of those who acknowledge later are read from what they acknowledge with.
type runLog struct {
	partitions map[kafka.TopicPartition]*runPartition
	// later is true for an actor and an asynchronous handler, parallel for every order but that of the partition.
	later, parallel bool
	restarts        int
	// over is closed when there is nothing left to wait for.
	over chan struct{}

	mu       sync.Mutex
	runs     []RecordRun
	failures int
	// open are the partitions that go on.
	open map[kafka.TopicPartition]bool
	// handed has each record's newest delivery to those who acknowledge later, until it is seen to be acknowledged, and
	// failed why that delivery failed.
	handed map[int]handed
	failed map[int]error
}

// handed is one record's delivery.
type handed struct {
	tp      kafka.TopicPartition
	i       int
	verdict func() (actors.Verdict, error)
}

func newRunLog(r *actors.Registration, restarts int, records []kafka.Record) (*runLog, error) {
	partitions, err := sortRecords(r.Topics, records)
	if err != nil {
		return nil, err
	}
	l := &runLog{
		partitions: partitions, later: r.Actor != nil || r.Async != nil, parallel: r.Order != actors.OrderPartition, restarts: restarts,
		over: make(chan struct{}), runs: make([]RecordRun, len(records)), open: make(map[kafka.TopicPartition]bool),
		handed: make(map[int]handed), failed: make(map[int]error),
	}
	for tp, p := range partitions {
		l.open[tp] = true
		p.divide(r)
		for i, at := range p.index {
			l.runs[at] = RecordRun{TopicPartition: tp, Offset: p.records[i].Offset}
		}
	}
	return l, nil
}

// wait returns when there is nothing left to wait for, or the consumer or ctx has ended.
func (l *runLog) wait(ctx context.Context, ended <-chan struct{}) {
	var look <-chan time.Time
	if l.later {
		ticker := time.NewTicker(runPoll)
		defer ticker.Stop()
		look = ticker.C
	}
	for {
		select {
		case <-look:
			l.look()
		case <-l.over:
			return
		case <-ended:
			return
		case <-ctx.Done():
			return
		}
	}
}

// look finds out what is acknowledged meanwhile.
func (l *runLog) look() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for index, h := range l.handed {
		if verdict, _ := h.verdict(); verdict == actors.VerdictAcked {
			delete(l.handed, index)
			l.runs[index].Outcome = Acked
			l.partitions[h.tp].ack(h.i)
			l.settle(h.tp)
		}
	}
}

// began notes that a function is called with some records of a partition.
func (l *runLog) began(p *runPartition, at []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, i := range at {
		r := &l.runs[p.index[i]]
		r.Deliveries++
		r.Outcome, r.Err = Unsettled, nil
	}
}

// returned notes what a function did with them.
func (l *runLog) returned(tp kafka.TopicPartition, p *runPartition, at []int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, i := range at {
		r := &l.runs[p.index[i]]
		if r.Outcome, r.Err = Acked, err; err != nil {
			r.Outcome = Failed
			continue
		}
		p.ack(i)
	}
	if err != nil {
		l.failures++
		if l.parallel {
			for _, i := range p.heads(at) {
				if p.failures[i]++; p.failures[i] > l.restarts {
					p.stop(i)
				}
			}
		}
	}
	l.settle(tp)
}

// gave notes that a record is handed to those who acknowledge later.
func (l *runLog) gave(tp kafka.TopicPartition, offset int64, verdict func() (actors.Verdict, error)) {
	p := l.partitions[tp]
	i, _ := p.find(offset)
	l.mu.Lock()
	defer l.mu.Unlock()
	index := p.index[i]
	l.runs[index].Deliveries++
	l.handed[index] = handed{tp: tp, i: i, verdict: verdict}
	delete(l.failed, index)
}

// settle ends the run when no partition has anything left to wait for. The caller holds mu.
func (l *runLog) settle(tp kafka.TopicPartition) {
	if !l.open[tp] || l.partitions[tp].waiting > 0 {
		return
	}
	if delete(l.open, tp); len(l.open) == 0 {
		close(l.over)
	}
}

// stopped notes that nothing more comes of a partition.
func (l *runLog) stopped(tp kafka.TopicPartition) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.partitions[tp]; p != nil {
		p.waiting = 0
		l.settle(tp)
	}
}

// observe is told every event of the consumer.
func (l *runLog) observe(e event.Event) {
	switch e := e.(type) {
	case event.HandlerFailed:
		l.refused(e)
	case event.PartitionFailed:
		l.stopped(e.TopicPartition)
	case event.PartitionPaused:
		if !l.parallel || (l.later && e.Lane == 0) {
			l.stopped(e.TopicPartition)
		} else if l.later {
			l.laneStopped(e)
		}
	}
}

// refused notes a failure of those who acknowledge later. Those of a function were seen as they happened.
func (l *runLog) refused(e event.HandlerFailed) {
	if !l.later {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failures++
	p := l.partitions[e.TopicPartition]
	if i, found := p.find(e.Offset); found {
		l.failed[p.index[i]] = e.Err
	}
}

// laneStopped notes that the records of a key come no more.
func (l *runLog) laneStopped(e event.PartitionPaused) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.partitions[e.TopicPartition]
	if i, found := p.find(e.Offset); found {
		p.stop(i)
		l.settle(e.TopicPartition)
	}
}

// result is called when the consumer is closed. What those said who acknowledge later is read only now, when they may have
// said it from any goroutine.
func (l *runLog) result(network *memoryNetwork, closed error) *HandlerRun {
	l.mu.Lock()
	defer l.mu.Unlock()
	run := &HandlerRun{Records: l.runs, Failures: l.failures, Committed: network.commits(), Close: closed}
	for index, h := range l.handed {
		r := &run.Records[index]
		r.Outcome = Unsettled
		switch verdict, cause := h.verdict(); verdict {
		case actors.VerdictAcked:
			r.Outcome = Acked
		case actors.VerdictRefused:
			r.Outcome, r.Err = Failed, cause
		case actors.VerdictOpen:
			// An actor that panicked has said nothing about the record that it failed at.
			if err := l.failed[index]; err != nil {
				r.Outcome, r.Err = Failed, err
			}
		}
	}
	return run
}
