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

// The text of our commits' metadata: metadataPrefix, the topic id in hexadecimal, and where there is an offset map
// mapSeparator and its binary form in base64. It is printable ASCII, for tools that show it.
const (
	metadataPrefix = "troupe topic "
	mapSeparator   = " map "
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
	// Foreign says that the text was written by somebody else and was ignored.
	Foreign bool
}

// MetadataError says that a text of ours is damaged, or that its map belongs to another offset. Nothing of the map is to
// be trusted then.
type MetadataError struct {
	// Part is "topic id" or "map", Reason what is wrong with it.
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

// Encode returns the text to commit beside the offset committed. A map that does not fit into limit bytes (see
// DefaultMetadataLimit), together with the topic id, or that reaches beyond MaxMapSpan, is left out: then kept is false.
// Without topic id and map the text is empty. What the map says of offsets at or below committed is left out.
func (m Metadata) Encode(committed int64, limit int) (text string, kept bool) {
	mark := ""
	if !m.TopicID.IsZero() {
		mark = metadataPrefix + m.TopicID.String()
	}
	finished := m.Map.beyond(committed)
	if finished.Empty() {
		return mark, true
	}
	head := metadataPrefix + m.TopicID.String() + mapSeparator
	binary, fits := finished.encode(committed, m.TopicID, mapText.DecodedLen(max(limit-len(head), 0)))
	if !fits {
		return mark, false
	}
	return head + mapText.EncodeToString(binary), true
}

// errTopicID and errUnknownPart are what can be wrong outside of the map.
var (
	errTopicID     = errors.New("not 32 hexadecimal digits")
	errUnknownPart = errors.New("something else follows the topic id")
	errMapText     = errors.New("not base64")
)

// ParseMetadata reads the text that was committed beside the offset committed. Text of somebody else is no error, but
// Foreign; a damaged text of ours, or a map of another offset, is a *[MetadataError], beside which the topic id is returned
// if it could be read. It never panics, and allocates no more than a few times the length of the text.
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
	if strings.Trim(text[len(metadataPrefix):end], "0") == "" {
		return "" // there was no topic id to name
	}
	return text[:end]
}

// hasMap reports whether a text of ours goes on with a map, whatever that is worth.
func hasMap(text string) bool {
	const end = len(metadataPrefix) + topicIDDigits
	return strings.HasPrefix(text, metadataPrefix) && len(text) > end && strings.HasPrefix(text[end:], mapSeparator)
}
