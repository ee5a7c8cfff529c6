package actors

import (
	"errors"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/supervisor"
)

// failed reports a failure and what the budget says to it.
func (p *partition) failed(ctx actor.Context, failure *HandlerError, decision supervisor.Decision) {
	p.failedAt(ctx, failure, decision, max(p.handler.attempt-1, 1), 0)
}

// failedAt is failed with the attempt and, where the order goes by key, the lane: only that is paused then.
func (p *partition) failedAt(ctx actor.Context, failure *HandlerError, decision supervisor.Decision, attempt int, lane uint64) {
	p.shared.observe(event.HandlerFailed{
		Member: p.shared.member(), TopicPartition: p.tp, Epoch: p.epoch, Offset: failure.Offset, Lane: lane, Attempt: attempt, Err: failure,
		Panic: failure.Panic,
	})
	p.shared.logger.Warn("handler failed", zap.String("topic", p.tp.Topic), zap.Int32("partition", p.tp.Partition),
		zap.Int64("offset", failure.Offset), zap.Int("attempt", attempt), zap.Bool("panic", failure.Panic), zap.Duration("retry_in", decision.After),
		zap.String("error", clip(failure.Err)))
	switch decision.Action {
	case supervisor.Stop:
		p.handler.paused, p.handler.stopped = true, true
		ctx.Send(p.group, &consumerFailed{err: failure})
	case supervisor.Probe:
		p.handler.paused = p.handler.paused || lane == 0
		p.shared.logger.Error("partition paused: its handler's restart budget is spent", zap.String("topic", p.tp.Topic),
			zap.Int32("partition", p.tp.Partition), zap.Int64("offset", failure.Offset), zap.Duration("probe_in", decision.After))
		p.shared.observe(event.PartitionPaused{
			Member: p.shared.member(), TopicPartition: p.tp, Epoch: p.epoch, Offset: failure.Offset, Lane: lane, Err: failure, ProbeIn: decision.After,
		})
	case supervisor.Restart:
	}
}

// clip is an error's text for the log: what a handler says of its own failure, within bounds.
func clip(err error) string {
	const most = 1024
	text := err.Error()
	if len(text) > most {
		text = text[:most] + "..."
	}
	return text
}

// handlerFailure finds the handler's own error in what its actor failed with.
func handlerFailure(tp kafka.TopicPartition, reason any) *HandlerError {
	err := reasonError(reason)
	if failure, ok := errors.AsType[*HandlerError](err); ok {
		return failure
	}
	_, panicked := errors.AsType[*PanicError](err)
	return &HandlerError{TopicPartition: tp, Offset: kafka.NoOffset, Panic: panicked, Err: err}
}
