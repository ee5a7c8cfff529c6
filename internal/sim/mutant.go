package sim

import (
	"fmt"
	"slices"
	"strings"
)

// Mutant is a deliberate fault in the modeled shell. The machines themselves are never touched.
type Mutant uint8

// The mutants. Each says which guarantee it must break.
const (
	// MutantNone is the shell as it should be.
	MutantNone Mutant = iota
	// MutantCommitAfterFence does not tell the committer that a partition is fenced, nor takes the key away (G4).
	MutantCommitAfterFence
	// MutantAckTwice counts every acknowledgment for two records (G3).
	MutantAckTwice
	// MutantNoHeartbeatInDrain sends no heartbeat while partitions drain (G6).
	MutantNoHeartbeatInDrain
	// MutantDropMemberID forgets the member id when a JoinGroup is tried again (ID).
	MutantDropMemberID
	// MutantStaleEpoch takes an acknowledgment of an old epoch for one of the present (G3).
	MutantStaleEpoch
	// MutantCommitPosition offers the position instead of the contiguous point, past what is not acknowledged (G3).
	MutantCommitPosition
	// MutantJoinEarly calls partitions released as soon as they are to be revoked (G5).
	MutantJoinEarly
	// MutantNoGate lets a handler start while another one is still inside (G2).
	MutantNoGate
	// MutantNoWindow delivers without asking the window (G8).
	MutantNoWindow
	// MutantNoKeyCheck sends rounds without a look at the key (G10).
	MutantNoKeyCheck
	// MutantKeepPosition starts a partition where this process left it, not where the group did (G4).
	MutantKeepPosition
	// MutantSkipFailed passes over a record that failed (G1, which the order or a commit shows).
	MutantSkipFailed
	// MutantNoFinalCommit says that the final commit was confirmed without sending one (G5).
	MutantNoFinalCommit
	// MutantFlowAfterLoss goes on delivering after the partition was lost (G4).
	MutantFlowAfterLoss
	// MutantIgnoreDoubt never tells the link that the coordinator is gone (PROGRESS).
	MutantIgnoreDoubt
	// MutantOldGeneration sends commits with the generation before the present one (PROGRESS).
	MutantOldGeneration
	// MutantReplacedEpoch forgets a lost partition's epoch when the partition is granted anew (G8).
	MutantReplacedEpoch
	// MutantOfferAfterRelease offers what a handler acknowledged after its partition was released (G3).
	MutantOfferAfterRelease
	// MutantNoDrain lets a partition go while its handler is inside (G5).
	MutantNoDrain
	// MutantSessionNotAsked delivers and commits without a look at the session (WOKEN).
	MutantSessionNotAsked
	// MutantNoNudge waits an interval before the first heartbeat of a generation (ENTERED).
	MutantNoNudge
	// MutantKeyAskedOnce asks the key when a round is queued, not when it is sent (G10).
	MutantKeyAskedOnce
	// MutantSessionFromEntering counts a session from entering the generation, not from sending SyncGroup (ENTERED).
	MutantSessionFromEntering
	// MutantNoSessionTrusted delivers and commits before the heartbeat has begun the first session (WOKEN).
	MutantNoSessionTrusted
	// MutantLossByMessage does not mark a partition as lost before its actor has heard of it (G4).
	MutantLossByMessage
	// MutantLaneFreed frees a lane as soon as its record is claimed, not when it is settled (G2).
	MutantLaneFreed
	// MutantUnparkedEarly tries a record again at once, while others of its lane are not settled (G2).
	MutantUnparkedEarly
	// MutantClaimStopped lets workers claim when the flow was stopped (G4).
	MutantClaimStopped
	// MutantOldEngine counts an acknowledgment of an engine that has ended in the partition's present one (G2, G3).
	MutantOldEngine
	// MutantCommitHighest offers the offset after the highest finished record, not the contiguous point (G3).
	MutantCommitHighest
	// MutantWindowNeverCloses gives an engine records for as long as it has room, whatever the window says (G8).
	MutantWindowNeverCloses
	// MutantMapUnchecked takes an offset map that stands beside another offset, at its distances (G1).
	MutantMapUnchecked
	// MutantMapEpochIgnored takes a record for finished whose leader epoch is above the map's (G1).
	MutantMapEpochIgnored
	// MutantTakeBackForgets leaves with a user's actor that failed what it had not settled (PROGRESS).
	MutantTakeBackForgets
	// MutantFillForgotten never gives out a batch that stays below its size (PROGRESS).
	MutantFillForgotten
	// MutantMapPastWindow passes over the records of an offset map without asking the window again (G8).
	MutantMapPastWindow
	// MutantFlushAsksStrategy lets a partition go without a flush when the strategy commits nothing by itself (G5).
	MutantFlushAsksStrategy
	// MutantStrategyIgnored commits as soon as something is finished, whatever the strategy (STRATEGY).
	MutantStrategyIgnored
	// MutantPauseLetsNext lets a handler that is inside when the user pauses begin its next record (PAUSE).
	MutantPauseLetsNext
	// MutantPauseReturnsEarly lets Pause return while a handler is inside (PAUSE).
	MutantPauseReturnsEarly
	// MutantRetryForgotten never tries a parked lane again (PROGRESS).
	MutantRetryForgotten
	// MutantResumeForgets forgets the retries that came due while the user had paused (PROGRESS).
	MutantResumeForgets
	// MutantSentWhileHeld sends a round that waited for the key when the JoinGroup went out (HELD).
	MutantSentWhileHeld
	// MutantCommitsNotHeld does not tell the committer of a JoinGroup, so that commits of what is kept go on (HELD).
	MutantCommitsNotHeld
	// MutantJoinWhileRevoking has a cooperative member send its next JoinGroup while partitions that it gives up still drain (G5).
	MutantJoinWhileRevoking
	// MutantStaleClaim has a member claim what it has lost, in the generation that it lost it in (CLAIM).
	MutantStaleClaim
	// MutantKeptRevoked has a cooperative member give up everything in each rebalance, as an eager one does (KEPT).
	MutantKeptRevoked
	// MutantOldHeartbeats has heartbeats go on for the generation that was entered when the next one was joined (KEPT).
	MutantOldHeartbeats
	// MutantFencedAgain joins anew when another process has taken the place of a static member (STATIC).
	MutantFencedAgain
	// MutantGrowthUnseen does not tell the group leader that the topic has changed (PROGRESS).
	MutantGrowthUnseen
	// MutantTopicIDIgnored takes a topic that was made anew for the one before (LOG, G1).
	MutantTopicIDIgnored
	// MutantWindowKept keeps what was delivered above the point where the log has lost its end (LOG, G1).
	MutantWindowKept
	// MutantCommitOverCut offers what was finished above that point, while a handler is still inside (LOG).
	MutantCommitOverCut
	// MutantCommitEpochIgnored starts at a committed offset without a look at its leader epoch (LOG, G1).
	MutantCommitEpochIgnored
	// MutantFailedForgotten forgets what has failed below the point where the log has lost its end (G1, G3).
	MutantFailedForgotten
	// MutantUnprovenCommits commits where it starts as soon as a commit of another incarnation of the topic was read (G4).
	MutantUnprovenCommits
	// MutantFencedSent sends a round that waited while the topic of one of its partitions was made anew (G4).
	MutantFencedSent
	// MutantLapseForGood holds what waited when a session lapsed until it is cut off, whatever generation begins (PROGRESS).
	MutantLapseForGood
	// MutantWakeTrusted takes waking up for a sign of life (WOKEN).
	MutantWakeTrusted
	// MutantTokenOvertakes grants a token that nobody has to who asks last, though somebody waits for it (TOKEN).
	MutantTokenOvertakes
	// MutantRevokedUnderToken leaves partitions under the tokens of users when they are given up (TOKEN).
	MutantRevokedUnderToken
	// MutantLostUnderToken leaves them there when they are lost (TOKEN).
	MutantLostUnderToken
	// MutantHandRevives has the giver's token live again when the receiver returns what it was handed (TOKEN).
	MutantHandRevives
	// MutantNoAuthority carries out control calls without asking whether their caller may (TOKEN).
	MutantNoAuthority
	// MutantCallbackOfOldEpoch gives a callback that had to wait the partitions that were lost meanwhile (TOKEN).
	MutantCallbackOfOldEpoch
	// MutantFetchedKept delivers what was fetched before a seek (G1, STATE, LOG).
	MutantFetchedKept
	// MutantSeekCommitsOld commits the position before a seek forward in the run of the new one (SEEK).
	MutantSeekCommitsOld
	// MutantSeeksTooFar goes on one record behind the one that was sought (G1, G3).
	MutantSeeksTooFar
	// MutantSkipsTwo skips the record after the one that was asked for as well (G1, G2, G3).
	MutantSkipsTwo
	// MutantSkippedStays counts a record as skipped and leaves it with the handler (SKIP).
	MutantSkippedStays
	// MutantCommitsHalf places the first half of a commit over several partitions and confirms all of it (PLACED).
	MutantCommitsHalf
	// MutantCallNotGathered sends each partition of such a commit by itself (PLACED).
	MutantCallNotGathered
	mutantEnd
)

