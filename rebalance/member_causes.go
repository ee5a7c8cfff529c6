package rebalance

import (
	"errors"

	"github.com/troupego/troupe/pkg/kafka"
)

// verdict is what an error means for a JoinGroup or SyncGroup.
type verdict uint8

const (
	// verdictRetry: the same request may succeed in a moment.
	verdictRetry verdict = iota
	// verdictSlow: it will succeed only when somebody changes something: a right, a password, a limit.
	verdictSlow
	// verdictRejoin: the generation is over, join again with the same member id.
	verdictRejoin
	// verdictNewID: join at once with the member id that came with the answer.
	verdictNewID
	// verdictForgetID: the coordinator does not know the member, join as a new one.
	verdictForgetID
	// verdictFatal: no further try can succeed.
	verdictFatal
)

// verdicts is the table of causes for the codes of JoinGroup and SyncGroup. Codes that are not in it are retried: with the
// usual backoff when the protocol calls them retriable, slowly when it does not.
var verdicts = map[kafka.ErrorCode]verdict{
	kafka.CoordinatorLoadInProgress: verdictRetry,
	kafka.CoordinatorNotAvailable:   verdictRetry,
	kafka.NotCoordinator:            verdictRetry,
	kafka.RequestTimedOut:           verdictRetry,
	kafka.NetworkException:          verdictRetry,
	kafka.UnknownServerError:        verdictRetry,

	kafka.RebalanceInProgress: verdictRejoin,
	kafka.IllegalGeneration:   verdictRejoin,
	kafka.MemberIDRequired:    verdictNewID,
	kafka.UnknownMemberID:     verdictForgetID,

	kafka.GroupAuthorizationFailed:   verdictSlow,
	kafka.TopicAuthorizationFailed:   verdictSlow,
	kafka.ClusterAuthorizationFailed: verdictSlow,
	kafka.GroupMaxSizeReached:        verdictSlow,
	kafka.InconsistentGroupProtocol:  verdictSlow, // a rolling upgrade may mend it
	kafka.SaslAuthenticationFailed:   verdictSlow,
	kafka.UnsupportedSaslMechanism:   verdictSlow,
	kafka.IllegalSaslState:           verdictSlow,

	kafka.FencedInstanceID:      verdictFatal,
	kafka.InvalidSessionTimeout: verdictFatal,
	kafka.InvalidGroupID:        verdictFatal,
	kafka.UnsupportedVersion:    verdictFatal,
}

// verdictOf reads the table. An error without a code is the network's and passes by itself, except that a broker without
// a usable version of the request will not get one.
func verdictOf(err error) verdict {
	var code kafka.ErrorCode
	if errors.As(err, &code) {
		if v, ok := verdicts[code]; ok {
			return v
		}
		if code.Retriable() {
			return verdictRetry
		}
		return verdictSlow
	}
	var version *kafka.VersionError
	if errors.As(err, &version) {
		return verdictFatal
	}
	var connect *kafka.ConnectError
	if errors.As(err, &connect) && connect.Phase == "authenticate" {
		return verdictSlow
	}
	return verdictRetry
}

// doubt is what an error of a heartbeat or a commit says about the membership.
type doubt uint8

const (
	// doubtNone: nothing. A transport error alone proves nothing; the session decides.
	doubtNone doubt = iota
	// doubtRebalance: a rebalance is under way, the membership is good.
	doubtRebalance
	// doubtGeneration: the group went on without this member; its id is still good.
	doubtGeneration
	// doubtMember: the coordinator does not know the member.
	doubtMember
	// doubtInstance: another process uses the same group instance id.
	doubtInstance
	// doubtOther: an error that says nothing of the membership and that should be seen, such as a right that is missing.
	doubtOther
)

func doubtOf(err error) doubt {
	var code kafka.ErrorCode
	if !errors.As(err, &code) {
		return doubtNone
	}
	switch code {
	case kafka.RebalanceInProgress:
		return doubtRebalance
	case kafka.IllegalGeneration:
		return doubtGeneration
	case kafka.UnknownMemberID:
		return doubtMember
	case kafka.FencedInstanceID:
		return doubtInstance
	}
	if code.Retriable() {
		return doubtNone
	}
	return doubtOther
}

// described is a short cause for people: where it came from and Kafka's name of the code.
func described(source string, err error) string {
	var code kafka.ErrorCode
	if errors.As(err, &code) {
		return source + ": " + code.Error()
	}
	if err == nil {
		return source
	}
	return source + ": " + err.Error()
}
