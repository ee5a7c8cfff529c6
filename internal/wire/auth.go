package wire

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/pkg/kafka"
)

// saslCodes are the codes a broker refuses an authentication with. sarama wraps them so that only errors.Is finds them.
var saslCodes = []sarama.KError{sarama.ErrSASLAuthenticationFailed, sarama.ErrUnsupportedSASLMechanism, sarama.ErrIllegalSASLState}

// saslError gives sarama's error the protocol's code, and says so when the other end is no broker or wants TLS. What a
// token provider or Kerberos library says is an AuthError, too; what happens to the connection is not.
func (n *Network) saslError(err error, lent *loan) error {
	login := &kafka.AuthError{Mechanism: string(n.sarama.Net.SASL.Mechanism), Err: err}
	for _, code := range saslCodes {
		if errors.Is(err, code) {
			login.Offered = offered(lent.heard())
			login.Err = fmt.Errorf("%w: %w", kafka.ErrorCode(code), err)
			return login
		}
	}
	if who := speaker(lent.heard()); who != nil {
		return who
	}
	var network net.Error
	switch {
	case isHangUp(err):
		return hungUp(err, len(lent.heard()) == 0)
	case errors.As(err, &network), isRemoteAlert(err):
		return err
	}
	return login
}

// offered reads the mechanisms a listener offers out of its answer to SaslHandshake, the first one.
func offered(heard []byte) []string {
	frame, _, err := readFrame(bytes.NewReader(heard), len(heard), 0)
	if err != nil || len(frame) < 4 {
		return nil
	}
	resp := kmsg.NewPtrSASLHandshakeResponse()
	resp.Version = 1
	if resp.ReadFrom(frame[4:]) != nil {
		return nil
	}
	return resp.SupportedMechanisms
}

// isHangUp reports whether the other end closed the connection.
func isHangUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// isRemoteAlert reports whether the other end ended TLS. With TLS 1.3 a refused client certificate shows only like that,
// after the handshake.
func isRemoteAlert(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}

// hungUp is the error of a connection that the other end closed. When it had not said anything, the listener may be
// another kind than the client takes it for.
func hungUp(err error, silent bool) error {
	if !silent {
		return err
	}
	return fmt.Errorf("%w (a listener that wants TLS or SASL does so to a client without): %w", kafka.ErrHungUp, err)
}

// tlsError names what is wrong with a handshake where crypto/tls leaves a doubt.
func (n *Network) tlsError(err error) error {
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		if n.tlsNow().Before(invalid.Cert.NotBefore) {
			return fmt.Errorf("%w: %w", kafka.ErrCertificateNotYetValid, err)
		}
		return fmt.Errorf("%w: %w", kafka.ErrCertificateExpired, err)
	case errors.As(err, &record):
		return fmt.Errorf("%w: %w", kafka.ErrNoTLS, err)
	case isHangUp(err):
		return fmt.Errorf("%w (a listener without TLS does so): %w", kafka.ErrHungUp, err)
	}
	return err
}

// tlsNow is the clock that certificates are judged by.
func (n *Network) tlsNow() time.Time {
	if n.tls.Time != nil {
		return n.tls.Time()
	}
	return time.Now()
}

// errPanicked is what user code that panicked below sarama fails with; there is no other recover above it.
var errPanicked = errors.New("wire: panic")

// rescue turns a panic into an error. The value is told, as with handlers.
func rescue(what string, err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("%w in %s: %v", errPanicked, what, p)
	}
}

// mostTokenCalls bounds the calls of a token provider that have not returned: it cannot be interrupted, and each try to
// connect asks it again.
const mostTokenCalls = 16

// tokenProvider calls the user's one, a bounded number of times at once.
type tokenProvider struct {
	own   sarama.AccessTokenProvider
	calls chan struct{}
}

// Token implements sarama.AccessTokenProvider.
func (p *tokenProvider) Token() (token *sarama.AccessToken, err error) {
	select {
	case p.calls <- struct{}{}:
	default:
		return nil, fmt.Errorf("wire: %d calls of the token provider have not returned", mostTokenCalls)
	}
	defer func() { <-p.calls }()
	defer rescue("the token provider", &err)
	if token, err = p.own.Token(); err == nil && token == nil {
		err = errors.New("wire: the token provider returned no token")
	}
	return token, err
}

// userSCRAM calls the user's SCRAM client.
type userSCRAM struct{ sarama.SCRAMClient }

// Begin implements sarama.SCRAMClient.
func (c userSCRAM) Begin(name, password, authzID string) (err error) {
	defer rescue("the SCRAM client", &err)
	return c.SCRAMClient.Begin(name, password, authzID)
}

// Step implements sarama.SCRAMClient.
func (c userSCRAM) Step(challenge string) (response string, err error) {
	defer rescue("the SCRAM client", &err)
	return c.SCRAMClient.Step(challenge)
}

// guardSASL puts what is ours around the user's hooks, and gives SCRAM a client where the user brought none.
func guardSASL(cfg *sarama.Config) {
	sasl := &cfg.Net.SASL
	if own := sasl.TokenProvider; own != nil {
		sasl.TokenProvider = &tokenProvider{own: own, calls: make(chan struct{}, mostTokenCalls)}
	}
	if own := sasl.SCRAMClientGeneratorFunc; own != nil {
		sasl.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return userSCRAM{own()} }
	} else {
		sasl.SCRAMClientGeneratorFunc = scramGenerator(sasl.Mechanism)
	}
}
