package actors

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/internal/docs"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// The tables of errors in ARCHITECTURE.md are not written but observed: each machine is brought to where it waits for an
// answer, is given every error code there is, and what it does is put into words.

// errorColumn is one kind of answer: do gives it an error and says what became of it.
type errorColumn struct {
	name string
	do   func(t *testing.T, err error) string
}

// soughtCodes are codes that somebody will look for, though they come to what most do.
var soughtCodes = []kafka.ErrorCode{
	kafka.CoordinatorLoadInProgress, kafka.RequestTimedOut, kafka.InconsistentGroupProtocol, kafka.GroupMaxSizeReached,
	kafka.ClusterAuthorizationFailed, kafka.SaslAuthenticationFailed,
}

func TestArchitectureShowsWhatEachErrorOfTheGroupComesTo(t *testing.T) {
	docs.CheckPart(t, "ARCHITECTURE.md", "group errors", errorTable(t, true, soughtCodes, []errorColumn{
		{"FindCoordinator", findAnswered},
		{"JoinGroup", joinAnsweredWith},
		{"SyncGroup", syncAnsweredWith},
		{"Heartbeat", heartbeatAnsweredWith},
		{"OffsetCommit", commitAnsweredWith},
		{"OffsetFetch", offsetsAnsweredWith},
		{"LeaveGroup", leaveAnsweredWith},
		{"coordinator", func(_ *testing.T, err error) string {
			if putsCoordinatorInDoubt(err) {
				return "**find**"
			}
			return "stays"
		}},
	}))
}

func TestArchitectureShowsWhatEachErrorOfAPartitionComesTo(t *testing.T) {
	docs.CheckPart(t, "ARCHITECTURE.md", "partition errors", errorTable(t, false, nil, []errorColumn{
		{"Fetch, of a partition", func(_ *testing.T, err error) string {
			return [...]string{fetchLater: "retry", fetchElsewhere: "**metadata**", fetchOutOfRange: "**reset**"}[judgeFetch(err)]
		}},
		{"Metadata, of a topic", func(_ *testing.T, err error) string {
			if hidden(err) {
				return "missing, **stays**"
			}
			return "missing"
		}},
	}))
}

// errorTable lists the codes that do not come to what most codes of their kind come to, and those wanted; those of one outcome
// are in one row. With others it has rows for errors without a code.
func errorTable(t *testing.T, others bool, wanted []kafka.ErrorCode, columns []errorColumn) string {
	t.Helper()
	outcome := func(err error) string {
		cells := make([]string, len(columns))
		for i, c := range columns {
			cells[i] = c.do(t, err)
		}
		return strings.Join(cells, " | ")
	}
	var order []string
	rows := make(map[string][]string)
	kinds := map[bool]map[string]int{true: {}, false: {}}
	outcomes := make(map[kafka.ErrorCode]string)
	codes := allCodes()
	for _, code := range codes {
		outcomes[code] = outcome(code)
		kinds[code.Retriable()][outcomes[code]]++
	}
	usual := map[bool]string{true: mostFrequent(kinds[true]), false: mostFrequent(kinds[false])}
	if unknown := outcome(kafka.ErrorCode(9999)); unknown != usual[false] {
		t.Errorf("a code that nobody knows comes to %q, others come to %q", unknown, usual[false])
	}
	for _, code := range codes {
		row := outcomes[code]
		if row == usual[code.Retriable()] && !slices.Contains(wanted, code) {
			continue
		}
		if rows[row] == nil {
			order = append(order, row)
		}
		rows[row] = append(rows[row], code.Name())
	}
	var b strings.Builder
	b.WriteString("| error |")
	for _, c := range columns {
		b.WriteString(" " + c.name + " |")
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(columns)) + "\n")
	for _, row := range order {
		fmt.Fprintf(&b, "| %s | %s |\n", strings.Join(rows[row], ", "), row)
	}
	if usual[true] == usual[false] {
		fmt.Fprintf(&b, "| any other code | %s |\n", usual[false])
	} else {
		fmt.Fprintf(&b, "| other codes that Kafka calls retriable | %s |\n", usual[true])
		fmt.Fprintf(&b, "| any other code, also an unknown one | %s |\n", usual[false])
	}
	if others {
		fmt.Fprintf(&b, "| no code: no answer, broken connection | %s |\n", outcome(errors.New("connection reset")))
		fmt.Fprintf(&b, "| no code: the login failed | %s |\n", outcome(&kafka.ConnectError{Phase: "authenticate", Err: errors.New("no token")}))
		fmt.Fprintf(&b, "| no code: no version of the request in common | %s |\n", outcome(&kafka.VersionError{API: "JoinGroup"}))
	}
	return b.String()
}

