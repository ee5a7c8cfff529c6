package launch

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// The SASL mechanisms a cluster can be given.
const (
	MechanismPlain       = "PLAIN"
	MechanismSCRAM256    = "SCRAM-SHA-256"
	MechanismSCRAM512    = "SCRAM-SHA-512"
	MechanismOAuthBearer = "OAUTHBEARER"
)

// Security adds the listeners SASL_PLAINTEXT, SASL_SSL and SSL to every node, and Kafka's StandardAuthorizer. The zero
// value is the usual setup.
//
// A user may do what ACLs allow; see Cluster.Allow. Super users may do everything, and so may whoever has no name:
// clients of PLAINTEXT, and of SSL without ClientCertificates.
type Security struct {
	// Mechanisms offered on both SASL listeners. Nil: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512. OAUTHBEARER accepts unsigned
	// tokens, see UnsecuredToken.
	Mechanisms []string

	// Users who can log in by PLAIN and SCRAM. Nil: DefaultUsers. Every set of users is formatted once (2 s) and stays
	// in the cache, so tests that do not care should share one. Names and passwords are of A-Z a-z 0-9 . _ - only.
	Users []User

	// MaxReauth is the lifetime of a SASL session, for every mechanism (connections.max.reauth.ms). Zero: no end.
	MaxReauth time.Duration

	// Certificate is the kind the nodes start with; Cluster.ReplaceCertificate changes it while they run.
	Certificate CertificateKind

	// ClientCertificates makes the SSL listener demand a certificate of Cluster.Authority; its common name is the user.
	ClientCertificates bool
}

// User can log in.
type User struct {
	Name, Password string
	// Super users need no ACLs.
	Super bool
}

// DefaultUsers are a super user "admin" and "alice" and "bob", who may do nothing until allowed.
func DefaultUsers() []User {
	return []User{{"admin", "admin-secret", true}, {"alice", "alice-secret", false}, {"bob", "bob-secret", false}}
}

