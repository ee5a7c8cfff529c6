// Package commit decides which offsets are committed and when. It is pure: no I/O, clock, goroutine, lock or log.
//
// # Parts
//
//   - [Tracker] knows which delivered records of one partition and epoch are finished, and so the offset that may be
//     committed. It lives in the partition actor.
//   - [Window] says how many more records may be in transit. It lives there too.
//   - [Rounds] turns offered offsets of all partitions into OffsetCommit requests, one at a time. It lives in the
//     committer actor.
//
// # Authority
//
// The coordinator's confirmation is the only proof of a commit. A request without an answer has an unknown result and is
// repeated until confirmed. What belongs to a closed epoch is never sent, whatever comes late.
package commit
