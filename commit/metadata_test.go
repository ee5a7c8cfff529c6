package commit

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/troupego/troupe/pkg/kafka"
)

// mapOf makes a map of runs given as first, last, first, last and so on.
func mapOf(leaderEpoch int32, ends ...int64) OffsetMap {
	m := OffsetMap{leaderEpoch: leaderEpoch}
	for i := 0; i < len(ends); i += 2 {
		m.runs = append(m.runs, offsetRun{ends[i], ends[i+1]})
	}
	return m
}

// sealed writes a map's text around a body of any content, with the right checksum.
func sealed(committed int64, id kafka.TopicID, body ...byte) string {
	body = binary.BigEndian.AppendUint32(body, checksum(committed, id, body))
	return metadataPrefix + id.String() + mapSeparator + base64.RawURLEncoding.EncodeToString(body)
}

var topicOne = kafka.TopicID{0: 1, 15: 0xab}

func TestMetadataWithoutAMapNamesTheTopic(t *testing.T) {
	text, kept := Metadata{TopicID: topicOne}.Encode(5, DefaultMetadataLimit)
	if text != "troupe topic 010000000000000000000000000000ab" || !kept {
		t.Fatalf("%q, %t", text, kept)
	}
	m, err := ParseMetadata(text, 77)
	if err != nil || m.TopicID != topicOne || !m.Map.Empty() || m.Foreign {
		t.Fatalf("%+v, %v", m, err)
	}
	if text, kept := (Metadata{}).Encode(5, 10); text != "" || !kept {
		t.Fatalf("%q, %t", text, kept)
	}
}

func TestMetadataOfAnotherTopicIsTold(t *testing.T) {
	for _, c := range []struct {
		marked, asked kafka.TopicID
		want          bool
	}{
		{topicOne, topicOne, false}, {topicOne, kafka.TopicID{2}, true},
		{kafka.TopicID{}, topicOne, false}, {topicOne, kafka.TopicID{}, false},
	} {
		if got := (Metadata{TopicID: c.marked}).OfAnotherTopic(c.asked); got != c.want {
			t.Errorf("%s asked for %s: %t", c.marked, c.asked, got)
		}
	}
}

func TestForeignMetadataIsNoError(t *testing.T) {
	for _, text := range []string{"", "xyz\x00\x01\xff", "troupe", "troupe topic", "Troupe topic 01", "troupe topics", simMark[1:]} {
		m, err := ParseMetadata(text, 5)
		if err != nil || m.Foreign != (text != "") || !m.TopicID.IsZero() || !m.Map.Empty() {
			t.Errorf("%q: %+v, %v", text, m, err)
		}
		if WithoutMap(text) != text {
			t.Errorf("%q is cut to %q", text, WithoutMap(text))
		}
	}
}