func allCodes() (codes []kafka.ErrorCode) {
	unknown := kafka.ErrorCode(9999).Name()
	for code := kafka.ErrorCode(-1); code < 1000; code++ {
		if code != 0 && code.Name() != unknown {
			codes = append(codes, code)
		}
	}
	return codes
}

func mostFrequent(counts map[string]int) (most string) {
	for _, row := range slices.Sorted(maps.Keys(counts)) {
		if counts[row] > counts[most] {
			most = row
		}
	}
	return most
}

// What the cells say.
const (
	cellRetry  = "retry"
	cellSlow   = "**slow**"
	cellRejoin = "**rejoin**"
	cellFatal  = "**fatal**"
)

// waitCell says how long something waits for its next try: the machines here have a backoff from 100 ms to 10 s.
func waitCell(wait time.Duration) string {
	if wait < time.Second {
		return cellRetry
	}
	return cellSlow
}

var tableStart = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)

func findAnswered(t *testing.T, err error) string {
	t.Helper()
	link, problem := rebalance.NewLink(rebalance.LinkConfig{})
	step := func(in rebalance.LinkInput) []rebalance.LinkEffect {
		effects, stepErr := link.Step(tableStart, in)
		problem = errors.Join(problem, stepErr)
		return effects
	}
	step(rebalance.LinkStart{})
	var seq uint64
	for _, effect := range step(rebalance.Need{ID: 1, Deadline: tableStart.Add(time.Hour)}) {
		if find, ok := effect.(rebalance.Find); ok {
			seq = find.Seq
		}
	}
	step(rebalance.NotFound{Seq: seq, Err: err})
	at, planned := link.Deadline()
	if problem != nil || !planned {
		t.Fatalf("%v: %v, planned %t", err, problem, planned)
	}
	return waitCell(at.Sub(tableStart))
}

// tableMember is a dynamic member of a cooperative group with one partition.
type tableMember struct {
	t       *testing.T
	member  *rebalance.Member
	effects []rebalance.Effect
}

const tableID = "member-1"

