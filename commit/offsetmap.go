package commit

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"slices"
	"sort"

	"github.com/troupego/troupe/pkg/kafka"
)

// MaxMapSpan is how far beyond the committed offset a map reaches at most, in offsets. A map that would reach farther is
// not written, and one that says so is not believed.
const MaxMapSpan = 1 << 20

// offsetRun is a range of offsets, both ends included.
type offsetRun struct{ first, last int64 }

// OffsetMap says which records beyond a committed offset are finished, as runs of offsets. Every offset of a run was
// delivered and finished; those that were not delivered (transaction markers, aborted records, holes) are in none. The zero
// value is empty. It is not changed once made, so copies may share it.
//
// Invariant: runs ascend, and at least one offset lies between two of them.
type OffsetMap struct {
	runs        []offsetRun
	leaderEpoch int32
}

// Empty reports whether nothing is finished beyond the committed offset.
func (m OffsetMap) Empty() bool { return len(m.runs) == 0 }

// Runs returns the number of runs.
func (m OffsetMap) Runs() int { return len(m.runs) }

// Run returns the first and the last offset of a run, counted from 0 in ascending order. It panics when there is no such
// run, as a slice does.
func (m OffsetMap) Run(i int) (first, last int64) { return m.runs[i].first, m.runs[i].last }

// LeaderEpoch returns the leader epoch of the highest finished record, kafka.NoLeaderEpoch when it is not known.
func (m OffsetMap) LeaderEpoch() int32 {
	if m.Empty() {
		return kafka.NoLeaderEpoch
	}
	return m.leaderEpoch
}

// Finished reports whether the record at offset, of that leader epoch (kafka.NoLeaderEpoch when not known), is finished.
// A record of a later epoch than the map's was written after a truncation in place of the one that was finished, and is
// not. Where only one of the epochs is known nothing proves that it is the same record, and it is not either: that may
// deliver a record twice but never skips one.
func (m OffsetMap) Finished(offset int64, leaderEpoch int32) bool {
	if leaderEpoch > m.leaderEpoch || (leaderEpoch < 0) != (m.leaderEpoch < 0) {
		return false
	}
	i := sort.Search(len(m.runs), func(i int) bool { return m.runs[i].last >= offset })
	return i < len(m.runs) && m.runs[i].first <= offset
}

// beyond returns the map without what lies at or below committed.
func (m OffsetMap) beyond(committed int64) OffsetMap {
	i := sort.Search(len(m.runs), func(i int) bool { return m.runs[i].last > committed })
	runs := m.runs[i:]
	if len(runs) > 0 && runs[0].first <= committed {
		runs = slices.Clone(runs)
		runs[0].first = committed + 1
	}
	return OffsetMap{runs: runs, leaderEpoch: m.leaderEpoch}
}

