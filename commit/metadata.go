package commit

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/troupego/troupe/pkg/kafka"
)

// DefaultMetadataLimit is the broker's own default of offset.metadata.max.bytes: how long a commit's metadata may be.
const DefaultMetadataLimit = 4096

// The text of our commits' metadata: metadataPrefix, the topic id in hexadecimal, where there is an offset map mapSeparator
// and its binary form in base64, and where there is a text of the user's userSeparator and that text, escaped. It is printable
// ASCII, for tools that show it.
const (
	metadataPrefix = "troupe topic "
	mapSeparator   = " map "
	userSeparator  = " user "
	topicIDDigits  = 2 * len(kafka.TopicID{})
	quotedBytes    = 24
)

// mapText is how the map is written. Strict, so that one map has one text.
var mapText = base64.RawURLEncoding.Strict()

// Metadata is what the text beside a committed offset says.
type Metadata struct {
	// TopicID is the incarnation of the topic the offset belongs to: offsets are committed by name and may land on a topic
	// that was deleted and made anew meanwhile. Zero when the broker gave none, or the text is not ours.
	TopicID kafka.TopicID
	// Map has what is finished beyond the committed offset.
	Map OffsetMap
	// User is what the user gave along with the offset, byte for byte; empty for nothing. The whole of a foreign text, if it
	// is anything, is somebody else's, and is not found here.
	User string
	// Foreign says that the text was written by somebody else and was ignored.
	Foreign bool
}

// MetadataError says that a text of ours is damaged, or that its map belongs to another offset. Nothing of the map is to
// be trusted then.
type MetadataError struct {
	// Part is "topic id", "map" or "user", Reason what is wrong with it.
	Part   string
	Reason error
	// Text is the beginning of the text, quoted, so that it may be shown anywhere.
	Text string
}

// Error names part, reason and the beginning of the text.
func (e *MetadataError) Error() string {
	return fmt.Sprintf("commit: metadata %s: %s: %v", e.Text, e.Part, e.Reason)
}

// Unwrap returns the reason.
func (e *MetadataError) Unwrap() error { return e.Reason }

// OfAnotherTopic reports whether the metadata marks its offset as another incarnation's. Where either id is not known it
// says nothing.
func (m Metadata) OfAnotherTopic(id kafka.TopicID) bool {
	return !id.IsZero() && !m.TopicID.IsZero() && m.TopicID != id
}

// MaxUserBytes is how long the user's text beside a committed offset may be, as [UserBytes] counts it: what
// DefaultMetadataLimit leaves beside our own mark.
const MaxUserBytes = DefaultMetadataLimit - len(metadataPrefix) - topicIDDigits - len(userSeparator)

// UserBytes returns how many bytes the user's text takes beside an offset: one for each printable ASCII character but '%',
// three for any other byte.
func UserBytes(user string) int {
	size := len(user)
	for i := range len(user) {
		if !plain(user[i]) {
			size += 2
		}
	}
	return size
}

// Encode returns the text to commit beside the offset committed. A map that does not fit into limit bytes (see
// DefaultMetadataLimit), together with the topic id and the user's text, or that reaches beyond MaxMapSpan, is left out: then
// kept is false. The user's text is never left out; see MaxUserBytes. Without all three the text is empty. What the map says of
// offsets at or below committed is left out.
func (m Metadata) Encode(committed int64, limit int) (text string, kept bool) {
	user := ""
	if m.User != "" {
		user = userSeparator + escape(m.User)
	}
	mark := ""
	if !m.TopicID.IsZero() || user != "" {
		mark = metadataPrefix + m.TopicID.String()
	}
	finished := m.Map.beyond(committed)
	if finished.Empty() {
		return mark + user, true
	}
	head := metadataPrefix + m.TopicID.String() + mapSeparator
	binary, fits := finished.encode(committed, m.TopicID, mapText.DecodedLen(max(limit-len(head)-len(user), 0)))
	if !fits {
		return mark + user, false
	}
	return head + mapText.EncodeToString(binary) + user, true
}

// plain reports whether a byte of the user's text stands for itself.
func plain(b byte) bool { return b >= ' ' && b <= '~' && b != '%' }

const hexadecimal = "0123456789ABCDEF"

