package launch

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
	"github.com/twmb/franz-go/pkg/sasl"
)

const (
	// answerTimeout bounds one request of a probe.
	answerTimeout = 5 * time.Second
	// maxAnswer bounds what a probe reads; anything larger does not come from a Kafka with so little in it.
	maxAnswer = 16 << 20
	// dialTimeout bounds one connection attempt to a loopback or outside broker.
	dialTimeout = 2 * time.Second
)

// Versions every supported broker speaks, so that the probe needs no negotiation.
const (
	versionMetadata         = 8
	versionFindCoordinator  = 2
	versionJoinGroup        = 5
	versionLeaveGroup       = 3
	versionDeleteGroups     = 1
	versionSASLHandshake    = 1
	versionSASLAuthenticate = 1
	versionCreateTopics     = 4
	versionDeleteTopics     = 3
	versionACLs             = 1
	versionSCRAM            = 0
	versionAlterConfigs     = 0
)

// probe is one connection that asks one thing at a time.
type probe struct {
	conn        net.Conn
	formatter   *kmsg.RequestFormatter
	correlation int32
}

func newProbe(ctx context.Context, address string) (*probe, error) {
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return &probe{conn: conn, formatter: kmsg.NewRequestFormatter(kmsg.FormatterClientID("troupe-launch"))}, nil
}

func (p *probe) close() { _ = p.conn.Close() }

// ask sends a request at its set version and reads the answer into it.
func (p *probe) ask(ctx context.Context, request kmsg.Request) (kmsg.Response, error) {
	response, err := p.exchange(ctx, request)
	if err != nil {
		return nil, fmt.Errorf("%s at %s: %w", kmsg.NameForKey(request.Key()), p.conn.RemoteAddr(), err)
	}
	return response, nil
}

func (p *probe) exchange(ctx context.Context, request kmsg.Request) (kmsg.Response, error) {
	deadline := time.Now().Add(answerTimeout)
	if end, ok := ctx.Deadline(); ok && end.Before(deadline) {
		deadline = end
	}
	if err := p.conn.SetDeadline(deadline); err != nil {
		return nil, err
	}
	p.correlation++
	if _, err := p.conn.Write(p.formatter.AppendRequest(nil, request, p.correlation)); err != nil {
		return nil, err
	}
	var head [8]byte
	if _, err := io.ReadFull(p.conn, head[:]); err != nil {
		return nil, err
	}
	size, correlation := int32(binary.BigEndian.Uint32(head[:4])), int32(binary.BigEndian.Uint32(head[4:]))
	if correlation != p.correlation || size < 4 || size > maxAnswer {
		return nil, fmt.Errorf("not a Kafka answer: %d bytes, correlation %d, want %d", size, correlation, p.correlation)
	}
	body := make([]byte, size-4)
	if _, err := io.ReadFull(p.conn, body); err != nil {
		return nil, err
	}
	response := request.ResponseKind()
	response.SetVersion(request.GetVersion())
	if request.IsFlexible() && request.Key() != kmsg.ApiVersions.Int16() {
		var err error
		if body, err = skipTags(body); err != nil {
			return nil, err
		}
	}
	return response, response.ReadFrom(body)
}

// skipTags leaves out the tagged fields that end the header of an answer in a flexible version: a count, then for each
// field its number, its size and its bytes.
func skipTags(body []byte) ([]byte, error) {
	number := func() uint64 {
		value, size := binary.Uvarint(body)
		body = body[max(0, size):]
		if size <= 0 {
			body = nil
		}
		return value
	}
	for range number() {
		number()
		size := number()
		if size > uint64(len(body)) {
			return nil, io.ErrUnexpectedEOF
		}
		body = body[size:]
	}
	return body, nil
}

// startTLS wraps the connection.
func (p *probe) startTLS(ctx context.Context, config *tls.Config) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	secured := tls.Client(p.conn, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		return fmt.Errorf("TLS at %s: %w", p.conn.RemoteAddr(), err)
	}
	p.conn = secured
	return nil
}

// logIn authenticates and returns the lifetime of the session, 0 if it has no end.
func (p *probe) logIn(ctx context.Context, mechanism sasl.Mechanism) (time.Duration, error) {
	handshake := kmsg.NewPtrSASLHandshakeRequest()
	handshake.Version, handshake.Mechanism = versionSASLHandshake, mechanism.Name()
	answer, err := p.ask(ctx, handshake)
	if err != nil {
		return 0, err
	}
	if err := kerr.ErrorForCode(answer.(*kmsg.SASLHandshakeResponse).ErrorCode); err != nil {
		return 0, fmt.Errorf("SASL mechanism %s at %s: %w", mechanism.Name(), p.conn.RemoteAddr(), err)
	}
	session, write, err := mechanism.Authenticate(ctx, p.conn.RemoteAddr().String())
	if err != nil {
		return 0, err
	}
	for {
		request := kmsg.NewPtrSASLAuthenticateRequest()
		request.Version, request.SASLAuthBytes = versionSASLAuthenticate, write
		answer, err := p.ask(ctx, request)
		if err != nil {
			return 0, err
		}
		step := answer.(*kmsg.SASLAuthenticateResponse)
		if err := answered(step.ErrorCode, step.ErrorMessage); err != nil {
			return 0, fmt.Errorf("%s login at %s: %w", mechanism.Name(), p.conn.RemoteAddr(), err)
		}
		done, next, err := session.Challenge(step.SASLAuthBytes)
		if err != nil {
			return 0, fmt.Errorf("%s login at %s: %w", mechanism.Name(), p.conn.RemoteAddr(), err)
		}
		if done {
			return time.Duration(step.SessionLifetimeMillis) * time.Millisecond, nil
		}
		write = next
	}
}

// answered turns an answer's code into an error that also says what the broker said.
func answered(code int16, message *string) error {
	err := kerr.ErrorForCode(code)
	if err != nil && message != nil && *message != "" {
		return fmt.Errorf("%w: %s", err, *message)
	}
	return err
}

// guessVersion asks an outside broker for its API versions and names the release they fit best.
func guessVersion(ctx context.Context, address string) (string, error) {
	p, err := newProbe(ctx, address)
	if err != nil {
		return "", err
	}
	defer p.close()
	request := kmsg.NewPtrApiVersionsRequest()
	request.Version = 0 // the one version every broker answers in full
	answer, err := p.ask(ctx, request)
	if err != nil {
		return "", err
	}
	versions := answer.(*kmsg.ApiVersionsResponse)
	if err := kerr.ErrorForCode(versions.ErrorCode); err != nil {
		return "", fmt.Errorf("ApiVersions at %s: %w", address, err)
	}
	if len(versions.ApiKeys) == 0 {
		return "", fmt.Errorf("ApiVersions at %s: %w", address, errors.New("no API keys"))
	}
	return kversion.FromApiVersionsResponse(versions).VersionGuess(), nil
}

// greet proves that the node answers on this connection.
func (p *probe) greet(ctx context.Context) error {
	request := kmsg.NewPtrMetadataRequest()
	request.Version, request.Topics = versionMetadata, []kmsg.MetadataRequestTopic{}
	_, err := p.ask(ctx, request)
	return err
}
