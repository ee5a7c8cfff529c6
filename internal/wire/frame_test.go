package wire

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/pkg/kafka"
)

func frameOf(body []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

func TestReadFrameGrowsWithWhatArrives(t *testing.T) {
	body := bytes.Repeat([]byte("x"), 5*firstStep+3)
	for _, expect := range []int{0, firstStep, len(body), 1 << 30} {
		got, started, err := readFrame(bytes.NewReader(frameOf(body)), 1<<30, expect)
		require.NoError(t, err)
		require.True(t, started)
		require.Equal(t, body, got)
	}
}

func TestReadFrameRefusesLengths(t *testing.T) {
	for name, size := range map[string]uint32{"negative": 1 << 31, "short": 3, "above the cap": 101, "HTTP": 0x48545450} {
		t.Run(name, func(t *testing.T) {
			var wrong *frameSizeError
			_, _, err := readFrame(bytes.NewReader(binary.BigEndian.AppendUint32(nil, size)), 100, 0)
			require.ErrorAs(t, err, &wrong)
		})
	}
}

func TestReadFrameTellsAnEmptyEndFromACutOne(t *testing.T) {
	_, started, err := readFrame(bytes.NewReader(nil), 100, 0)
	require.ErrorIs(t, err, io.EOF)
	require.False(t, started)
	_, started, err = readFrame(bytes.NewReader([]byte{0, 0}), 100, 0)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.True(t, started)
	_, started, err = readFrame(bytes.NewReader([]byte{0, 0, 0, 9}), 100, 0)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.True(t, started)
}

func TestLyingLengthCostsOneStep(t *testing.T) {
	lie := append(binary.BigEndian.AppendUint32(nil, 100<<20), make([]byte, 16)...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, _, err := readFrame(bytes.NewReader(lie), 128<<20, 0)
	runtime.ReadMemStats(&after)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(2*firstStep))
}

func TestHeaderTagsAreSkipped(t *testing.T) {
	header := []byte{0, 0, 0, 7, 2 /* tags */, 0, 3, 'a', 'b', 'c', 200, 1, 0}
	body, err := cutHeader(append(header, "body"...), 7, true)
	require.NoError(t, err)
	require.Equal(t, "body", string(body))
	_, err = cutHeader(header, 8, true)
	require.ErrorIs(t, err, errCorrelation)
	for n := range len(header) {
		_, err := cutHeader(header[:n], 7, true)
		require.ErrorIs(t, err, errShortHeader, n)
	}
}

func TestApiVersionsFallsBackToWhatTheBrokerNames(t *testing.T) {
	resp := kmsg.NewPtrApiVersionsResponse()
	require.Equal(t, int16(0), lowerVersion(resp, 5), "before Kafka 2.4 nothing is named")
	key := kmsg.NewApiVersionsResponseApiKey()
	key.ApiKey, key.MaxVersion = apiVersionsKey, 3
	resp.ApiKeys = append(resp.ApiKeys, key)
	require.Equal(t, int16(3), lowerVersion(resp, 5))
	require.Equal(t, int16(0), lowerVersion(resp, 3), "never the refused one again")
}

// scripted answers each request on a connection with the next frame of a list, whatever was asked.
func scripted(t *testing.T, frames ...[]byte) *link {
	t.Helper()
	ours, theirs := net.Pipe()
	t.Cleanup(func() { _ = ours.Close() })
	go func() {
		defer func() { _ = theirs.Close() }()
		for _, f := range frames {
			if _, _, err := readFrame(theirs, 1<<20, 0); err != nil {
				return
			}
			if _, err := theirs.Write(f); err != nil {
				return
			}
		}
	}()
	return &link{raw: ours, conn: ours, formatter: kmsg.NewRequestFormatter()}
}

func TestAnAnswerToAnotherRequestClosesTheConnection(t *testing.T) {
	for name, answer := range map[string][]byte{
		"another correlation": frameOf([]byte{0, 0, 0, 9, 0, 0, 0, 0, 0, 0}),
		"malformed body":      frameOf([]byte{0, 0, 0, 1, 0}),
	} {
		t.Run(name, func(t *testing.T) {
			l := scripted(t, answer)
			var broken *answerError
			_, _, _, err := l.ask(t.Context(), kmsg.NewPtrHeartbeatRequest(), nil, 1<<20, 0)
			require.ErrorAs(t, err, &broken)
			_, err = l.conn.Write([]byte("x"))
			require.Error(t, err)
		})
	}
}

func TestGarbageBeforeAnyAnswerIsNotKafka(t *testing.T) {
	for name, answer := range map[string][]byte{
		"HTTP":        []byte("HTTP/1.1 400 Bad Request"),
		"TLS alert":   {0x15, 0x03, 0x03, 0, 2, 2, 70},
		"correlation": frameOf([]byte{9, 9, 9, 9, 0, 0}),
		"body":        frameOf([]byte{0, 0, 0, 1, 0}),
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, scripted(t, answer).negotiate(t.Context(), "dev"), kafka.ErrNotKafka)
		})
	}
}

func FuzzReadFrame(f *testing.F) {
	f.Add([]byte{0, 0, 0, 4, 0, 0, 0, 1}, false)
	f.Add(frameOf([]byte{0, 0, 0, 1, 1, 0, 1, 9, 'x'}), true)
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\n"), true)
	f.Add([]byte{0xff, 0xff, 0xff, 0xff}, true)
	f.Add([]byte{0, 0, 0, 9, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0x0f}, true)
	const limit = 1 << 20
	f.Fuzz(func(t *testing.T, data []byte, flexible bool) {
		frame, _, err := readFrame(bytes.NewReader(data), limit, 0)
		if err != nil {
			return
		}
		if cap(frame) > limit || len(frame) > len(data) {
			t.Fatalf("frame of %d bytes (capacity %d) from %d", len(frame), cap(frame), len(data))
		}
		if body, err := cutHeader(frame, 1, flexible); err == nil && len(body) > len(frame) {
			t.Fatal("body longer than its frame")
		}
	})
}
