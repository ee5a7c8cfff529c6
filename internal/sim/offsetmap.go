package sim

import (
	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// topicID is the topic's incarnation, which the metadata of commits names.
var topicID = kafka.TopicID{1, 2, 3}

// startDecision is where a partition starts, and the commit that it follows.
type startDecision struct {
	decision  rebalance.StartDecision
	committed int64
	text      string
	// anew: some commit on the topic is of another incarnation.
	anew bool
	// line is the log that the commit belongs to, for the checker.
	line *partitionLog
}

// mapSide is the partition's side of the offset map, as in actors/partition_commit.go.
type mapSide struct {
	// before is what the commit that this ownership started with said to be finished, startedAt and startedWith that commit.
	before      commit.OffsetMap
	startedAt   int64
	startedWith string
	// shift is for a mutant: how far the map is read beside its offset.
	shift int64
	// offeredBeyond is how many records beyond the offset were finished when it was offered last.
	offeredBeyond int
}

// marks reports whether commits carry metadata.
func (s *Script) marks() bool {
	return s.OffsetMap || s.MetadataLimit > 0 || s.changing() || s.diverging()
}

// metadata is what goes along with a committed offset.
func (s *partitionShell) metadata(offset int64) string {
	if !s.w.script.marks() {
		return ""
	}
	setBack := offset < s.tracker.Committable()
	if offset == s.startedAt && !setBack && offset != s.userAt && s.tracker.FinishedBeyond() == 0 && !s.before.Empty() {
		return s.startedWith
	}
	m := commit.Metadata{TopicID: s.topicID}
	if offset == s.userAt {
		m.User = s.userText
	}
	if s.w.script.OffsetMap && s.rewind == nil && !setBack {
		m.Map = s.tracker.Map()
	}
	text, _ := m.Encode(offset, commit.DefaultMetadataLimit)
	return text
}

// adoptMap takes over what the commit's metadata says of finished records, and reports whether the commit is one of ours.
func (s *partitionShell) adoptMap(d *startDecision) (ours bool) {
	if d.text == "" || d.committed < 0 {
		return false
	}
	at := d.committed
	if s.w.mutant == MutantMapUnchecked {
		at = s.w.coordinator.writtenAt[s.part]
		s.shift = at - d.committed
	}
	parsed, err := commit.ParseMetadata(d.text, at)
	if err != nil || parsed.Foreign {
		s.w.stats.Ignored++
		return !parsed.TopicID.IsZero()
	}
	if s.w.script.OffsetMap {
		s.before, s.startedAt, s.startedWith = parsed.Map, d.committed, d.text
	}
	return !parsed.TopicID.IsZero()
}

// takeFresh takes new records to deliver, without those that the offset map says are finished.
func (s *partitionShell) takeFresh(limit int) []kafka.Record {
	for {
		records := s.take(limit)
		if len(records) == 0 {
			return nil
		}
		s.w.check.deliveredFirst(s, records)
		if s.before.Empty() {
			return records
		}
		if records = s.skipFinished(records); len(records) > 0 {
			return records
		}
		// What is finished beyond the commit is in transit as well.
		if s.window.Update(s.tracker.InTransit()); s.w.mutant != MutantMapPastWindow {
			limit = min(limit, s.window.Room(s.tracker.InTransit()))
		}
		s.w.check.windowAsked(s)
	}
}

// skipFinished acknowledges the records that the map says are finished, and returns the others.
func (s *partitionShell) skipFinished(records []kafka.Record) []kafka.Record {
	kept := make([]kafka.Record, 0, len(records))
	for i := range records {
		r := &records[i]
		epoch := r.LeaderEpoch
		if s.w.mutant == MutantMapEpochIgnored {
			epoch = s.before.LeaderEpoch()
		}
		if !s.before.Finished(r.Offset+s.shift, epoch) {
			kept = append(kept, *r)
			continue
		}
		s.acknowledge(r.Offset)
		s.w.check.mapSkipped(s, r.Offset)
	}
	if len(kept) < len(records) {
		s.offer()
	}
	return kept
}

// acknowledge tells the tracker of one record, and reports whether that was new.
func (s *partitionShell) acknowledge(offset int64) bool {
	if s.tracker.Ack(offset) != commit.Acked {
		return false
	}
	s.finished++
	return true
}