func TestDamagedMetadataIsATypedError(t *testing.T) {
	whole, _ := Metadata{TopicID: topicOne, Map: mapOf(3, 12, 20, 30, 30)}.Encode(10, DefaultMetadataLimit)
	mark := metadataPrefix + topicOne.String()
	far := binary.AppendUvarint([]byte{mapVersion, kindRuns, 1, 0}, MaxMapSpan)
	bits := func(last byte, length int) string {
		body := append([]byte{mapVersion, kindBitset, 1}, make([]byte, length)...)
		body[len(body)-1] = last
		return sealed(10, topicOne, body...)
	}
	for name, c := range map[string]struct {
		text   string
		at     int64
		part   string
		reason error
	}{
		"id cut off":        {"troupe topic 0123", 10, "topic id", errTopicID},
		"no id":             {metadataPrefix, 10, "topic id", errTopicID},
		"id not hex":        {metadataPrefix + strings.Repeat("g", 32), 10, "topic id", errTopicID},
		"id upper case":     {strings.ToUpper(mark[13:]), 10, "", nil},
		"id in upper case":  {metadataPrefix + strings.ToUpper(topicOne.String()), 10, "topic id", errTopicID},
		"something else":    {mark + " something", 10, "map", errUnknownPart},
		"a digit more":      {mark + "0", 10, "map", errUnknownPart},
		"no map":            {mark + mapSeparator, 10, "map", errMapShort},
		"no base64":         {mark + mapSeparator + "\x00\x1b[2J", 10, "map", errMapText},
		"line break":        {whole + "\n", 10, "map", errMapText},
		"cut off":           {whole[:len(whole)-2], 10, "map", errMapChecksum},
		"another offset":    {whole, 11, "map", errMapChecksum},
		"another topic":     {strings.Replace(whole, "ab", "ac", 1), 10, "map", errMapChecksum},
		"version":           {sealed(10, topicOne, 2, kindRuns, 1, 0, 0), 10, "map", errMapVersion},
		"kind":              {sealed(10, topicOne, mapVersion, 2, 1, 0, 0), 10, "map", errMapKind},
		"epoch":             {sealed(10, topicOne, mapVersion, kindRuns, 0xff, 0xff, 0xff, 0xff, 0x1f, 0, 0), 10, "map", errMapEpoch},
		"epoch cut off":     {sealed(10, topicOne, mapVersion, kindRuns, 0xff), 10, "map", errMapEpoch},
		"empty runs":        {sealed(10, topicOne, mapVersion, kindRuns, 1), 10, "map", errMapEmpty},
		"empty bits":        {sealed(10, topicOne, mapVersion, kindBitset, 1), 10, "map", errMapEmpty},
		"half a run":        {sealed(10, topicOne, mapVersion, kindRuns, 1, 0), 10, "map", errMapRuns},
		"runs that touch":   {sealed(10, topicOne, mapVersion, kindRuns, 1, 0, 0, 0, 0), 10, "map", errMapRuns},
		"runs cut off":      {sealed(10, topicOne, mapVersion, kindRuns, 1, 0, 0x80), 10, "map", errMapRuns},
		"bits end with 0":   {sealed(10, topicOne, mapVersion, kindBitset, 1, 7, 0), 10, "map", errMapRuns},
		"too far":           {sealed(10, topicOne, far...), 10, "map", errMapSpan},
		"gap overflows":     {sealed(10, topicOne, append(binary.AppendUvarint([]byte{mapVersion, kindRuns, 1}, math.MaxUint64), 1)...), 10, "map", errMapSpan},
		"bits too far":      {bits(1, MaxMapSpan/8+1), 10, "map", errMapSpan},
		"bits to the bound": {bits(0x80, MaxMapSpan/8), 10, "", nil},
		"no offset":         {sealed(-1, topicOne, mapVersion, kindRuns, 1, 0, 0), -1, "map", errMapSpan},
		"end of the world":  {sealed(math.MaxInt64, topicOne, mapVersion, kindRuns, 1, 0, 0), math.MaxInt64, "map", errMapSpan},
	} {
		m, err := ParseMetadata(c.text, c.at)
		if c.reason == nil {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		var typed *MetadataError
		if !errors.As(err, &typed) || typed.Part != c.part || !errors.Is(err, c.reason) {
			t.Errorf("%s: %v, want %v", name, err, c.reason)
			continue
		}
		if !m.Map.Empty() || c.part == "map" && m.TopicID.IsZero() {
			t.Errorf("%s: %+v", name, m)
		}
		if strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' || r > '~' }) || len(err.Error()) > 300 {
			t.Errorf("%s: %q is not fit to be shown", name, err.Error())
		}
	}
}

func TestTheShorterFormOfAMapIsWritten(t *testing.T) {
	scattered := OffsetMap{leaderEpoch: 4}
	for offset := int64(11); offset < 2000; offset += 3 {
		scattered.runs = append(scattered.runs, offsetRun{offset, offset + 1})
	}
	for kind, m := range map[byte]OffsetMap{
		kindRuns:   mapOf(4, 11, 9000, 9100, 9100),
		kindBitset: scattered,
	} {
		body, ok := m.encode(10, topicOne, DefaultMetadataLimit)
		if !ok || body[1] != kind {
			t.Fatalf("kind %d: %v, %t", kind, body[:2], ok)
		}
	}
	if body, _ := scattered.encode(10, topicOne, DefaultMetadataLimit); len(body) > 2000/8+10 {
		t.Fatalf("%d bytes", len(body))
	}
}

func TestAMapThatDoesNotFitIsLeftOutAndTheTopicStays(t *testing.T) {
	m := Metadata{TopicID: topicOne}
	for offset := int64(12); offset < 40_000; offset += 3 {
		m.Map.runs = append(m.Map.runs, offsetRun{offset, offset})
	}
	mark := metadataPrefix + topicOne.String()
	whole, kept := m.Encode(10, 1<<20)
	if !kept || len(whole) <= DefaultMetadataLimit {
		t.Fatalf("%d bytes, %t", len(whole), kept)
	}
	for limit, want := range map[int]bool{0: false, -1: false, 20: false, DefaultMetadataLimit: false, len(whole) - 1: false, len(whole): true} {
		text, kept := m.Encode(10, limit)
		if kept != want || kept && text != whole || !kept && text != mark {
			t.Errorf("limit %d: %d bytes, %t", limit, len(text), kept)
		}
	}
	if text, kept := (Metadata{TopicID: topicOne, Map: mapOf(1, 11, 10+MaxMapSpan)}).Encode(10, 4096); !kept || text == mark {
		t.Error("the farthest map is left out")
	}
	if text, kept := (Metadata{TopicID: topicOne, Map: mapOf(1, 11, 11+MaxMapSpan)}).Encode(10, 4096); kept || text != mark {
		t.Error("a map that reaches too far is written")
	}
}

