package rebalance

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// ResetPolicy says where a partition starts that has no usable position (auto.offset.reset): [ResetEarliest], which is the
// zero value, [ResetLatest], [ResetNone], or what [ResetByDuration] and [ResetAt] return. Policies can be compared with ==.
type ResetPolicy int64

const (
	// ResetEarliest starts at the first record there is. It is the default: nothing is skipped.
	ResetEarliest ResetPolicy = kindEarliest
	// ResetLatest starts at the end; what was written before is not read.
	ResetLatest ResetPolicy = kindLatest
	// ResetNone does not start at all and reports [ErrNoOffset].
	ResetNone ResetPolicy = kindNone
)

// A policy is one number, so that the plain ones are constants: its lowest bits say which kind it is, the others are the
// milliseconds of those kinds that have any.
const (
	kindEarliest = iota
	kindLatest
	kindNone
	kindByDuration
	kindAt

	resetKindBits = 3
	resetKindMask = 1<<resetKindBits - 1
)

// The bounds of the milliseconds in a policy.
const (
	maxResetDuration = 100 * 365 * 24 * time.Hour
	// maxResetMillis is far beyond every calendar, and what a policy has room for.
	maxResetMillis = 1<<(63-resetKindBits) - 1
)

// ResetByDuration starts at the first record that is not older than d, by the records' timestamps, when the position is
// needed (auto.offset.reset=by_duration, KIP-1106); at the end where there is none. Above 0, at most 100 years; counted in
// milliseconds, and a part of one counts as a whole one.
func ResetByDuration(d time.Duration) ResetPolicy {
	millis := int64(d / time.Millisecond)
	switch rest := d % time.Millisecond; {
	case rest > 0:
		millis++
	case rest < 0:
		millis--
	}
	return kindByDuration | ResetPolicy(millis<<resetKindBits)
}

// ResetAt starts at the first record whose timestamp is not below millis, in milliseconds since the Unix epoch, as
// time.Time.UnixMilli and [kafka.Record.TimestampMillis] have it; at the end where there is none. At least 0.
func ResetAt(millis int64) ResetPolicy {
	millis = max(min(millis, maxResetMillis), -maxResetMillis)
	return kindAt | ResetPolicy(millis<<resetKindBits)
}

func (p ResetPolicy) kind() int64   { return int64(p) & resetKindMask }
func (p ResetPolicy) millis() int64 { return int64(p) >> resetKindBits }

// String returns Kafka's word, such as "earliest" or "by_duration:PT1H"; "timestamp:" and milliseconds for [ResetAt].
func (p ResetPolicy) String() string {
	switch p {
	case ResetEarliest:
		return "earliest"
	case ResetLatest:
		return "latest"
	case ResetNone:
		return "none"
	}
	switch p.kind() {
	case kindByDuration:
		return "by_duration:" + isoDuration(p.millis())
	case kindAt:
		return "timestamp:" + strconv.FormatInt(p.millis(), 10)
	}
	return "ResetPolicy(" + strconv.FormatInt(int64(p), 10) + ")"
}

// isoDuration writes milliseconds as ISO 8601 does, in days, hours, minutes and seconds.
func isoDuration(millis int64) string {
	const second, minute, hour, day = 1000, 60 * 1000, 3600 * 1000, 24 * 3600 * 1000
	var b strings.Builder
	if millis < 0 {
		b.WriteByte('-')
		millis = -millis
	}
	b.WriteByte('P')
	if days := millis / day; days > 0 {
		fmt.Fprintf(&b, "%dD", days)
	}
	if rest := millis % day; rest > 0 || millis == 0 {
		b.WriteByte('T')
		if hours := rest / hour; hours > 0 {
			fmt.Fprintf(&b, "%dH", hours)
		}
		if minutes := rest % hour / minute; minutes > 0 {
			fmt.Fprintf(&b, "%dM", minutes)
		}
		switch seconds := rest % minute; {
		case seconds%second != 0:
			b.WriteString(strings.TrimRight(fmt.Sprintf("%d.%03d", seconds/second, seconds%second), "0") + "S")
		case seconds > 0 || millis == 0:
			fmt.Fprintf(&b, "%dS", seconds/second)
		}
	}
	return b.String()
}

// Validate returns nil, or a *[ResetPolicyError] that says what would be right.
func (p ResetPolicy) Validate() error {
	want := ""
	switch p.kind() {
	case kindEarliest, kindLatest, kindNone:
		if p.millis() != 0 {
			want = "ResetEarliest, ResetLatest, ResetNone, ResetByDuration or ResetAt"
		}
	case kindByDuration:
		if p.millis() < 1 || p.millis() > int64(maxResetDuration/time.Millisecond) {
			want = "a duration above 0 and at most 100 years (" + isoDuration(int64(maxResetDuration/time.Millisecond)) + ")"
		}
	case kindAt:
		if p.millis() < 0 {
			want = "a timestamp of at least 0 ms"
		}
	default:
		want = "ResetEarliest, ResetLatest, ResetNone, ResetByDuration or ResetAt"
	}
	if want == "" {
		return nil
	}
	return &ResetPolicyError{Policy: p, Want: want}
}

// ResetPolicyError means that a reset policy is none. It wraps [ErrConfig].
type ResetPolicyError struct {
	Policy ResetPolicy
	// Want is what would be right.
	Want string
}

// Error says what is wrong and what would be right.
func (e *ResetPolicyError) Error() string {
	return fmt.Sprintf("%v: reset policy %s: want %s", ErrConfig, e.Policy, e.Want)
}

// Unwrap returns [ErrConfig].
func (e *ResetPolicyError) Unwrap() error { return ErrConfig }

// reset applies a policy; now is milliseconds since the Unix epoch.
func reset(now int64, tp kafka.TopicPartition, policy ResetPolicy, reason string) StartDecision {
	if err := policy.Validate(); err != nil {
		return StartFails{Err: fmt.Errorf("rebalance: start of %s: %w", tp, err)}
	}
	timestamp := TimestampEarliest
	switch policy.kind() {
	case kindEarliest:
	case kindLatest:
		timestamp = TimestampLatest
	case kindByDuration:
		timestamp = max(now-policy.millis(), 0)
	case kindAt:
		timestamp = policy.millis()
	default:
		return StartFails{Err: fmt.Errorf("rebalance: start of %s (%s): %w", tp, reason, ErrNoOffset)}
	}
	return StartFromReset{Timestamp: timestamp, Reason: reason}
}
