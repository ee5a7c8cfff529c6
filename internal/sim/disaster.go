package sim

// disaster kills every process, with what it had on the wire, and takes something away.
func (w *World) disaster(f Fault) {
	struck := w.everybody()
	for _, inside := range w.check.inside {
		for _, d := range inside {
			struck = append(struck, d.shell.process)
		}
	}
	for _, p := range struck {
		if p.struck {
			continue
		}
		p.struck = true
		p.crash()
		if w.slots[p.slot] == p {
			w.timeline.push(w.at+w.extra.Int64N(int64(f.For)+1), eventRestartSlot, int64(p.slot), p)
		}
	}
	if f.Kind == FaultTruncate {
		w.truncate(f.Member, f.Amount)
		return
	}
	w.restore(f.Member, f.Amount)
}

// truncate takes records off the end of a log, but none below what is committed, and a new leader goes on.
func (w *World) truncate(part, count int) {
	l := w.logs[part]
	first := max(l.index(max(w.coordinator.committed[part], l.start)), len(l.records)-count)
	if first >= len(l.records) {
		l.epoch++
		l.epochs = append(l.epochs, leaderEpoch{epoch: l.epoch, from: l.end})
		return
	}
	w.cut(part, first)
}

// diverge takes records off the end of a log, whoever has read them and whether they are committed or not. Nobody is told.
func (w *World) diverge(part, count int) {
	l := w.logs[part]
	if first := max(l.index(l.start), len(l.records)-count); first < len(l.records) {
		w.cut(part, first)
	}
}

// restore puts an older commit beside the metadata that is there, or other metadata beside the commit.
func (w *World) restore(part, amount int) {
	g, l := w.coordinator, w.logs[part]
	switch {
	case g.committed[part] < 0, g.marks[part].line != l:
	case amount > 0:
		if at := max(l.index(g.committed[part])-amount, l.index(l.start)); at < len(l.records) {
			g.committed[part] = min(g.committed[part], l.records[at].Offset)
		}
	case amount == 0:
		g.texts[part] = "of another program"
	case len(g.texts[part]) > 60:
		g.texts[part] = g.texts[part][:59] + "A" + g.texts[part][60:]
	}
}

// closeAll closes every consumer, for a strategy that commits the rest only then.
func (w *World) closeAll() {
	w.closing = true
	for _, p := range w.slots {
		p.closeBy, p.closeAsked = w.at+int64(2*w.script.Rebalance), w.at
		w.post(p.group.box, message{kind: messageShutdown, at: p.at() + int64(w.script.Rebalance), offset: p.closeBy - p.behind})
	}
}