func TestAMapSaysOnlyWhatLiesBeyondTheCommittedOffset(t *testing.T) {
	m := Metadata{TopicID: topicOne, Map: mapOf(1, 5, 8, 12, 20)}
	text, _ := m.Encode(15, 4096)
	got, err := ParseMetadata(text, 15)
	if err != nil || !reflect.DeepEqual(got.Map, mapOf(1, 16, 20)) {
		t.Fatalf("%+v, %v", got, err)
	}
	if text, kept := m.Encode(20, 4096); text != metadataPrefix+topicOne.String() || !kept {
		t.Fatalf("%q, %t", text, kept)
	}
	if first, last := m.Map.Run(1); first != 12 || last != 20 {
		t.Fatal("the map itself has changed")
	}
}

func TestWithoutMapLeavesTheTopic(t *testing.T) {
	text, _ := Metadata{TopicID: topicOne, Map: mapOf(1, 12, 20)}.Encode(10, 4096)
	if got := WithoutMap(text); got != metadataPrefix+topicOne.String() || WithoutMap(got) != got {
		t.Fatal(got)
	}
	text, kept := Metadata{Map: mapOf(1, 12, 20)}.Encode(10, 4096)
	if m, err := ParseMetadata(text, 10); !kept || err != nil || m.Map.Runs() != 1 || WithoutMap(text) != "" {
		t.Fatalf("%q: %+v, %v, without %q", text, m, err, WithoutMap(text))
	}
}

func TestARecordOfALaterLeaderEpochIsNotFinished(t *testing.T) {
	for _, c := range []struct {
		mapEpoch, recordEpoch int32
		want                  bool
	}{
		{5, 5, true}, {5, 4, true}, {5, 0, true}, {5, 6, false}, // written after a truncation
		{5, kafka.NoLeaderEpoch, false}, {kafka.NoLeaderEpoch, 0, false}, {kafka.NoLeaderEpoch, 5, false},
		{kafka.NoLeaderEpoch, kafka.NoLeaderEpoch, true},
	} {
		m := mapOf(c.mapEpoch, 10, 12)
		if got := m.Finished(11, c.recordEpoch); got != c.want {
			t.Errorf("map of epoch %d, record of %d: %t", c.mapEpoch, c.recordEpoch, got)
		}
		if m.Finished(9, c.recordEpoch) || m.Finished(13, c.recordEpoch) {
			t.Error("an offset outside of the run is finished")
		}
	}
	if (OffsetMap{}).Finished(0, 0) || (OffsetMap{}).Finished(0, kafka.NoLeaderEpoch) || (OffsetMap{}).LeaderEpoch() != kafka.NoLeaderEpoch {
		t.Error("the empty map says something")
	}
}

