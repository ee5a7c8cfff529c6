package wire

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/pkg/kafka"
)

// maxVersionsBytes caps the answer to ApiVersions: real ones have a few kilobytes, and before it nothing proves that the
// other end is Kafka at all.
const maxVersionsBytes = 1 << 20

// apiVersionsKey is the one API whose response header never has tags.
const apiVersionsKey = 18

// firstCorrelation is the correlation id of the first request. Its bytes are two line ends: an HTTP server takes them for
// the end of a request and answers at once, where otherwise it would wait for more.
const firstCorrelation int32 = 0x0d0a0d0a

// api is one request of the protocol with the versions this library speaks.
type api struct {
	name     string
	key      int16
	min, max int16
}

// The requests in use. Metadata v9 makes Kafka 2.4 the oldest broker; the other minima are what the code needs to keep
// its promises. OffsetCommit and OffsetFetch stop at 9 because 10 is by topic id.
var (
	apiFetch           = api{"Fetch", 1, 11, 18}
	apiListOffsets     = api{"ListOffsets", 2, 4, 10}
	apiMetadata        = api{"Metadata", 3, 9, 13}
	apiOffsetCommit    = api{"OffsetCommit", 8, 2, 9}
	apiOffsetFetch     = api{"OffsetFetch", 9, 5, 9}
	apiFindCoordinator = api{"FindCoordinator", 10, 1, 6}
	apiJoinGroup       = api{"JoinGroup", 11, 5, 9}
	apiHeartbeat       = api{"Heartbeat", 12, 3, 4}
	apiLeaveGroup      = api{"LeaveGroup", 13, 1, 5}
	apiSyncGroup       = api{"SyncGroup", 14, 3, 5}
	apiDescribeGroups  = api{"DescribeGroups", 15, 0, 5}
	apiEpochEnds       = api{"OffsetForLeaderEpoch", 23, 3, 4}
)

// Versions below which a field is not on the wire. A request that needs the field must not go out below it.
const (
	fetchByTopicID       = 13
	offsetCommitInstance = 7
	leaveGroupMembers    = 3
	offsetFetchStable    = 7
	offsetFetchGroups    = 8
	findCoordinatorBatch = 4
)

// atLeast returns a with its minimum raised.
func (a api) atLeast(version int16) api {
	a.min = max(a.min, version)
	return a
}

// atMost returns a with its maximum lowered.
func (a api) atMost(version int16) api {
	a.max = min(a.max, version)
	return a
}

type versionRange struct{ min, max int16 }

// versionTable is what a broker offers, by API key.
type versionTable map[int16]versionRange

// pick returns the highest version both sides have. A version above the broker's would close the connection without a
// word, so it must be exact.
func (t versionTable) pick(a api, broker kafka.Broker) (int16, error) {
	have, ok := t[a.key]
	if !ok {
		have = versionRange{-1, -1}
	}
	version := min(a.max, have.max)
	if !ok || version < a.min || version < have.min {
		return 0, &kafka.VersionError{API: a.name, Broker: broker, WantMin: a.min, WantMax: a.max,
			HaveMin: have.min, HaveMax: have.max}
	}
	return version, nil
}

// negotiate asks the broker for its versions. One that does not know the version asked for answers UNSUPPORTED_VERSION
// in the format of v0, with its own range for ApiVersions (none before Kafka 2.4), and is asked again.
func (l *link) negotiate(ctx context.Context, softwareVersion string) error {
	req := kmsg.NewPtrApiVersionsRequest()
	req.Version = req.MaxVersion()
	req.ClientSoftwareName, req.ClientSoftwareVersion = softwareName, softwareVersion
	for first := true; ; first = false {
		body, _, err := l.roundTrip(ctx, req, false, nil, maxVersionsBytes, 0)
		if err != nil {
			return notKafka(err, first)
		}
		resp := req.ResponseKind().(*kmsg.ApiVersionsResponse)
		if len(body) >= 2 && kafka.ErrorCode(binary.BigEndian.Uint16(body)) == kafka.UnsupportedVersion {
			resp.SetVersion(0)
		}
		if err := resp.ReadFrom(body); err != nil {
			return notKafka(&answerError{fmt.Errorf("malformed answer to ApiVersions v%d: %w", req.Version, err)}, first)
		}
		if kafka.ErrorCode(resp.ErrorCode) == kafka.UnsupportedVersion && req.Version > 0 {
			req.Version = lowerVersion(resp, req.Version)
			continue
		}
		if err := kafka.ErrorFromCode(resp.ErrorCode); err != nil {
			return err
		}
		l.versions = make(versionTable, len(resp.ApiKeys))
		for _, k := range resp.ApiKeys {
			l.versions[k.ApiKey] = versionRange{k.MinVersion, k.MaxVersion}
		}
		return nil
	}
}

// lowerVersion is the version of ApiVersions to try after one was refused.
func lowerVersion(resp *kmsg.ApiVersionsResponse, refused int16) int16 {
	for _, k := range resp.ApiKeys {
		if k.ApiKey == apiVersionsKey && k.MaxVersion > 0 && k.MaxVersion < refused {
			return k.MaxVersion
		}
	}
	return 0
}

// notKafka says so when the very first answer is not one of the protocol, or the connection is closed in place of one.
// Other transport errors stay what they are.
func notKafka(err error, first bool) error {
	var size *frameSizeError
	var broken *answerError
	var transport *transportError
	switch {
	case !first:
		return err
	case errors.As(err, &size):
		if who := speaker(size.first[:]); who != nil {
			return who
		}
		return fmt.Errorf("%w: %w", kafka.ErrNotKafka, err)
	case errors.As(err, &broken):
		return fmt.Errorf("%w: %w", kafka.ErrNotKafka, err)
	case errors.As(err, &transport) && isHangUp(err):
		return hungUp(err, !transport.received)
	}
	return err
}

// speaker is the error of who talks like that, nil when it may be a broker.
func speaker(first []byte) error {
	switch {
	case bytes.HasPrefix(first, []byte("HTTP")):
		return fmt.Errorf("%w: it answers HTTP", kafka.ErrNotKafka)
	case len(first) > 1 && first[0] == 0x15 && first[1] == 0x03:
		return fmt.Errorf("%w: it answers with a TLS alert", kafka.ErrTLSNeeded)
	}
	return nil
}
