package launch

import (
	"bytes"
	"context"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"errors"
	"fmt"
	"hash"
	"math/big"
	"os"
	"path/filepath"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// errNotSecured is returned where Options.Security is needed.
var errNotSecured = errors.New("launch: the cluster has no Options.Security")

// SetSCRAM creates a user's SCRAM credentials or changes the password, for both SCRAM mechanisms, and returns when
// every node that can answer has them. PLAIN knows the users of Options.Security only.
func (c *Cluster) SetSCRAM(ctx context.Context, user User) error {
	// The number of iterations is the one thing brokers tell about a credential: made different each time, it shows
	// whether this very change has arrived.
	extra, err := rand.Int(rand.Reader, big.NewInt(4096))
	if err != nil {
		return fmt.Errorf("launch: SCRAM of %s: %w", user.Name, err)
	}
	iterations := 4096 + int32(extra.Int64())
	hashes := []func() hash.Hash{sha256.New, sha512.New}
	for i, function := range hashes {
		if err := c.setSCRAM(ctx, user, int8(i+1), function, iterations); err != nil {
			return fmt.Errorf("launch: SCRAM of %s: %w", user.Name, err)
		}
	}
	if err := c.awaitSCRAM(ctx, user.Name, iterations, len(hashes)); err != nil {
		return fmt.Errorf("launch: SCRAM of %s: %w", user.Name, err)
	}
	return nil
}

// setSCRAM sends one credential; a request may not hold two of the same user.
func (c *Cluster) setSCRAM(ctx context.Context, user User, mechanism int8, function func() hash.Hash, iterations int32) error {
	salt := []byte(rand.Text())
	salted, err := pbkdf2.Key(function, user.Password, salt, int(iterations), function().Size())
	if err != nil {
		return err
	}
	credential := kmsg.NewAlterUserSCRAMCredentialsRequestUpsertion()
	credential.Name, credential.Mechanism, credential.Iterations = user.Name, mechanism, iterations
	credential.Salt, credential.SaltedPassword = salt, salted
	request := kmsg.NewPtrAlterUserSCRAMCredentialsRequest()
	request.Version = versionSCRAM
	request.Upsertions = []kmsg.AlterUserSCRAMCredentialsRequestUpsertion{credential}
	return poll(ctx, func() error {
		answer, err := c.askAny(ctx, request)
		if err != nil {
			return err
		}
		for _, result := range answer.(*kmsg.AlterUserSCRAMCredentialsResponse).Results {
			if err := answered(result.ErrorCode, result.ErrorMessage); err != nil {
				return unlessRetriable(err)
			}
		}
		return nil
	})
}

func unlessRetriable(err error) error {
	if kerr.IsRetriable(err) {
		return err
	}
	return finalError{err}
}

func (c *Cluster) awaitSCRAM(ctx context.Context, name string, iterations int32, mechanisms int) error {
	request := kmsg.NewPtrDescribeUserSCRAMCredentialsRequest()
	request.Version = versionSCRAM
	user := kmsg.NewDescribeUserSCRAMCredentialsRequestUser()
	user.Name = name
	request.Users = []kmsg.DescribeUserSCRAMCredentialsRequestUser{user}
	return c.awaitEverywhere(ctx, request, func(answer kmsg.Response) error {
		arrived := 0
		for _, result := range answer.(*kmsg.DescribeUserSCRAMCredentialsResponse).Results {
			for _, credential := range result.CredentialInfos {
				if credential.Iterations == iterations {
					arrived++
				}
			}
		}
		if arrived < mechanisms {
			return errors.New("not there yet")
		}
		return nil
	})
}

// ReplaceCertificate gives every node that can answer a new certificate while it runs, and returns when new connections
// to SASL_SSL and SSL get it. Open connections are not touched.
func (c *Cluster) ReplaceCertificate(ctx context.Context, kind CertificateKind) error {
	if c.security == nil {
		return errNotSecured
	}
	certificate, err := c.security.authority.Issue(kind, serverName)
	if err != nil {
		return fmt.Errorf("launch: replace certificate: %w", err)
	}
	path := filepath.Join(c.dir, "server-"+certificate.leaf.SerialNumber.Text(16)+".pem")
	if err := os.WriteFile(path, certificate.keyStore(), 0o600); err != nil {
		return fmt.Errorf("launch: replace certificate: %w", err)
	}
	for _, node := range c.serving() {
		if err := node.useKeyStore(ctx, path, certificate); err != nil {
			return fmt.Errorf("launch: replace certificate of node %d: %w", node.ID(), err)
		}
	}
	return nil
}

func (n *Node) useKeyStore(ctx context.Context, path string, certificate *Certificate) error {
	resource := kmsg.NewIncrementalAlterConfigsRequestResource()
	resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeBroker, fmt.Sprint(n.ID())
	listeners := []string{ListenerSASLSSL, ListenerSSL}
	for _, listener := range listeners {
		config := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
		config.Name = "listener.name." + strings.ToLower(listener) + ".ssl.keystore.location"
		config.Op, config.Value = kmsg.IncrementalAlterConfigOpSet, &path
		resource.Configs = append(resource.Configs, config)
	}
	request := kmsg.NewPtrIncrementalAlterConfigsRequest()
	request.Version = versionAlterConfigs
	request.Resources = []kmsg.IncrementalAlterConfigsRequestResource{resource}
	err := poll(ctx, func() error {
		answer, err := askAt(ctx, n.plan.own().address(), request)
		if err != nil {
			return err
		}
		for _, result := range answer.(*kmsg.IncrementalAlterConfigsResponse).Resources {
			if err := answered(result.ErrorCode, result.ErrorMessage); err != nil {
				return unlessRetriable(err)
			}
		}
		return nil
	})
	for _, listener := range listeners {
		if err == nil {
			err = poll(ctx, func() error { return n.presents(ctx, listener, certificate) })
		}
	}
	return err
}

// presents looks once whether a listener shows that certificate.
func (n *Node) presents(ctx context.Context, listener string, certificate *Certificate) error {
	p, err := newProbe(ctx, n.AddrOf(listener))
	if err != nil {
		return err
	}
	defer p.close()
	seen := errors.New("no certificate seen")
	config := &tls.Config{InsecureSkipVerify: true} // it may be a bad one
	config.VerifyConnection = func(state tls.ConnectionState) error {
		if bytes.Equal(state.PeerCertificates[0].Raw, certificate.leaf.Raw) {
			seen = nil
		} else {
			seen = errors.New("still the one before")
		}
		return nil
	}
	return errors.Join(p.startTLS(ctx, config), seen)
}