// mapHistory takes a tracker through a random history and its map through the text, and compares what is finished with a
// set. Then it damages the text, which must be refused or say the same.
func mapHistory(c choices) error {
	tracker := NewTracker(int64(c.pick(3000)))
	acked, delivered := map[int64]bool{}, []int64{}
	epoch := int32(c.pick(3)) - 1
	stride := 1 + c.pick(3)*c.pick(40)
	for range c.pick(300) {
		offset := tracker.Position() + int64(c.pick(stride))
		if c.pick(60) == 0 && epoch >= 0 {
			epoch++
		}
		if err := tracker.Deliver([]kafka.Record{{Offset: offset, LeaderEpoch: epoch}}); err != nil {
			return err
		}
		delivered = append(delivered, offset)
	}
	for range c.pick(2*len(delivered) + 1) {
		if offset := delivered[c.pick(len(delivered))]; tracker.Ack(offset) == Acked {
			acked[offset] = true
		}
	}
	id := kafka.TopicID{byte(c.pick(3))}
	committed := tracker.Committable()
	limit := 60 + c.pick(4000)
	user := make([]byte, max(c.pick(60)-40, 0))
	for i := range user {
		user[i] = byte(c.pick(256))
	}
	limit = max(limit, len(simMark)+len(userSeparator)+UserBytes(string(user)))
	text, kept := Metadata{TopicID: id, Map: tracker.Map(), User: string(user)}.Encode(committed, limit)
	if len(text) > limit || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) {
		return fmt.Errorf("%d bytes for %d: %q", len(text), limit, text)
	}
	got, err := ParseMetadata(text, committed)
	if err != nil || got.TopicID != id || got.Foreign || got.User != string(user) {
		return fmt.Errorf("%q: %+v, %w", text, got, err)
	}
	for _, offset := range delivered {
		want := kept && acked[offset] && offset >= committed
		if got.Map.Finished(offset, got.Map.LeaderEpoch()) != want {
			return fmt.Errorf("%d: finished is not %t", offset, want)
		}
	}
	without, err := ParseMetadata(WithoutMap(text), committed+7)
	if err != nil || without.TopicID != id || without.User != got.User || !without.Map.Empty() || hasMap(WithoutMap(text)) || hasUser(text) != (len(user) > 0) {
		return fmt.Errorf("%q without its map is %+v, %w", text, without, err)
	}
	if !hasMap(text) || len(user) > 0 { // nothing guards what the user wrote but the escaping
		return nil
	}
	if _, err := ParseMetadata(text, committed+1+int64(c.pick(5))); err == nil {
		return errors.New("a map of another offset is trusted")
	}
	damaged := []byte(text)
	for range 1 + c.pick(3) {
		damaged[len(simMark)+c.pick(len(damaged)-len(simMark))] ^= byte(1 + c.pick(255))
	}
	if other, err := ParseMetadata(string(damaged), committed); err == nil && !reflect.DeepEqual(other, got) {
		return fmt.Errorf("%q is trusted, %q was written", damaged, text)
	}
	return nil
}

