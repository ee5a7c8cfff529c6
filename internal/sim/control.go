package sim

import "time"

// userControlsNow seeks, skips a record, or commits offsets of several partitions at once, in a process. When faults are over it
// commits what is finished: what was committed below that holds the rest back.
func (p *process) userControlsNow() {
	rng := p.w.control
	var owned []int
	for _, v := range p.group.parts {
		if v != nil && p.free([]int{v.part}) {
			owned = append(owned, v.part)
		}
	}
	if len(owned) == 0 {
		return
	}
	if !p.w.faulty {
		for _, part := range owned {
			p.w.post(p.group.parts[part].shell.box, message{kind: messageCommitWanted, at: p.at() + int64(5*time.Second)})
		}
		return
	}
	switch rng.IntN(4) {
	case 0:
		some := rng.IntN(len(owned))
		for _, part := range owned[some:] {
			p.seek(part)
		}
	case 1, 2:
		p.skip(owned[rng.IntN(len(owned))])
	default:
		p.placeTogether(owned)
	}
}

// seek has a partition go on elsewhere.
func (p *process) seek(part int) {
	rng := p.w.control
	kind := []seekKind{seekBack, seekBack, seekForward, seekForward, seekForward, seekEarliest, seekLatest}[rng.IntN(7)]
	p.w.post(p.group.parts[part].shell.box, message{kind: messageSeek, seq: uint64(kind), offset: int64(rng.IntN(12))})
}

// skip skips a record of a partition, mostly the one that holds its commits up.
func (p *process) skip(part int) {
	p.w.post(p.group.parts[part].shell.box, message{kind: messageSkip, seq: uint64(max(p.w.control.IntN(6)-2, 0))})
}

// placeTogether commits offsets of some partitions in one call.
func (p *process) placeTogether(parts []int) {
	rng := p.w.control
	from := rng.IntN(len(parts))
	p.group.commitOffsets(parts[from:], func() int64 { return int64(max(rng.IntN(30)-15, 0)) }, p.at()+rng.Int64N(int64(5*time.Second)))
}
