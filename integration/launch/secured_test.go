//go:build unix

package launch

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// enough bounds whatever a test waits for; reaching it is a failure.
const enough = 60 * time.Second

// bounded is a context that ends with the test or after enough.
func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), enough)
	t.Cleanup(cancel)
	return ctx
}

// login returns how a client's first exchange on an authenticated connection ends.
func login(t *testing.T, cluster *Cluster, listener string, user User, mechanism string) error {
	t.Helper()
	client := clientOf(t, cluster, listener, user, mechanism)
	return client.Ping(bounded(t))
}

func clientOf(t *testing.T, cluster *Cluster, listener string, user User, mechanism string, more ...kgo.Opt) *kgo.Client {
	t.Helper()
	options := []kgo.Opt{kgo.SeedBrokers(cluster.BrokersOf(listener)...), kgo.RetryTimeout(5 * time.Second)}
	if mechanism != "" {
		how, err := user.Mechanism(mechanism)
		if err != nil {
			t.Fatal(err)
		}
		options = append(options, kgo.SASL(how))
	}
	if listener == ListenerSASLSSL || listener == ListenerSSL {
		options = append(options, kgo.DialTLSConfig(cluster.TLS()))
	}
	client, err := kgo.NewClient(append(options, more...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// TestRealSecuredKafka is everything about users, on both versions.
func TestRealSecuredKafka(t *testing.T) {
	skipForOutsideBrokers(t)
	for _, version := range []string{DefaultVersion, OldVersion} {
		t.Run(version, func(t *testing.T) {
			cluster := ForTest(t, Options{Version: version, Security: &Security{
				Mechanisms: []string{MechanismPlain, MechanismSCRAM256, MechanismSCRAM512, MechanismOAuthBearer},
				MaxReauth:  90 * time.Second,
			}})
			t.Run("login", func(t *testing.T) { everyMechanismLogsIn(t, cluster) })
			t.Run("sarama", func(t *testing.T) { saramaLogsIn(t, cluster) })
			t.Run("refused", func(t *testing.T) { wrongLoginsAreRefused(t, cluster) })
			t.Run("lifetime", func(t *testing.T) { everyMechanismHasALifetime(t, cluster) })
			t.Run("scram", func(t *testing.T) { passwordsChangeWhileRunning(t, cluster) })
			t.Run("acl", func(t *testing.T) { rightsComeAndGo(t, cluster) })
			t.Run("certificate", func(t *testing.T) { certificatesAreReplaced(t, cluster) })
		})
	}
}

func everyMechanismLogsIn(t *testing.T, cluster *Cluster) {
	for _, mechanism := range []string{MechanismPlain, MechanismSCRAM256, MechanismSCRAM512, MechanismOAuthBearer} {
		for _, listener := range []string{ListenerSASLSSL, ListenerSASLPlaintext} {
			if err := login(t, cluster, listener, cluster.User("alice"), mechanism); err != nil {
				t.Errorf("%s over %s: %v", mechanism, listener, err)
			}
		}
	}
	for _, listener := range []string{ListenerSSL, ListenerPlaintext} {
		if err := login(t, cluster, listener, User{}, ""); err != nil {
			t.Errorf("%s: %v", listener, err)
		}
	}
}

func saramaLogsIn(t *testing.T, cluster *Cluster) {
	config, user := sarama.NewConfig(), cluster.User("alice")
	config.Net.SASL.Enable, config.Net.SASL.User, config.Net.SASL.Password = true, user.Name, user.Password
	config.Net.TLS.Enable, config.Net.TLS.Config = true, cluster.TLS()
	config.Net.TLS.Config.ServerName = loopback
	client, err := sarama.NewClient(cluster.BrokersOf(ListenerSASLSSL), config)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if got, want := client.Brokers()[0].Addr(), cluster.BrokersOf(ListenerSASLSSL)[0]; got != want {
		t.Errorf("Metadata over SASL_SSL names %s, want that listener's %s", got, want)
	}
}

func wrongLoginsAreRefused(t *testing.T, cluster *Cluster) {
	wrong := User{Name: "alice", Password: "wrong"}
	for _, mechanism := range []string{MechanismPlain, MechanismSCRAM256} {
		if err := login(t, cluster, ListenerSASLSSL, wrong, mechanism); !errors.Is(err, kerr.SaslAuthenticationFailed) {
			t.Errorf("%s with a wrong password: %v, want SASL_AUTHENTICATION_FAILED", mechanism, err)
		}
	}
	other, err := NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	client := clientOf(t, cluster, ListenerSASLPlaintext, User{}, "",
		kgo.SeedBrokers(cluster.BrokersOf(ListenerSSL)...), kgo.DialTLSConfig(&tls.Config{RootCAs: other.Pool()}))
	var unknown x509.UnknownAuthorityError
	if err := client.Ping(bounded(t)); !errors.As(err, &unknown) {
		t.Errorf("with another authority: %v, want UnknownAuthorityError", err)
	}
}

func everyMechanismHasALifetime(t *testing.T, cluster *Cluster) {
	for _, mechanism := range cluster.security.Mechanisms {
		lifetime, err := cluster.Nodes()[0].tryListener(bounded(t), ListenerSASLSSL, mechanism)
		if err != nil || lifetime <= 0 || lifetime > 90*time.Second {
			t.Errorf("%s: lifetime %v, %v; want MaxReauth at most", mechanism, lifetime, err)
		}
	}
}

func passwordsChangeWhileRunning(t *testing.T, cluster *Cluster) {
	for _, user := range []User{{Name: "carol", Password: "first"}, {Name: "carol", Password: "second"}} {
		if err := cluster.SetSCRAM(bounded(t), user); err != nil {
			t.Fatal(err)
		}
		for _, mechanism := range []string{MechanismSCRAM256, MechanismSCRAM512} {
			if err := login(t, cluster, ListenerSASLSSL, user, mechanism); err != nil {
				t.Errorf("%s after SetSCRAM: %v", mechanism, err)
			}
		}
	}
	if err := login(t, cluster, ListenerSASLSSL, User{Name: "carol", Password: "first"}, MechanismSCRAM256); !errors.Is(err, kerr.SaslAuthenticationFailed) {
		t.Errorf("old password: %v, want SASL_AUTHENTICATION_FAILED", err)
	}
}

// rightsComeAndGo follows one user from nothing through every change.
func rightsComeAndGo(t *testing.T, cluster *Cluster) {
	ctx := bounded(t)
	if err := cluster.CreateTopics(ctx, Topic{Name: "orders", Partitions: 2, Configs: map[string]string{"retention.ms": "60000"}}); err != nil {
		t.Fatal(err)
	}
	alice := clientOf(t, cluster, ListenerSASLSSL, cluster.User("alice"), MechanismPlain)
	rights := ConsumerACLs("alice", "billing", "orders")
	hidden := TopicACL("alice", "orders", kmsg.ACLOperationDescribe)
	prefixed := TopicACL("alice", "ord", kmsg.ACLOperationDescribe)
	prefixed.Prefixed = true
	var topic, group *kerr.Error
	topic, group = kerr.TopicAuthorizationFailed, kerr.GroupAuthorizationFailed
	for _, step := range []struct {
		name         string
		change       func() error
		topic, group *kerr.Error
	}{
		{"nothing", func() error { return nil }, topic, group},
		{"allow", func() error { return cluster.Allow(ctx, rights...) }, nil, nil},
		{"deny the topic", func() error { return cluster.Deny(ctx, hidden) }, topic, nil},
		{"heal", func() error { return cluster.Remove(ctx, hidden) }, nil, nil},
		{"remove", func() error { return cluster.Remove(ctx, rights...) }, topic, group},
		{"allow a prefix", func() error { return cluster.Allow(ctx, prefixed) }, nil, group},
		{"remove the prefix", func() error { return cluster.Remove(ctx, prefixed) }, topic, group},
	} {
		if err := step.change(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if got := topicError(ctx, t, alice, "orders"); !sameError(got, step.topic) {
			t.Errorf("%s: Metadata says %v, want %v", step.name, got, step.topic)
		}
		if got := groupError(ctx, t, alice, "billing"); !sameError(got, step.group) {
			t.Errorf("%s: FindCoordinator says %v, want %v", step.name, got, step.group)
		}
	}
	admin := clientOf(t, cluster, ListenerSASLSSL, cluster.User("admin"), MechanismSCRAM512)
	if err := errors.Join(topicError(ctx, t, admin, "orders"), groupError(ctx, t, admin, "billing")); err != nil {
		t.Errorf("super user: %v", err)
	}
	if err := cluster.DeleteTopics(ctx, "orders"); err != nil {
		t.Error(err)
	}
}

func sameError(got error, want *kerr.Error) bool {
	if want == nil {
		return got == nil
	}
	return errors.Is(got, want)
}

func topicError(ctx context.Context, t *testing.T, client *kgo.Client, topic string) error {
	t.Helper()
	answer, err := metadataRequest(topic).RequestWith(ctx, client)
	if err != nil {
		t.Fatal(err)
	}
	return kerr.ErrorForCode(answer.Topics[0].ErrorCode)
}

func groupError(ctx context.Context, t *testing.T, client *kgo.Client, group string) error {
	t.Helper()
	request := kmsg.NewPtrFindCoordinatorRequest()
	request.CoordinatorKeys, request.CoordinatorKey = []string{group}, group
	answer, err := request.RequestWith(ctx, client)
	if err != nil {
		t.Fatal(err)
	}
	return kerr.ErrorForCode(answer.Coordinators[0].ErrorCode)
}

func certificatesAreReplaced(t *testing.T, cluster *Cluster) {
	for _, kind := range []CertificateKind{ExpiredCertificate, WrongHostCertificate, NotYetValidCertificate, ValidCertificate} {
		if err := cluster.ReplaceCertificate(bounded(t), kind); err != nil {
			t.Fatal(err)
		}
		for _, listener := range []string{ListenerSASLSSL, ListenerSSL} {
			checkKind(t, cluster, listener, kind)
		}
	}
}

func checkKind(t *testing.T, cluster *Cluster, listener string, kind CertificateKind) {
	t.Helper()
	conn, err := tls.Dial("tcp", cluster.BrokersOf(listener)[0], cluster.TLS())
	if err == nil {
		_ = conn.Close()
	}
	if !refusedAs(err, kind) {
		t.Errorf("%s with a certificate that is %s: %v", listener, kind, err)
	}
}

// refusedAs reports whether a handshake ended as it must with such a certificate.
func refusedAs(err error, kind CertificateKind) bool {
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch kind {
	case ValidCertificate:
		return err == nil
	case WrongHostCertificate:
		return errors.As(err, &host)
	case ExpiredCertificate, NotYetValidCertificate:
		return errors.As(err, &invalid) && invalid.Reason == x509.Expired &&
			strings.Contains(err.Error(), "is before") == (kind == NotYetValidCertificate)
	}
	return false
}

// TestRealKafkaWithOddAddresses has a node that advertises an address nobody listens on for one listener and a proxy for
// another, shows a bad certificate from the start and demands one of its clients.
func TestRealKafkaWithOddAddresses(t *testing.T) {
	skipForOutsideBrokers(t)
	var proxy *Proxy
	cluster := ForTest(t, Options{
		Security: &Security{Certificate: ExpiredCertificate, ClientCertificates: true},
		AdvertisedOverride: func(_ int, listener, address string) string {
			switch listener {
			case ListenerPlaintext:
				return "127.0.0.1:1"
			case ListenerSASLPlaintext:
				var err error
				if proxy, err = NewProxy(address); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = proxy.Close() })
				return proxy.Addr()
			}
			return address
		},
	})
	checkKind(t, cluster, ListenerSASLSSL, ExpiredCertificate)

	// Metadata names what is advertised; whoever follows it fails here and comes through the proxy there.
	for listener, want := range map[string]string{ListenerPlaintext: "127.0.0.1:1", ListenerSASLPlaintext: proxy.Addr()} {
		mechanism := ""
		if listener == ListenerSASLPlaintext {
			mechanism = MechanismPlain
		}
		answer, err := metadataRequest().RequestWith(bounded(t), clientOf(t, cluster, listener, cluster.User("admin"), mechanism))
		if err != nil {
			t.Fatal(err)
		}
		if got := hostPort(answer.Brokers[0].Host, answer.Brokers[0].Port); got != want {
			t.Errorf("%s: Metadata names %s, want %s", listener, got, want)
		}
	}
	admin := clientOf(t, cluster, ListenerSASLPlaintext, cluster.User("admin"), MechanismPlain)
	if err := groupError(bounded(t), t, admin, "any"); err != nil {
		t.Error(err)
	}
	if _, err := cluster.Coordinator(bounded(t), "any"); err != nil {
		t.Errorf("helpers do not depend on what is advertised: %v", err)
	}

	// A client certificate is a name, and that name has no rights.
	for name, want := range map[string]*kerr.Error{"alice": kerr.GroupAuthorizationFailed, "admin": nil} {
		own, err := cluster.Authority().Issue(ValidCertificate, name)
		if err != nil {
			t.Fatal(err)
		}
		config := &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{own.TLS()}}
		client := clientOf(t, cluster, ListenerPlaintext, User{}, "", kgo.SeedBrokers(cluster.BrokersOf(ListenerSSL)...), kgo.DialTLSConfig(config))
		if got := groupError(bounded(t), t, client, "any"); !sameError(got, want) {
			t.Errorf("certificate of %s: %v, want %v", name, got, want)
		}
	}
}

func TestIssuedCertificatesAreOfTheirKind(t *testing.T) {
	authority, err := NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []CertificateKind{ValidCertificate, ExpiredCertificate, NotYetValidCertificate, WrongHostCertificate} {
		certificate, err := authority.Issue(kind, serverName)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"localhost", loopback} {
			err := certificate.leaf.VerifyHostname(name)
			if err == nil {
				_, err = certificate.leaf.Verify(x509.VerifyOptions{Roots: authority.Pool()})
			}
			if !refusedAs(err, kind) {
				t.Errorf("%s for %s: %v", kind, name, err)
			}
		}
		if _, err := tls.X509KeyPair(certificate.CertificatePEM, certificate.KeyPEM); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

func TestSecurityRefusesWhatItCannotExpress(t *testing.T) {
	for name, wanted := range map[string]Security{
		"mechanism": {Mechanisms: []string{"GSSAPI"}},
		"none":      {Mechanisms: []string{}},
		"nobody":    {Users: []User{}},
		"quote":     {Users: []User{{Name: `a"b`, Password: "x"}}},
		"empty":     {Users: []User{{Name: "a"}}},
	} {
		if _, err := Start(t.Context(), Options{Security: &wanted}); err == nil || !strings.Contains(err.Error(), "Options.Security") {
			t.Errorf("%s: Start = %v, want an error about Options.Security", name, err)
		}
	}
}

func TestSecurityProperties(t *testing.T) {
	s, err := newSecurity(&Security{Mechanisms: []string{MechanismPlain, MechanismSCRAM512}, MaxReauth: 3 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	got := s.properties("/k", "/t")
	for key, want := range map[string]string{
		"super.users":             "User:ANONYMOUS;User:admin",
		"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
		"ssl.keystore.location":   "/k",
		"listener.name.sasl_ssl.plain.connections.max.reauth.ms":               "3000",
		"listener.name.sasl_plaintext.scram-sha-512.connections.max.reauth.ms": "3000",
		"listener.name.sasl_plaintext.plain.sasl.jaas.config": loginModules[MechanismPlain] +
			` required user_admin="admin-secret" user_alice="alice-secret" user_bob="bob-secret";`,
		"listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": loginModules[MechanismSCRAM512] + " required;",
	} {
		if got[key] != want {
			t.Errorf("%s = %q, want %q", key, got[key], want)
		}
	}
	want := fmt.Sprint([]string{"SCRAM-SHA-512=[name=admin,password=admin-secret]",
		"SCRAM-SHA-512=[name=alice,password=alice-secret]", "SCRAM-SHA-512=[name=bob,password=bob-secret]"})
	if got := fmt.Sprint(s.scramCredentials()); got != want {
		t.Errorf("credentials %s, want %s", got, want)
	}
}