func newTableMember(t *testing.T) *tableMember {
	t.Helper()
	member, err := rebalance.NewMember(rebalance.MemberConfig{
		GroupID: "g", Topics: []string{"t"}, Assignors: []rebalance.Assignor{rebalance.CooperativeSticky()},
		SessionTimeout: 45 * time.Second, RebalanceTimeout: time.Minute, HeartbeatInterval: 3 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	m := &tableMember{t: t, member: member}
	tp := kafka.TopicPartition{Topic: "t"}
	assignment, err := rebalance.EncodeAssignment(rebalance.Assignment{Partitions: []kafka.TopicPartition{tp}})
	if err != nil {
		t.Fatal(err)
	}
	m.step(rebalance.Start{})
	m.joined(1)
	m.step(rebalance.SyncAnswered{Seq: m.seq(), Response: rebalance.SyncResponse{Assignment: assignment}})
	m.step(rebalance.PartitionStarted{TopicPartition: tp, Epoch: member.LastEpoch()})
	if member.State() != rebalance.StateAssigned {
		t.Fatalf("the member is %v", member.State())
	}
	return m
}

func (m *tableMember) step(in rebalance.Input) {
	m.t.Helper()
	effects, err := m.member.Step(tableStart, in)
	if err != nil {
		m.t.Fatal(err)
	}
	m.effects = effects
}

// seq is the number of the request that the last step sent.
func (m *tableMember) seq() (seq uint64) {
	for _, effect := range m.effects {
		switch e := effect.(type) {
		case rebalance.SendJoin:
			seq = e.Seq
		case rebalance.SendSync:
			seq = e.Seq
		case rebalance.SendLeave:
			seq = e.Seq
		}
	}
	return seq
}

// joined answers the JoinGroup of the last step: another member leads.
func (m *tableMember) joined(generation kafka.Generation) {
	m.t.Helper()
	m.step(rebalance.JoinAnswered{Seq: m.seq(), Response: rebalance.JoinResponse{
		Generation: generation, MemberID: tableID, LeaderID: "member-2", Protocol: "cooperative-sticky",
	}})
}

// rejoin brings the member into the JoinGroup of the next rebalance, with its partition kept.
func (m *tableMember) rejoin() *tableMember {
	m.t.Helper()
	m.step(rebalance.HeartbeatAnswered{Generation: 1, Err: kafka.RebalanceInProgress})
	return m
}

// outcome puts what the last step came to into words.
func (m *tableMember) outcome(given string) string {
	m.t.Helper()
	lost, sent, refused, wait := false, false, false, time.Duration(-1)
	for _, effect := range m.effects {
		switch e := effect.(type) {
		case rebalance.LosePartitions:
			lost = true
		case rebalance.SendJoin, rebalance.SendSync:
			sent = true
		case rebalance.Refused:
			refused = true
			if attempt, ok := errors.AsType[*rebalance.AttemptError](e.Err); ok {
				wait = attempt.RetryAt.Sub(tableStart)
			}
		}
	}
	joining := m.member.State() == rebalance.StateJoining
	switch {
	case m.member.State() == rebalance.StateFatal && lost:
		return cellFatal
	case lost && joining && m.member.MemberID() == "":
		return "**lost**, new id"
	case lost && joining && m.member.MemberID() == tableID:
		return "**lost**, same id"
	case sent && given != "" && m.member.MemberID() == given:
		return "**rejoin** with the id given"
	case sent && joining:
		return cellRejoin
	case wait >= 0:
		return waitCell(wait)
	case refused:
		return "told"
	case len(m.effects) == 0:
		return "stays"
	}
	m.t.Fatalf("%v after %v", m.member.State(), m.effects)
	return ""
}

func joinAnsweredWith(t *testing.T, err error) string {
	t.Helper()
	m := newTableMember(t).rejoin()
	const given = "member-3"
	m.step(rebalance.JoinAnswered{Seq: m.seq(), Err: err, Response: rebalance.JoinResponse{MemberID: given}})
	return m.outcome(given)
}

func syncAnsweredWith(t *testing.T, err error) string {
	t.Helper()
	m := newTableMember(t).rejoin()
	m.joined(2)
	m.step(rebalance.SyncAnswered{Seq: m.seq(), Err: err})
	return m.outcome("")
}

func heartbeatAnsweredWith(t *testing.T, err error) string {
	t.Helper()
	m := newTableMember(t)
	m.step(rebalance.HeartbeatAnswered{Generation: 1, Err: err})
	switch outcome := m.outcome(""); outcome {
	case "stays":
		return pulseAfter(t, err)
	case "told":
		return pulseAfter(t, err) + ", told"
	default:
		return outcome
	}
}

// pulseAfter says when the heartbeat after one that was answered so goes out.
func pulseAfter(t *testing.T, err error) string {
	t.Helper()
	pulse, problem := rebalance.NewPulse(rebalance.PulseConfig{HeartbeatInterval: 3 * time.Second, SessionTimeout: 45 * time.Second})
	if problem != nil {
		t.Fatal(problem)
	}
	step := func(now time.Time, in rebalance.PulseInput) time.Time {
		if _, problem := pulse.Step(now, in); problem != nil {
			t.Fatal(problem)
		}
		at, _ := pulse.Deadline()
		return at
	}
	sentAt := step(tableStart, rebalance.PulseEnter{Generation: 1})
	step(sentAt, rebalance.PulseTick{})
	return waitCell(step(sentAt, rebalance.PulseAnswered{SentAt: sentAt, Err: err}).Sub(sentAt))
}

// commitAnsweredWith answers one partition of a round; an error without a code is the request's.
func commitAnsweredWith(t *testing.T, err error) string {
	t.Helper()
	rounds := commit.NewRounds(commit.RoundsConfig{GroupID: "g", Spacing: -1, BackoffMax: 10 * time.Second})
	step := func(in commit.Input) []commit.Effect {
		effects, stepErr := rounds.Step(tableStart, in)
		if stepErr != nil {
			t.Fatal(stepErr)
		}
		return effects
	}
	tp := kafka.TopicPartition{Topic: "t"}
	step(commit.Entered{Generation: 1, MemberID: tableID})
	step(commit.Assigned{TopicPartition: tp, Epoch: 1, Committed: 0})
	sent := step(commit.Offered{Offset: commit.Offset{TopicPartition: tp, Epoch: 1, Offset: 5, Metadata: "mark"}})
	round := sent[0].(commit.SendRound).Round
	answer := commit.Answered{ID: round.ID, Results: map[kafka.TopicPartition]error{tp: err}}
	if _, coded := errors.AsType[kafka.ErrorCode](err); !coded {
		answer = commit.Answered{ID: round.ID, Err: err}
	}
	outcome, coordinator := "", false
	for _, effect := range step(answer) {
		switch e := effect.(type) {
		case commit.RoundFailed:
			outcome = waitCell(e.RetryAt.Sub(tableStart))
		case commit.SendRound:
			if e.Round.Offsets[0].Metadata == "" {
				return "**at once**, without metadata"
			}
		case commit.CoordinatorDoubted:
			coordinator = true
		case commit.MembershipDoubted:
			m := newTableMember(t)
			m.step(rebalance.CommitFenced{Generation: 1, Err: e.Err})
			return m.outcome("")
		}
	}
	if putsCoordinatorInDoubt(err) && !coordinator {
		t.Errorf("%v puts the coordinator in doubt, and the committer does not say so", err)
	}
	for _, effect := range step(commit.Entered{Generation: 2, MemberID: tableID}) {
		if _, ok := effect.(commit.SendRound); ok {
			return "**later**"
		}
	}
	return outcome
}

// offsetsAnsweredWith answers a question for committed offsets, as a whole and for the partition alone.
func offsetsAnsweredWith(t *testing.T, err error) string {
	t.Helper()
	tp := kafka.TopicPartition{Topic: "t"}
	for _, read := range []*offsetsRead{{err: err}, {offsets: map[kafka.TopicPartition]CommittedOffset{tp: {Err: err}}}} {
		if _, again := read.of(tp); again == nil {
			t.Errorf("OffsetFetch: %v is taken for an answer", err)
		}
	}
	if (&offsetLookups{failures: 1}).quiet(err) {
		return "retry, quietly"
	}
	return cellRetry
}

func leaveAnsweredWith(t *testing.T, err error) string {
	t.Helper()
	m := newTableMember(t)
	m.step(rebalance.Leave{DrainUntil: tableStart.Add(time.Second), Deadline: tableStart.Add(time.Minute)})
	m.step(rebalance.PartitionReleased{TopicPartition: kafka.TopicPartition{Topic: "t"}, Epoch: m.member.LastEpoch()})
	m.step(rebalance.LeaveAnswered{Seq: m.seq(), Err: err})
	for _, effect := range m.effects {
		if left, ok := effect.(rebalance.Left); ok {
			if left.Err == nil {
				return "left"
			}
			return "left, told"
		}
		if refused, ok := effect.(rebalance.Refused); ok && errors.As(refused.Err, new(*rebalance.AttemptError)) {
			return cellRetry
		}
	}
	t.Fatalf("%v: not left: %v", err, m.effects)
	return ""
}
