package wire

import (
	"errors"
	"sync"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// The wait before a broker that refused a login is tried again: doubled each time up to the most.
const (
	loginPause     = 500 * time.Millisecond
	loginPauseMost = 5 * time.Second
)

// logins remembers which brokers refused the member's login. Each of its actors retries on its own, and all with the same
// credentials; together they would knock so often that brokers and directories lock accounts. So after a refusal one
// connection at a time tries, after a pause, and all others fail at once with the refusal there was.
type logins struct {
	mu      sync.Mutex
	refused map[string]*refusal
}

// refusal is what is known of one address.
type refusal struct {
	err   error
	pause time.Duration
	// at is when the refusal came, until the end of the pause after it.
	at, until time.Time
	// trying is true while one connection tries again.
	trying bool
}

// enter begins a login at an address; leave must be called with how it ended. The error is the refusal that still stands.
func (l *logins) enter(addr string) (leave func(error), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if r := l.refused[addr]; r != nil {
		if r.trying || now.Before(r.until) {
			return nil, r.err
		}
		r.trying = true
	}
	return func(err error) { l.left(addr, now, err) }, nil
}

func (l *logins) left(addr string, began time.Time, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.refused[addr]
	if r != nil && !began.Before(r.at) {
		r.trying = false
	}
	var login *kafka.AuthError
	var code kafka.ErrorCode
	switch {
	case err == nil:
		delete(l.refused, addr)
	case !errors.As(err, &login) || !errors.As(err, &code): // it did not come so far
	case r == nil:
		if l.refused == nil {
			l.refused = make(map[string]*refusal)
		}
		l.refused[addr] = newRefusal(login, loginPause)
	case !began.Before(r.at): // not one of those that were under way with the first
		l.refused[addr] = newRefusal(login, min(2*r.pause, loginPauseMost))
	}
}

func newRefusal(err error, pause time.Duration) *refusal {
	now := time.Now()
	return &refusal{err: err, pause: pause, at: now, until: now.Add(pause)}
}
