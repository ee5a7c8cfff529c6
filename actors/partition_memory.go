package actors

import "github.com/asynkron/protoactor-go/actor"

// decodeTurn reports whether the next batch may be decoded: the memory it will take is reserved. It asks for what the reader
// says, else for what the batches before it took, and for all there is when there was none. With wait, a partition that
// gets nothing stands in line, first in, first out. One that holds decoded records already gets more only within its share,
// so that a slow handler with a wide window does not take it all; it comes back when some of them are finished.
func (p *partition) decodeTurn(reader ChunkReader, wait bool) bool {
	in, memory := &p.intake, p.shared.memory
	if in.waitingMemory && !p.claimTurn() {
		return false
	}
	bytes := reader.NextBytes()
	if bytes <= 0 {
		switch {
		case in.surplus.FrontBytes() == 0:
			return true // the end of the chunk, or the rest of a batch that is decompressed already
		case in.expected > 0:
			bytes = in.expected
		default:
			bytes = memory.half
		}
	}
	bytes = min(bytes, p.shared.settings.MaxBatchBytes) // a larger one is refused when it is decoded
	used := p.decodedBytes()
	if used > 0 && used+bytes > memory.share() {
		return false
	}
	lacks := used + bytes - in.decoded
	if lacks <= 0 {
		return true
	}
	p.settleMemory() // a reserve that does not do goes back first: what is asked for must do when it is granted
	lacks = used + bytes - in.decoded
	lacks = max(lacks, memory.least) // small batches are copied together: one question for several
	asker := p.self
	if !wait {
		asker = nil
	}
	if !memory.decode(partitionHolder(p.tp, p.epoch), lacks, asker) {
		in.waitingMemory = wait
		return false
	}
	in.decoded += lacks
	return true
}

// claimTurn takes over what was granted while the partition stood in line.
func (p *partition) claimTurn() bool {
	in := &p.intake
	granted := p.shared.memory.decodeGranted(partitionHolder(p.tp, p.epoch))
	if granted == 0 {
		return false
	}
	in.decoded += granted
	in.waitingMemory = false
	return true
}

// memoryFreed decodes what stood in line. What is not used now, because the handler is not ready any more, goes to the next.
func (p *partition) memoryFreed(ctx actor.Context) {
	if p.intake.waitingMemory {
		p.claimTurn()
	}
	p.pump(ctx)
	p.settleMemory()
}

// decodedBytes is what decoded records take, until the delivery of a batch's last ones ended.
func (p *partition) decodedBytes() int {
	_, decoded := p.intake.surplus.Bytes()
	return decoded + int(p.intake.delivering)
}

// dropSurplus lets everything go that was fetched and not delivered, and its place in line.
func (p *partition) dropSurplus() {
	in := &p.intake
	in.surplus.Drop()
	in.wanting, in.chunks = false, 0
	if in.waitingMemory {
		in.waitingMemory = false
		p.shared.memory.leave(partitionHolder(p.tp, p.epoch))
	}
	p.settleMemory()
}

// settleMemory tells the memory register what is held now: compressed chunks, slabs until their last delivery ended, and
// nothing that was reserved beyond.
func (p *partition) settleMemory() {
	in := &p.intake
	compressed, _ := in.surplus.Bytes()
	decoded := p.decodedBytes()
	if compressed == in.compressed && decoded == in.decoded {
		return
	}
	p.shared.memory.adjust(partitionHolder(p.tp, p.epoch), compressed-in.compressed, decoded-in.decoded)
	in.compressed, in.decoded = compressed, decoded
}
