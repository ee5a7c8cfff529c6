package launch

import (
	"errors"
	"strings"
)

// ErrUnavailable is matched by every error of Start that means: this machine has no way to a real Kafka. A test then
// skips, or fails if Required.
var ErrUnavailable = errors.New("no real Kafka on this machine")

// UnavailableError names what would have to be installed. errors.Is(err, ErrUnavailable) holds.
type UnavailableError struct {
	// Missing lists the missing programs, for example "java 17 or newer (JAVA_HOME or PATH)".
	Missing []string
}

// Error says what is missing and which variable would do instead.
func (e *UnavailableError) Error() string {
	return ErrUnavailable.Error() + ": missing " + strings.Join(e.Missing, " and ") +
		"; install it or set TROUPE_KAFKA_BROKERS"
}

// Is makes errors.Is(err, ErrUnavailable) true.
func (e *UnavailableError) Is(target error) bool { return target == ErrUnavailable }