// security is what a cluster's Security came to. Nil is a cluster without; every method works on it.
type security struct {
	Security
	authority *Authority
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

// newSecurity fills in the defaults and refuses what Kafka's files could not express.
func newSecurity(wanted *Security) (*security, error) {
	if wanted == nil {
		return nil, nil
	}
	s := &security{Security: *wanted}
	if s.Mechanisms == nil {
		s.Mechanisms = []string{MechanismPlain, MechanismSCRAM256, MechanismSCRAM512}
	}
	if s.Users == nil {
		s.Users = DefaultUsers()
	}
	s.Mechanisms, s.Users = slices.Clone(s.Mechanisms), slices.Clone(s.Users)
	if len(s.Mechanisms) == 0 || len(s.Users) == 0 {
		return nil, errors.New("needs a mechanism and a user")
	}
	for _, name := range s.Mechanisms {
		if loginModules[name] == "" {
			return nil, fmt.Errorf("unknown mechanism %q", name)
		}
	}
	for _, user := range s.Users {
		if !plainWord.MatchString(user.Name) || !plainWord.MatchString(user.Password) {
			return nil, fmt.Errorf("user %q: name and password must be of A-Z a-z 0-9 . _ -", user.Name)
		}
	}
	var err error
	s.authority, err = NewAuthority()
	return s, err
}

var loginModules = map[string]string{
	MechanismPlain:       "org.apache.kafka.common.security.plain.PlainLoginModule",
	MechanismSCRAM256:    "org.apache.kafka.common.security.scram.ScramLoginModule",
	MechanismSCRAM512:    "org.apache.kafka.common.security.scram.ScramLoginModule",
	MechanismOAuthBearer: "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}

// scramCredentials are those the data folder is formatted with, as the tool takes them.
func (s *security) scramCredentials() []string {
	if s == nil {
		return nil
	}
	var credentials []string
	for _, mechanism := range []string{MechanismSCRAM256, MechanismSCRAM512} {
		if !slices.Contains(s.Mechanisms, mechanism) {
			continue
		}
		for _, user := range s.Users {
			credentials = append(credentials, fmt.Sprintf("%s=[name=%s,password=%s]", mechanism, user.Name, user.Password))
		}
	}
	slices.Sort(credentials)
	return credentials
}

// install writes the certificates into the run folder and returns the properties that are the same for every node.
func (s *security) install(dir string) (map[string]string, error) {
	if s == nil {
		return map[string]string{}, nil
	}
	server, err := s.authority.Issue(s.Certificate, serverName)
	if err != nil {
		return nil, err
	}
	keys, trusted := filepath.Join(dir, "server.pem"), filepath.Join(dir, "ca.pem")
	err = errors.Join(os.WriteFile(keys, server.keyStore(), 0o600), os.WriteFile(trusted, s.authority.PEM(), 0o600))
	return s.properties(keys, trusted), err
}

func (s *security) properties(keys, trusted string) map[string]string {
	properties := map[string]string{
		"ssl.keystore.type": "PEM", "ssl.keystore.location": keys,
		"ssl.truststore.type": "PEM", "ssl.truststore.location": trusted,
		"sasl.enabled.mechanisms": strings.Join(s.Mechanisms, ","),
		"authorizer.class.name":   "org.apache.kafka.metadata.authorizer.StandardAuthorizer",

		// For Cluster.ReplaceCertificate, which may put another name on it.
		"ssl.allow.dn.changes": "true", "ssl.allow.san.changes": "true",
	}
	super, passwords := []string{"User:ANONYMOUS"}, ""
	for _, user := range s.Users {
		passwords += fmt.Sprintf(" user_%s=%q", user.Name, user.Password)
		if user.Super {
			super = append(super, "User:"+user.Name)
		}
	}
	properties["super.users"] = strings.Join(super, ";")
	for _, listener := range []string{ListenerSASLPlaintext, ListenerSASLSSL} {
		for _, mechanism := range s.Mechanisms {
			prefix := "listener.name." + strings.ToLower(listener) + "." + strings.ToLower(mechanism) + "."
			jaas := loginModules[mechanism] + " required"
			if mechanism == MechanismPlain {
				jaas += passwords
			}
			properties[prefix+"sasl.jaas.config"] = jaas + ";"
			if s.MaxReauth > 0 {
				properties[prefix+"connections.max.reauth.ms"] = strconv.FormatInt(s.MaxReauth.Milliseconds(), 10)
			}
		}
	}
	if s.ClientCertificates {
		prefix := "listener.name." + strings.ToLower(ListenerSSL) + "."
		properties[prefix+"ssl.client.auth"] = "required"
		properties[prefix+"ssl.principal.mapping.rules"] = "RULE:^.*CN=([^,]+).*$/$1/"
	}
	return properties
}

// Mechanism logs the user in by one of the Mechanism constants, in the form kgo.SASL takes.
func (u User) Mechanism(name string) (sasl.Mechanism, error) {
	switch name {
	case MechanismPlain:
		return plain.Auth{User: u.Name, Pass: u.Password}.AsMechanism(), nil
	case MechanismSCRAM256:
		return scram.Auth{User: u.Name, Pass: u.Password}.AsSha256Mechanism(), nil
	case MechanismSCRAM512:
		return scram.Auth{User: u.Name, Pass: u.Password}.AsSha512Mechanism(), nil
	case MechanismOAuthBearer:
		return oauth.Auth{Token: UnsecuredToken(u.Name, tokenLifetime)}.AsMechanism(), nil
	}
	return nil, fmt.Errorf("unknown mechanism %q", name)
}

// tokenLifetime is that of a token made for User.Mechanism.
const tokenLifetime = time.Hour

// UnsecuredToken makes an unsigned token for OAUTHBEARER, valid from now on.
func UnsecuredToken(user string, lifetime time.Duration) string {
	now := time.Now()
	part := func(claims map[string]any) string {
		text, err := json.Marshal(claims)
		if err != nil { // strings and numbers always have a JSON form
			panic(err)
		}
		return base64.RawURLEncoding.EncodeToString(text)
	}
	return part(map[string]any{"alg": "none"}) + "." +
		part(map[string]any{"sub": user, "iat": now.Unix(), "exp": now.Add(lifetime).Unix()}) + "."
}

// letsClientsIn proves the secured listeners once: SASL_SSL by every mechanism, the others by one way each.
func (n *Node) letsClientsIn(ctx context.Context) error {
	s := n.cluster.security
	if s == nil {
		return nil
	}
	for _, mechanism := range s.Mechanisms {
		if _, err := n.tryListener(ctx, ListenerSASLSSL, mechanism); err != nil {
			return err
		}
	}
	if _, err := n.tryListener(ctx, ListenerSASLPlaintext, s.Mechanisms[0]); err != nil {
		return err
	}
	_, err := n.tryListener(ctx, ListenerSSL, "")
	return err
}

// tryListener connects as the first user. Whether the certificate is a good one is the business of tests.
func (n *Node) tryListener(ctx context.Context, name, mechanism string) (lifetime time.Duration, err error) {
	s := n.cluster.security
	p, err := newProbe(ctx, n.AddrOf(name))
	if err != nil {
		return 0, err
	}
	defer p.close()
	if name != ListenerSASLPlaintext {
		config := &tls.Config{InsecureSkipVerify: true} // some tests want a bad one
		if s.ClientCertificates {
			own, err := s.authority.Issue(ValidCertificate, s.Users[0].Name)
			if err != nil {
				return 0, err
			}
			config.Certificates = []tls.Certificate{own.TLS()}
		}
		if err := p.startTLS(ctx, config); err != nil {
			return 0, err
		}
	}
	if mechanism == "" { // a refused client certificate shows only with the first answer
		return 0, p.greet(ctx)
	}
	login, err := s.Users[0].Mechanism(mechanism)
	if err != nil {
		return 0, err
	}
	return p.logIn(ctx, login)
}

// Users are those of Options.Security, none without.
func (c *Cluster) Users() []User {
	if c.security == nil {
		return nil
	}
	return slices.Clone(c.security.Users)
}

// User finds one of Users by name; one that is not there has no password.
func (c *Cluster) User(name string) User {
	for _, user := range c.Users() {
		if user.Name == name {
			return user
		}
	}
	return User{Name: name}
}

// Authority issued the nodes' certificates; nil without Options.Security.
func (c *Cluster) Authority() *Authority {
	if c.security == nil {
		return nil
	}
	return c.security.authority
}

// CA is the pool that trusts the nodes' certificates; nil without Options.Security.
func (c *Cluster) CA() *x509.CertPool {
	if c.security == nil {
		return nil
	}
	return c.security.authority.Pool()
}

// TLS is a client's configuration that trusts the nodes' certificates and nothing else.
func (c *Cluster) TLS() *tls.Config {
	return &tls.Config{RootCAs: c.CA(), MinVersion: tls.VersionTLS12}
}