// The binary form: version, kind, leader epoch + 1 as uvarint, the runs, and a CRC-32C of 4 bytes, big-endian, over the
// committed offset, the topic id and everything before it. Runs are pairs of uvarints: the offsets between the end of the
// run before (the committed offset for the first) and this run, and the run's length, each less one. A bitset has the
// offset after the committed one in the lowest bit of its first byte and does not end with a zero byte.
const (
	mapVersion  = 1
	kindRuns    = 0
	kindBitset  = 1
	mapChecksum = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Why the binary form of a map is refused.
var (
	errMapShort    = errors.New("too short")
	errMapChecksum = errors.New("the checksum does not fit: damaged, or of another offset or topic")
	errMapVersion  = errors.New("unknown version")
	errMapKind     = errors.New("unknown kind")
	errMapEpoch    = errors.New("leader epoch out of bounds")
	errMapRuns     = errors.New("runs are cut off or overlap")
	errMapSpan     = errors.New("reaches too far")
	errMapEmpty    = errors.New("says nothing")
)

// checksum binds a map to the offset and topic it was committed with.
func checksum(committed int64, id kafka.TopicID, body []byte) uint32 {
	var bound [8 + len(kafka.TopicID{})]byte
	binary.BigEndian.PutUint64(bound[:], uint64(committed))
	copy(bound[8:], id[:])
	return crc32.Update(crc32.Update(0, castagnoli, bound[:]), castagnoli, body)
}

// encode returns the shorter of the two binary forms, or false when it is longer than limit bytes or reaches too far. All
// runs lie beyond committed.
func (m OffsetMap) encode(committed int64, id kafka.TopicID, limit int) ([]byte, bool) {
	span := m.runs[len(m.runs)-1].last - committed
	if span > MaxMapSpan {
		return nil, false
	}
	body := []byte{mapVersion, kindRuns}
	body = binary.AppendUvarint(body, uint64(int64(max(m.leaderEpoch, kafka.NoLeaderEpoch))+1))
	header, bitset := len(body), int(span+7)/8
	end := committed
	for _, run := range m.runs {
		body = binary.AppendUvarint(body, uint64(run.first-end-1))
		body = binary.AppendUvarint(body, uint64(run.last-run.first))
		end = run.last
		if len(body)-header <= bitset {
			continue
		}
		body = body[:header]
		if header+bitset+mapChecksum <= limit {
			body = m.appendBits(body, committed, bitset)
		}
		break
	}
	if len(body) == header || len(body)+mapChecksum > limit {
		return nil, false
	}
	return binary.BigEndian.AppendUint32(body, checksum(committed, id, body)), true
}

// appendBits replaces what follows the header in body by the bitset.
func (m OffsetMap) appendBits(body []byte, committed int64, size int) []byte {
	body[1] = kindBitset
	header := len(body)
	body = append(body, make([]byte, size)...)
	for _, run := range m.runs {
		for offset := run.first; offset <= run.last; offset++ {
			at := offset - committed - 1
			body[header+int(at/8)] |= 1 << (at % 8)
		}
	}
	return body
}

// decodeMap reads the binary form. It believes nothing: what it allocates is bounded by the length of data and by
// MaxMapSpan.
func decodeMap(data []byte, committed int64, id kafka.TopicID) (OffsetMap, error) {
	if len(data) < 3+mapChecksum {
		return OffsetMap{}, errMapShort
	}
	body, sum := data[:len(data)-mapChecksum], binary.BigEndian.Uint32(data[len(data)-mapChecksum:])
	if checksum(committed, id, body) != sum {
		return OffsetMap{}, errMapChecksum
	}
	if body[0] != mapVersion {
		return OffsetMap{}, errMapVersion
	}
	epoch, n := binary.Uvarint(body[2:])
	if n <= 0 || epoch > math.MaxInt32+1 {
		return OffsetMap{}, errMapEpoch
	}
	if committed < 0 || committed > math.MaxInt64-MaxMapSpan {
		return OffsetMap{}, errMapSpan
	}
	m := OffsetMap{leaderEpoch: int32(int64(epoch) - 1)}
	var err error
	switch rest := body[2+n:]; body[1] {
	case kindRuns:
		m.runs, err = decodeRuns(rest, committed)
	case kindBitset:
		m.runs, err = decodeBits(rest, committed)
	default:
		err = errMapKind
	}
	if err == nil && m.Empty() {
		err = errMapEmpty
	}
	if err != nil {
		return OffsetMap{}, err
	}
	return m, nil
}

func decodeRuns(data []byte, committed int64) ([]offsetRun, error) {
	var runs []offsetRun
	end := committed
	for len(data) > 0 {
		gap, n := binary.Uvarint(data)
		if n <= 0 {
			return nil, errMapRuns
		}
		length, k := binary.Uvarint(data[n:])
		if k <= 0 || gap == 0 && len(runs) > 0 {
			return nil, errMapRuns
		}
		if gap > MaxMapSpan || length > MaxMapSpan || end-committed+int64(gap)+int64(length)+1 > MaxMapSpan {
			return nil, errMapSpan
		}
		first := end + int64(gap) + 1
		end = first + int64(length)
		runs = append(runs, offsetRun{first: first, last: end})
		data = data[n+k:]
	}
	return runs, nil
}

func decodeBits(data []byte, committed int64) ([]offsetRun, error) {
	if len(data) > MaxMapSpan/8 {
		return nil, errMapSpan
	}
	if len(data) > 0 && data[len(data)-1] == 0 {
		return nil, errMapRuns
	}
	var runs []offsetRun
	for i, b := range data {
		for bit := range 8 {
			if b&(1<<bit) == 0 {
				continue
			}
			offset := committed + 1 + int64(i)*8 + int64(bit)
			if last := len(runs) - 1; last >= 0 && runs[last].last == offset-1 {
				runs[last].last = offset
			} else {
				runs = append(runs, offsetRun{first: offset, last: offset})
			}
		}
	}
	return runs, nil
}

// Then returns the map with what another one says of the offsets from on. Where both say something they have to be of one
// leader epoch, else the other is left out: of a mix no epoch could prove that a record is the one that was finished.
func (m OffsetMap) Then(other OffsetMap, from int64) OffsetMap {
	rest := other.beyond(from - 1)
	switch {
	case m.Empty():
		return rest
	case rest.Empty() || rest.leaderEpoch != m.leaderEpoch:
		return m
	}
	runs := slices.Clone(m.runs)
	if last := len(runs) - 1; runs[last].last+1 >= rest.runs[0].first {
		runs[last].last = rest.runs[0].last
		rest.runs = rest.runs[1:]
	}
	return OffsetMap{runs: append(runs, rest.runs...), leaderEpoch: m.leaderEpoch}
}
