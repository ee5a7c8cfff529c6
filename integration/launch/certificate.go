package launch

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"slices"
	"time"
)

// CertificateKind says what is wrong with a certificate.
type CertificateKind int

// The kinds. All but ValidCertificate are refused by a client that looks.
const (
	// ValidCertificate is for localhost and 127.0.0.1, from an hour ago to tomorrow.
	ValidCertificate CertificateKind = iota
	// ExpiredCertificate ended an hour ago.
	ExpiredCertificate
	// NotYetValidCertificate begins in a day: a clock is wrong.
	NotYetValidCertificate
	// WrongHostCertificate is for another host name.
	WrongHostCertificate
)

// String names the kind.
func (k CertificateKind) String() string {
	switch k {
	case ValidCertificate:
		return "valid"
	case ExpiredCertificate:
		return "expired"
	case NotYetValidCertificate:
		return "not yet valid"
	case WrongHostCertificate:
		return "wrong host"
	}
	return fmt.Sprintf("CertificateKind(%d)", int(k))
}

const (
	day        = 24 * time.Hour
	serverName = "localhost"
	wrongHost  = "elsewhere.invalid"
)

// Authority issues certificates; its key never leaves memory.
type Authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	text        []byte
}

// NewAuthority makes an authority of its own kind: nothing trusts it but what is given its Pool.
func NewAuthority() (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: serialNumber(), Subject: pkix.Name{CommonName: "Troupe test authority"},
		NotBefore: time.Now().Add(-2 * day), NotAfter: time.Now().Add(7 * day),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	certificate, text, err := sign(template, template, key, key)
	if err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	return &Authority{certificate: certificate, key: key, text: text}, nil
}

// Pool trusts this authority alone.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.certificate)
	return pool
}

// PEM is the authority's certificate.
func (a *Authority) PEM() []byte { return slices.Clone(a.text) }

// Certificate is a certificate with its key.
type Certificate struct {
	// CertificatePEM and KeyPEM (PKCS#8) are one block each.
	CertificatePEM, KeyPEM []byte

	leaf *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Issue makes a certificate, for a server on this machine as well as for a client whose user is the common name.
func (a *Authority) Issue(kind CertificateKind, commonName string) (*Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serialNumber(), Subject: pkix.Name{CommonName: commonName},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(day),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:    []string{serverName}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	switch kind {
	case ValidCertificate:
	case ExpiredCertificate:
		template.NotBefore, template.NotAfter = now.Add(-day), now.Add(-time.Hour)
	case NotYetValidCertificate:
		template.NotBefore, template.NotAfter = now.Add(day), now.Add(2*day)
	case WrongHostCertificate:
		template.Subject.CommonName, template.DNSNames, template.IPAddresses = wrongHost, []string{wrongHost}, nil
	}
	leaf, text, err := sign(template, a.certificate, key, a.key)
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	keyText := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})
	return &Certificate{CertificatePEM: text, KeyPEM: keyText, leaf: leaf, key: key}, nil
}

// TLS is the certificate as tls.Config.Certificates takes it.
func (c *Certificate) TLS() tls.Certificate {
	return tls.Certificate{Certificate: [][]byte{c.leaf.Raw}, PrivateKey: c.key, Leaf: c.leaf}
}

// keyStore is the form Kafka reads.
func (c *Certificate) keyStore() []byte { return slices.Concat(c.KeyPEM, c.CertificatePEM) }

func sign(template, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) (*x509.Certificate, []byte, error) {
	encoded, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		return nil, nil, err
	}
	certificate, err := x509.ParseCertificate(encoded)
	return certificate, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: encoded}), err
}

func serialNumber() *big.Int {
	var bytes [16]byte
	rand.Read(bytes[:]) // never fails: crypto/rand ends the process instead
	bytes[0] |= 1       // never zero
	bytes[0] &= 0x7f    // never longer than the 20 bytes allowed
	return new(big.Int).SetBytes(bytes[:])
}