var mutantNames = [...]struct{ name, breaks string }{
	MutantNone:               {"none", "ok"},
	MutantCommitAfterFence:   {"commit-after-fence", "G4 G10"},
	MutantAckTwice:           {"ack-counted-twice", "G3"},
	MutantNoHeartbeatInDrain: {"no-heartbeat-in-drain", "G6"},
	MutantDropMemberID:       {"member-id-dropped-on-retry", "ID"},
	MutantStaleEpoch:         {"stale-epoch-accepted", "G3"},
	MutantCommitPosition:     {"commit-past-a-gap", "G3"},
	MutantJoinEarly:          {"join-before-released", "G5"},
	MutantNoGate:             {"no-gate", "G2"},
	MutantNoWindow:           {"no-window", "G8"},
	MutantNoKeyCheck:         {"no-key-check", "G10"},
	MutantKeepPosition:       {"position-from-memory", "G4"},
	MutantSkipFailed:         {"failed-record-skipped", "G1 G2 G3"},
	MutantNoFinalCommit:      {"no-final-commit", "G5"},
	MutantFlowAfterLoss:      {"flow-after-loss", "G2 G4"},
	MutantIgnoreDoubt:        {"doubt-ignored", "PROGRESS"},
	MutantOldGeneration:      {"old-generation-in-commits", "PROGRESS"},
	MutantNoDrain:            {"no-drain", "G5"},
	MutantOfferAfterRelease:  {"offer-after-release", "G3"},
	MutantReplacedEpoch:      {"replaced-epoch-forgotten", "G8"},
	MutantSessionNotAsked:    {"session-not-asked", "WOKEN"},
	MutantNoNudge:            {"no-nudge-on-entering", "ENTERED"},
	MutantKeyAskedOnce:       {"key-asked-once", "G4 G10"},

	MutantSessionFromEntering: {"session-from-entering", "ENTERED"},
	MutantNoSessionTrusted:    {"no-session-trusted", "WOKEN ENTERED"},
	MutantLossByMessage:       {"loss-told-by-message", "G4"},
	MutantLaneFreed:           {"lane-freed-at-claim", "G2"},
	MutantUnparkedEarly:       {"unparked-before-settled", "G2"},
	MutantClaimStopped:        {"claims-while-stopped", "G4"},
	MutantOldEngine:           {"old-engine-counted", "G2 G3"},
	MutantCommitHighest:       {"commit-highest-finished", "G3"},
	MutantWindowNeverCloses:   {"window-never-closes", "G8"},
	MutantMapUnchecked:        {"map-of-another-offset", "G1"},
	MutantMapEpochIgnored:     {"map-epoch-ignored", "G1"},
	MutantTakeBackForgets:     {"take-back-forgets", "PROGRESS"},
	MutantFillForgotten:       {"fill-forgotten", "PROGRESS"},
	MutantMapPastWindow:       {"map-past-the-window", "G8"},
	MutantFlushAsksStrategy:   {"flush-asks-strategy", "G5"},
	MutantStrategyIgnored:     {"strategy-ignored", "STRATEGY"},
	MutantPauseLetsNext:       {"pause-lets-next-begin", "PAUSE"},
	MutantPauseReturnsEarly:   {"pause-returns-early", "PAUSE"},
	MutantRetryForgotten:      {"retry-forgotten", "PROGRESS"},
	MutantResumeForgets:       {"resume-forgets-parked", "PROGRESS"},
	MutantSentWhileHeld:       {"sent-while-held", "HELD"},
	MutantCommitsNotHeld:      {"kept-commits-not-held", "HELD"},
	MutantJoinWhileRevoking:   {"join-while-revoking", "G5"},
	MutantStaleClaim:          {"stale-claim-after-loss", "CLAIM"},
	MutantKeptRevoked:         {"kept-revoked", "KEPT"},
	MutantOldHeartbeats:       {"old-heartbeats", "KEPT"},
	MutantFencedAgain:         {"fenced-joins-again", "STATIC"},
	MutantGrowthUnseen:        {"growth-unseen", "PROGRESS"},
	MutantTopicIDIgnored:      {"topic-id-ignored", "LOG G1"},
	MutantWindowKept:          {"window-kept-over-truncation", "LOG G1"},
	MutantCommitOverCut:       {"commit-over-truncation", "LOG"},
	MutantCommitEpochIgnored:  {"commit-epoch-ignored", "LOG G1"},
	MutantFailedForgotten:     {"failed-forgotten-over-truncation", "G1 G3"},
	MutantUnprovenCommits:     {"unproven-commits", "G4"},
	MutantFencedSent:          {"fenced-round-sent", "G4"},
	MutantLapseForGood:        {"lapse-for-good", "PROGRESS"},
	MutantWakeTrusted:         {"frozen-process-acts", "WOKEN"},
	MutantTokenOvertakes:      {"token-overtakes", "TOKEN"},
	MutantRevokedUnderToken:   {"revoked-under-token", "TOKEN"},
	MutantLostUnderToken:      {"lost-under-token", "TOKEN"},
	MutantHandRevives:         {"hand-revives", "TOKEN"},
	MutantNoAuthority:         {"no-authority", "TOKEN"},
	MutantCallbackOfOldEpoch:  {"callback-of-old-epoch", "TOKEN"},
	MutantFetchedKept:         {"fetched-kept-over-seek", "G1 STATE LOG"},
	MutantSeekCommitsOld:      {"seek-commits-old-position", "SEEK"},
	MutantSeeksTooFar:         {"seeks-too-far", "G1 G3"},
	MutantSkipsTwo:            {"skips-two", "G1 G2 G3"},
	MutantSkippedStays:        {"skipped-stays", "SKIP"},
	MutantCommitsHalf:         {"commits-half", "PLACED"},
	MutantCallNotGathered:     {"call-not-gathered", "PLACED"},
}

// String returns the mutant's name.
func (m Mutant) String() string {
	if int(m) < len(mutantNames) {
		return mutantNames[m].name
	}
	return fmt.Sprintf("Mutant(%d)", uint8(m))
}

// Breaks reports whether that is a guarantee the mutant is expected to break first.
func (m Mutant) Breaks(guarantee string) bool {
	return slices.Contains(strings.Fields(mutantNames[m].breaks), guarantee)
}

// Mutants returns all mutants.
func Mutants() []Mutant {
	var all []Mutant
	for m := MutantNone + 1; m < mutantEnd; m++ {
		all = append(all, m)
	}
	return all
}

// ParseMutant returns the mutant of that name.
func ParseMutant(name string) (Mutant, error) {
	for m, known := range mutantNames {
		if known.name == name {
			return Mutant(m), nil
		}
	}
	return MutantNone, fmt.Errorf("no mutant %q", name)
}