func TestAnOffsetMapSurvivesItsText(t *testing.T) {
	for seed := range uint64(3000) {
		if err := mapHistory(randomChoices{rand.New(rand.NewPCG(seed, 3))}); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

func FuzzOffsetMap(f *testing.F) {
	f.Add([]byte{0, 9, 1, 2, 20, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := mapHistory(&byteChoices{data}); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzParseMetadata(f *testing.F) {
	text, _ := Metadata{TopicID: topicOne, Map: mapOf(3, 12, 20, 30, 30)}.Encode(10, 4096)
	f.Add(text, int64(10), []byte{})
	f.Add("xyz\x00", int64(0), []byte{mapVersion, kindRuns, 1, 3, 4, 5, 6})
	f.Add("", int64(1<<40), []byte{mapVersion, kindBitset, 9, 0xff, 0, 0x10})
	beside, _ := Metadata{TopicID: topicOne, Map: mapOf(3, 12, 20, 30, 30), User: " a user b\x00%"}.Encode(10, 4096)
	f.Add(beside, int64(10), []byte{})
	f.Add("troupe topic ", int64(-1), []byte{mapVersion, kindRuns, 1, 0xff, 0xff, 0xff, 0x7f, 1})
	f.Fuzz(func(t *testing.T, text string, committed int64, body []byte) {
		// Once as it is, and once with the checksum right, which the fuzzer would not find.
		for _, text := range []string{text, sealed(committed, topicOne, body...)} {
			m, err := ParseMetadata(text, committed)
			var typed *MetadataError
			if err != nil && (!errors.As(err, &typed) || !m.Map.Empty()) {
				t.Fatalf("%v beside %+v", err, m)
			}
			if m.Map.Empty() {
				continue
			}
			if first, _ := m.Map.Run(0); first <= committed || m.Map.runs[m.Map.Runs()-1].last > committed+MaxMapSpan {
				t.Fatalf("%+v beyond %d", m.Map, committed)
			}
			again, kept := m.Encode(committed, math.MaxInt32)
			if got, err := ParseMetadata(again, committed); !kept || err != nil || !reflect.DeepEqual(got, m) {
				t.Fatalf("%q became %q: %+v, want %+v, %v", text, again, got, m, err)
			}
		}
	})
}

func BenchmarkOffsetMap(b *testing.B) {
	tracker := NewTracker(0)
	records := make([]kafka.Record, 10_000)
	for i := range records {
		records[i].Offset = int64(i)
	}
	if err := tracker.Deliver(records); err != nil {
		b.Fatal(err)
	}
	for i := range records {
		if i%3 > 0 {
			tracker.Ack(int64(i))
		}
	}
	b.ReportAllocs()
	size := 0
	for b.Loop() {
		text, kept := Metadata{TopicID: topicOne, Map: tracker.Map()}.Encode(tracker.Committable(), DefaultMetadataLimit)
		if !kept {
			b.Fatal("left out")
		}
		size = len(text)
	}
	b.ReportMetric(float64(size), "bytes")
}

func TestAMapGoesOnWithTheOneBeforeItAsItsNaiveTwinDoes(t *testing.T) {
	for seed := range uint64(2000) {
		random := rand.New(rand.NewPCG(seed, 3))
		draw := func(from, to int64) (m OffsetMap, in map[int64]bool) {
			in = map[int64]bool{}
			m.leaderEpoch = int32(random.IntN(2))
			for offset := from; offset < to; {
				offset += int64(random.IntN(4))
				last := min(offset+int64(random.IntN(4)), to-1)
				if offset > last {
					break
				}
				if n := len(m.runs); n > 0 && m.runs[n-1].last+1 >= offset {
					m.runs[n-1].last = last
				} else {
					m.runs = append(m.runs, offsetRun{offset, last})
				}
				for o := offset; o <= last; o++ {
					in[o] = true
				}
				offset = last + 1
			}
			return m, in
		}
		from := int64(random.IntN(30))
		m, mine := draw(0, from)
		other, others := draw(0, 40)
		got := m.Then(other, from)
		mixed := m.Empty() || m.leaderEpoch == other.leaderEpoch
		for offset := range int64(45) {
			want := mine[offset] && offset < from || mixed && others[offset] && offset >= from
			if is := got.Finished(offset, got.LeaderEpoch()); is != want && !got.Empty() {
				t.Fatalf("seed %d: %v then %v from %d: %d is %t", seed, m, other, from, offset, is)
			}
			if got.Empty() && want {
				t.Fatalf("seed %d: %v then %v from %d is empty", seed, m, other, from)
			}
		}
		for i := 1; i < got.Runs(); i++ {
			if got.runs[i-1].last+1 >= got.runs[i].first {
				t.Fatalf("seed %d: runs %v", seed, got.runs)
			}
		}
	}
}

// What the user gives beside an offset may be anything, also what looks like a text of ours.
func TestTheUsersTextComesBackByteForByteBesideTopicAndMap(t *testing.T) {
	ours, _ := Metadata{TopicID: topicOne, Map: mapOf(3, 12, 20), User: "x"}.Encode(10, 4096)
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for _, user := range []string{"", " ", "plain, with spaces", "100%", "%25", " user ", " map AAAA", ours, "päckchen\n", "\xff\x00", string(all)} {
		for _, m := range []Metadata{{User: user}, {TopicID: topicOne, User: user}, {TopicID: topicOne, Map: mapOf(3, 12, 20), User: user}, {Map: mapOf(3, 12, 20), User: user}} {
			text, kept := m.Encode(10, 4096)
			got, err := ParseMetadata(text, 10)
			if err != nil || !kept || !reflect.DeepEqual(got, m) {
				t.Errorf("%q: %+v, %v, want %+v", text, got, err, m)
			}
			if bytes := len(text) - len(m.without(user)); user != "" && m.TopicID == topicOne && m.Map.Empty() && bytes != len(userSeparator)+UserBytes(user) {
				t.Errorf("%q: takes %d bytes", text, bytes)
			}
		}
	}
}

// without is the text without that of the user.
func (m Metadata) without(string) string {
	m.User = ""
	text, _ := m.Encode(10, 4096)
	return text
}

func TestTheLongestTextOfTheUsersFitsBesideTheTopicAndTheMapGivesWay(t *testing.T) {
	user := strings.Repeat("x", MaxUserBytes)
	m := Metadata{TopicID: topicOne, Map: mapOf(3, 12, 20), User: user}
	text, kept := m.Encode(10, DefaultMetadataLimit)
	if kept || len(text) != DefaultMetadataLimit {
		t.Errorf("kept %t, %d bytes", kept, len(text))
	}
	if got, err := ParseMetadata(text, 10); err != nil || got.User != user || got.TopicID != topicOne {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestATextOfTheUsersThatIsNotEscapedAsOursIsATypedError(t *testing.T) {
	mark, _ := Metadata{TopicID: topicOne}.Encode(10, 4096)
	for _, tail := range []string{" user ", " user a%", " user a%4", " user %zz", " user %0a", " user %41", " user a\n"} {
		m, err := ParseMetadata(mark+tail, 10)
		var typed *MetadataError
		if !errors.As(err, &typed) || typed.Part != "user" || m.User != "" || m.TopicID != topicOne {
			t.Errorf("%q: %+v, %v", tail, m, err)
		}
	}
}
