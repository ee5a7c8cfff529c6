// Package commit decides which offsets are committed and when. It is pure: no I/O, clock, goroutine, lock or log.
//
// # Parts
//
//   - [Tracker] knows which delivered records of one partition and epoch are finished, and so the offset that may be
//     committed. It lives in the partition actor.
//   - [Window] says how many more records may be in transit. It lives there too.
//   - [Watch] notices that the offset does not move although records beyond it are finished. It lives there too.
//   - [Metadata] is the text beside a committed offset: the topic's id and, as an [OffsetMap], what is finished beyond the
//     offset.
//   - [Rounds] turns offered offsets of all partitions into OffsetCommit requests, one at a time, when a [Strategy] says
//     so. It lives in the committer actor.
//
// # Authority
//
// The coordinator's confirmation is the only proof of a commit. A request without an answer has an unknown result and is
// repeated until confirmed. What belongs to a closed epoch is never sent, whatever comes late.
//
// An offset map is a hint: one that is damaged, of another topic, or beside another offset is not believed, and one that
// the broker refuses is left out. Losing it delivers records twice, never skips one.
package commit
