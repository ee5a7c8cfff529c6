package sim

import (
	"slices"
	"time"
)

// fault lets the script's next fault happen; -1 is the end of all of them.
func (w *World) fault(i int) {
	if i < 0 {
		w.endFaults()
		return
	}
	f := w.script.Faults[i]
	if f.Member >= len(w.slots) && !f.Kind.ofPartition() {
		return
	}
	switch f.Kind {
	case FaultClose, FaultUpgrade, FaultRejoin, FaultRetain, FaultDuplicate, FaultCrash, FaultTruncate, FaultRestore, FaultDiverge,
		FaultGrow, FaultDelete:
	case FaultFreeze, FaultSuspend, FaultStall, FaultCut, FaultLossy, FaultSlow, FaultErrors, FaultMove, FaultDown, FaultTwin:
		w.disturbedUntil = max(w.disturbedUntil, w.at+int64(f.For))
	}
	switch f.Kind {
	case FaultCrash, FaultFreeze, FaultSuspend, FaultStall, FaultClose, FaultUpgrade, FaultRejoin, FaultTwin:
		if p := w.slots[max(f.Member, 0)]; p != nil && !p.dead && !p.ended {
			w.processFault(f, p)
		}
	case FaultCut, FaultLossy, FaultSlow, FaultDuplicate, FaultErrors:
		w.active = append(w.active, f)
		w.changeWeather()
		w.timeline.push(w.at+int64(f.For), eventFaultEnds, 0, f)
	case FaultMove:
		w.coordinator.move(f.For, false)
		// FindCoordinator may name the old broker for a while.
		w.timeline.push(w.at+w.rng.Int64N(int64(time.Second)), eventFaultEnds, 0, f)
	case FaultDown:
		w.coordinator.downUntil = w.at + int64(f.For)
		w.timeline.push(w.at+int64(f.For), eventFaultEnds, 0, f)
	case FaultRetain:
		if f.Member < len(w.logs) {
			w.retain(f.Member, f.Amount)
		}
	case FaultTruncate, FaultRestore:
		if f.Member < len(w.logs) {
			w.disaster(f)
		}
	case FaultDiverge:
		if f.Member < len(w.logs) {
			w.diverge(f.Member, f.Amount)
		}
	case FaultGrow:
		w.growTopic(f.Amount)
	case FaultDelete:
		w.deleteTopic(f)
	}
}

func (w *World) processFault(f Fault, p *process) {
	switch f.Kind { //nolint:exhaustive // only the faults of processes come here
	case FaultCrash:
		p.crash()
		w.timeline.push(w.at+int64(f.For), eventRestartSlot, int64(p.slot), p)
	case FaultFreeze, FaultSuspend:
		if !p.frozen {
			p.suspended = f.Kind == FaultSuspend
		}
		p.freeze()
		w.timeline.push(w.at+int64(f.For), eventFaultEnds, int64(p.number), f)
	case FaultStall:
		live := slices.DeleteFunc(slices.Clone(p.boxes), func(b *mailbox) bool { return b.dead || b.stalled })
		if len(live) > 0 {
			w.stall(live[f.Amount%len(live)], f.For)
		}
	case FaultClose:
		p.close(f.For)
	case FaultUpgrade:
		if p.closeBy == 0 {
			w.upgrade(p.slot)
			p.close(f.For)
		}
	case FaultRejoin:
		w.post(p.group.box, message{kind: messageRejoin})
	case FaultTwin:
		if w.script.Static {
			w.extras = append(w.extras, p)
			w.start(p.slot)
		}
	}
}

// faultEnds takes a fault back.
func (w *World) faultEnds(f Fault) {
	switch f.Kind { //nolint:exhaustive // the others have no end
	case FaultFreeze, FaultSuspend:
		for _, p := range w.everybody() {
			if p.frozen && (p.slot == f.Member || !w.faulty) {
				p.thaw()
			}
		}
	case FaultMove:
		w.coordinator.announced = w.coordinator.broker
	case FaultDelete:
		w.recreateTopic()
	case FaultDown:
		if w.coordinator.downUntil <= w.at && w.coordinator.downUntil > 0 {
			w.coordinator.downUntil = 0
			w.coordinator.move(0, true)
			w.coordinator.announced = w.coordinator.broker
		}
	default:
		if i := slices.Index(w.active, f); i >= 0 {
			w.active = slices.Delete(w.active, i, i+1)
			w.changeWeather()
		}
	}
}

// changeWeather makes the network what the active faults say.
func (w *World) changeWeather() {
	w.duplicate = 0
	clear(w.weather)
	for _, f := range w.active {
		if f.Kind == FaultDuplicate {
			w.duplicate = max(w.duplicate, f.Amount)
			continue
		}
		for slot := range w.weather {
			if f.Member >= 0 && f.Member != slot {
				continue
			}
			now := &w.weather[slot]
			switch f.Kind { //nolint:exhaustive // only these are of the network
			case FaultCut:
				now.cut = true
			case FaultLossy:
				now.loss = max(now.loss, f.Amount)
			case FaultErrors:
				now.errors = max(now.errors, f.Amount)
			case FaultSlow:
				now.slow = max(now.slow, f.Amount)
			}
		}
	}
}

// everybody returns all processes that were not replaced.
func (w *World) everybody() []*process {
	var out []*process
	for _, p := range w.slots {
		if p != nil {
			out = append(out, p)
		}
	}
	return append(out, w.extras...)
}

// endFaults makes everything whole: from here on the group has to settle.
func (w *World) endFaults() {
	w.faulty = false
	w.active = nil
	w.changeWeather()
	if w.coordinator.downUntil > w.at {
		w.coordinator.downUntil = 0
		w.coordinator.move(0, true)
	}
	w.coordinator.announced = w.coordinator.broker
	for _, p := range w.everybody() {
		p.thaw()
		if slices.Contains(p.pauses.paused, true) {
			p.resumeAll()
		}
	}
	for _, p := range w.extras {
		if w.script.Protocols >= ProtocolMixed {
			p.crash() // it may hold a place that its successor cannot take, since they have no protocol in common
		}
	}
	w.agree()
	if w.topic.count == 0 && !w.forever {
		w.recreateTopic()
	}
	for slot, p := range w.slots {
		if p == nil || p.dead || p.ended {
			w.start(slot)
		}
	}
	for part := range w.logs[:w.topic.count] {
		if len(w.logs[part].records) == 0 {
			w.produce(part)
		}
	}
}
