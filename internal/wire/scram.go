package wire

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"strconv"
	"strings"
	"sync"

	"github.com/IBM/sarama"
)

// The iterations a broker may ask for. Kafka's are 4,096 to 16,384: fewer would give the password away to who reads the
// exchange, and far more would only keep us busy.
const (
	scramLeastIterations = 4096
	scramMostIterations  = 1 << 20
)

// scramHeader is the GS2 header without an authorization id: no channel binding, which Kafka does not know.
const scramHeader = "n,,"

// errScram is what an exchange that went wrong fails with.
var errScram = errors.New("wire: SCRAM")

// scramClient is the client's side of SCRAM (RFC 5802), for users who do not bring one of their own. Names and passwords
// go in as their UTF-8 bytes, without SASLprep, because that is what Kafka stores.
type scramClient struct {
	hash func() hash.Hash
	// keys are shared by the connections of a network.
	keys *scramKeys

	name, password, authzID string
	nonce                   string
	// sent is the client's first message without its GS2 header.
	sent string
	// proof is the signature the broker must answer with.
	proof []byte
	step  int
	done  bool
}

// scramKeys keeps the last key made of a password. Making one takes milliseconds, on purpose; connections are made anew
// before each session's end, and all get the same salt until the password is set again.
type scramKeys struct {
	mu   sync.Mutex
	from string
	key  []byte
}

func (k *scramKeys) make(hash func() hash.Hash, password string, salt []byte, iterations int) ([]byte, error) {
	from := fmt.Sprintf("%d %x %s", iterations, salt, password)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.from == from {
		return k.key, nil
	}
	key, err := pbkdf2.Key(hash, password, salt, iterations, hash().Size())
	if err == nil {
		k.from, k.key = from, key
	}
	return key, err
}

// scramGenerator returns sarama's hook for a mechanism, nil when it is none of SCRAM.
func scramGenerator(mechanism sarama.SASLMechanism) func() sarama.SCRAMClient {
	keys := &scramKeys{}
	switch mechanism {
	case sarama.SASLTypeSCRAMSHA256:
		return func() sarama.SCRAMClient { return &scramClient{hash: sha256.New, keys: keys} }
	case sarama.SASLTypeSCRAMSHA512:
		return func() sarama.SCRAMClient { return &scramClient{hash: sha512.New, keys: keys} }
	}
	return nil
}

// Begin implements sarama.SCRAMClient.
func (c *scramClient) Begin(name, password, authzID string) error {
	c.name, c.password, c.authzID = name, password, authzID
	c.nonce = rand.Text()
	c.step, c.done = 0, false
	return nil
}

// Done implements sarama.SCRAMClient.
func (c *scramClient) Done() bool { return c.done }

// Step implements sarama.SCRAMClient: it returns the message to send after the broker's last one.
func (c *scramClient) Step(challenge string) (string, error) {
	c.step++
	switch c.step {
	case 1:
		c.sent = "n=" + scramEscape(c.name) + ",r=" + c.nonce
		return c.header() + c.sent, nil
	case 2:
		return c.answer(challenge)
	case 3:
		return "", c.verify(challenge)
	}
	return "", fmt.Errorf("%w: a message too many", errScram)
}

func (c *scramClient) header() string {
	if c.authzID == "" {
		return scramHeader
	}
	return "n,a=" + scramEscape(c.authzID) + ","
}

func scramEscape(s string) string {
	return strings.NewReplacer("=", "=3D", ",", "=2C").Replace(s)
}

// scramAttributes reads a message's attributes by their letter.
func scramAttributes(message string) map[byte]string {
	out := make(map[byte]string)
	for part := range strings.SplitSeq(message, ",") {
		if len(part) >= 2 && part[1] == '=' {
			out[part[0]] = part[2:]
		}
	}
	return out
}

// answer proves that we know the password, and computes how the broker must prove it.
func (c *scramClient) answer(challenge string) (string, error) {
	a := scramAttributes(challenge)
	if a['m'] != "" {
		return "", fmt.Errorf("%w: the broker wants an extension", errScram)
	}
	if len(a['r']) <= len(c.nonce) || !strings.HasPrefix(a['r'], c.nonce) {
		return "", fmt.Errorf("%w: the broker's nonce does not go on from ours", errScram)
	}
	salt, err := base64.StdEncoding.DecodeString(a['s'])
	if err != nil || len(salt) == 0 {
		return "", fmt.Errorf("%w: the broker sent no salt", errScram)
	}
	iterations, err := strconv.Atoi(a['i'])
	if err != nil || iterations < scramLeastIterations || iterations > scramMostIterations {
		return "", fmt.Errorf("%w: the broker asks for %.20q iterations, %d to %d are possible",
			errScram, a['i'], scramLeastIterations, scramMostIterations)
	}
	salted, err := c.keys.make(c.hash, c.password, salt, iterations)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errScram, err)
	}
	final := "c=" + base64.StdEncoding.EncodeToString([]byte(c.header())) + ",r=" + a['r']
	exchange := c.sent + "," + challenge + "," + final
	clientKey := c.mac(salted, "Client Key")
	stored := c.hash()
	stored.Write(clientKey)
	proof := c.mac(stored.Sum(nil), exchange)
	for i := range proof {
		proof[i] ^= clientKey[i]
	}
	c.proof = c.mac(c.mac(salted, "Server Key"), exchange)
	return final + ",p=" + base64.StdEncoding.EncodeToString(proof), nil
}

// verify checks that the broker knows the password, too.
func (c *scramClient) verify(message string) error {
	a := scramAttributes(message)
	if a['e'] != "" {
		return fmt.Errorf("%w: the broker says %.100q", errScram, a['e'])
	}
	proof, err := base64.StdEncoding.DecodeString(a['v'])
	if err != nil || !hmac.Equal(proof, c.proof) {
		return fmt.Errorf("%w: the broker does not prove that it knows the password", errScram)
	}
	c.done = true
	return nil
}

func (c *scramClient) mac(key []byte, message string) []byte {
	m := hmac.New(c.hash, key)
	m.Write([]byte(message))
	return m.Sum(nil)
}