// escape writes each byte that is not plain as '%' and two hexadecimal digits.
func escape(user string) string {
	var b strings.Builder
	b.Grow(UserBytes(user))
	for i := range len(user) {
		if c := user[i]; plain(c) {
			b.WriteByte(c)
		} else {
			b.WriteByte('%')
			b.WriteByte(hexadecimal[c>>4])
			b.WriteByte(hexadecimal[c&15])
		}
	}
	return b.String()
}

// unescape is the inverse of escape. It takes only what escape writes, so that one text of the user's has one form.
func unescape(text string) (user string, ok bool) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '%' {
			b.WriteByte(text[i])
			continue
		}
		if len(text) < i+3 {
			return "", false
		}
		high, low := strings.IndexByte(hexadecimal, text[i+1]), strings.IndexByte(hexadecimal, text[i+2])
		if high < 0 || low < 0 {
			return "", false
		}
		b.WriteByte(byte(high<<4 | low))
		i += 2
	}
	return b.String(), text != "" && escape(b.String()) == text
}

// What can be wrong outside of the binary form of the map.
var (
	errTopicID     = errors.New("not 32 hexadecimal digits")
	errUnknownPart = errors.New("something else follows the topic id")
	errMapText     = errors.New("not base64")
	errUserText    = errors.New("not escaped as Troupe does it")
)

// ParseMetadata reads the text that was committed beside the offset committed. Text of somebody else is no error, but
// Foreign; a damaged text of ours, or a map of another offset, is a *[MetadataError], beside which the topic id and the user's
// text are returned if they could be read. It never panics, and allocates no more than a few times the length of the text.
func ParseMetadata(text string, committed int64) (Metadata, error) {
	rest, ours := strings.CutPrefix(text, metadataPrefix)
	if !ours {
		return Metadata{Foreign: text != ""}, nil
	}
	var m Metadata
	if len(rest) < topicIDDigits {
		return Metadata{}, metadataError("topic id", errTopicID, text)
	}
	digits, rest := rest[:topicIDDigits], rest[topicIDDigits:]
	if _, err := hex.Decode(m.TopicID[:], []byte(digits)); err != nil || m.TopicID.String() != digits {
		return Metadata{}, metadataError("topic id", errTopicID, text)
	}
	rest, escaped, hasUser := strings.Cut(rest, userSeparator) // neither a topic id nor base64 has a space
	if hasUser {
		user, ok := unescape(escaped)
		if !ok {
			return m, metadataError("user", errUserText, text)
		}
		m.User = user
	}
	if rest == "" {
		return m, nil
	}
	encoded, ours := strings.CutPrefix(rest, mapSeparator)
	if !ours {
		return m, metadataError("map", errUnknownPart, text)
	}
	data, err := mapText.DecodeString(encoded)
	if err != nil || mapText.EncodedLen(len(data)) != len(encoded) { // the decoder passes over line breaks
		return m, metadataError("map", errMapText, text)
	}
	if m.Map, err = decodeMap(data, committed, m.TopicID); err != nil {
		return m, metadataError("map", err, text)
	}
	return m, nil
}

func metadataError(part string, reason error, text string) error {
	return &MetadataError{Part: part, Reason: reason, Text: strconv.QuoteToASCII(text[:min(len(text), quotedBytes)])}
}

// WithoutMap returns the text without its offset map, and any text that has none as it is.
func WithoutMap(text string) string {
	end := len(metadataPrefix) + topicIDDigits
	if !hasMap(text) {
		return text
	}
	_, user, hasUser := strings.Cut(text, userSeparator)
	switch {
	case hasUser:
		return text[:end] + userSeparator + user
	case strings.Trim(text[len(metadataPrefix):end], "0") == "":
		return "" // there was no topic id to name
	}
	return text[:end]
}

// hasMap reports whether a text of ours goes on with a map, whatever that is worth.
func hasMap(text string) bool { return goesOn(text, mapSeparator) }

// hasUser reports whether a text of ours has the user's beside it, whatever that is worth.
func hasUser(text string) bool { return goesOn(WithoutMap(text), userSeparator) }

func goesOn(text, separator string) bool {
	const end = len(metadataPrefix) + topicIDDigits
	return strings.HasPrefix(text, metadataPrefix) && len(text) > end && strings.HasPrefix(text[end:], separator)
}
