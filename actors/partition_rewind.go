package actors

import (
	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/kafka"
)

// rewindNow starts a new run of positions below the present one, once nothing is outstanding: the log is shorter than what
// was read of it. What is below that and not finished, such as a record that waits for its next try, is read again.
func (p *partition) rewindNow(ctx actor.Context) {
	in := &p.intake
	if in.rewind == nil || !p.machine.CanDeliver() || p.handler.delivery != nil || p.busy {
		return
	}
	p.collect()
	offset := min(*in.rewind, p.tracker.Committable())
	in.rewind = nil
	releaseLeases(p.handler.leases, true)
	p.handler.again, p.handler.leases = nil, p.handler.leases[:0]
	p.finishedBefore = commit.OffsetMap{}
	p.endEngine(errPositionReset)
	p.tracker = commit.NewTracker(offset)
	p.tracker.StartEpoch(in.lastEpoch)
	p.startEngine()
	in.restart(offset)
	p.rewound()
	p.cell.committed.Store(kafka.NoOffset)
	p.offer(ctx)
}

// rewound begins a new position epoch: lower offsets may be committed again.
func (p *partition) rewound() {
	p.positionEpoch++
	p.cell.positionEpoch.Store(p.positionEpoch)
	p.offered = kafka.NoOffset
}
