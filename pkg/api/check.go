package api

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/rebalance"
	"github.com/troupego/troupe/supervisor"
)

// rule is one row of a check: it holds, or it becomes a problem.
type rule struct {
	field string
	value any
	holds bool
	want  string
}

func (r rule) problem() Problem {
	p := Problem{Field: r.field, Want: r.want}
	switch v := r.value.(type) {
	case nil:
	case string:
		p.Value = shortQuote(v)
	default:
		p.Value = fmt.Sprint(v)
	}
	return p
}

// mostShown is how many bytes of a value fit a line.
const mostShown = 60

// shortQuote quotes s, cut to a length that fits a line.
func shortQuote(s string) string {
	if len(s) <= mostShown {
		return strconv.Quote(s)
	}
	return fmt.Sprintf("%q... (%d bytes)", s[:mostShown], len(s))
}

// shorten returns s in one line, or quoted and cut where it is more than that.
func shorten(s string) string {
	if len(s) <= mostShown && !strings.ContainsAny(s, "\r\n") {
		return s
	}
	return shortQuote(s)
}

func broken(rules []rule) []Problem {
	var problems []Problem
	for _, r := range rules {
		if !r.holds {
			problems = append(problems, r.problem())
		}
	}
	return problems
}

// checkConfig returns all that is wrong with a configuration. given is the user's and tells what was left to its default,
// c is the same with the defaults filled in, sound is what the bounds that depend on other fields are taken from. None is
// changed. A default that gives way is not blamed for what it has to give way to. inGroup is false beside Assign.
func checkConfig(given, c, sound *Config, inGroup bool) []Problem {
	problems := checkBrokers(c.Brokers)
	problems = append(problems, broken(nameRules(c, inGroup))...)
	problems = append(problems, broken(timeRules(given, c, sound))...)
	problems = append(problems, checkAssignors(c.Assignors)...)
	problems = append(problems, broken(choiceRules(c))...)
	problems = append(problems, broken(sizeRules(given, c, sound))...)
	problems = append(problems, broken(clientTimeRules(given, c, sound))...)
	problems = append(problems, supervisorProblems("Backoff", "Backoff.", c.Backoff.Validate())...)
	problems = append(problems, checkPolicy("Restart", c.Restart)...)
	var strategy *commit.StrategyError
	if errors.As(commit.Validate(c.CommitStrategy), &strategy) {
		problems = append(problems, Problem{
			Field: "CommitStrategy", Value: fmt.Sprintf("%s with %s = %s", strategy.Strategy, strategy.Field, strategy.Value), Want: strategy.Want,
		})
	}
	return append(problems, broken([]rule{concurrencyRule(c.Concurrency)})...)
}

func concurrencyRule(n int) rule { return rule{"Concurrency", n, n >= 0, "0 for no limit, or more"} }

// sound returns c, as the user gave it, with the default in place of every field that is wrong by itself and that another
// field's bound depends on: a bound made of a wrong value would lead from one error to the next.
func (c Config) sound() Config {
	drop(&c.SessionTimeout, isDuration(c.SessionTimeout))
	full := c.withDefaults()
	drop(&c.HeartbeatInterval, isDuration(c.HeartbeatInterval) && c.HeartbeatInterval < full.SessionTimeout)
	full = c.withDefaults()
	drop(&c.RebalanceTimeout, isDuration(c.RebalanceTimeout) && full.maxDrainTimeout() >= minDuration)
	drop(&c.MaxInTransit, c.MaxInTransit >= 1 && c.MaxInTransit <= maxMaxInTransit)
	drop(&c.MemoryBudget, c.MemoryBudget >= 1)
	drop(&c.FetchMaxBytes, c.FetchMaxBytes >= 1 && c.FetchMaxBytes <= maxFetchBytes)
	drop(&c.RequestTimeout, isDuration(c.RequestTimeout))
	return c.withDefaults()
}

// drop sets a field to zero, which means its default, unless it is to be kept.
func drop[T any](field *T, keep bool) {
	if !keep {
		var zero T
		*field = zero
	}
}

func isDuration(d time.Duration) bool { return d >= minDuration && d <= maxDuration }

func checkBrokers(brokers []string) []Problem {
	problems := broken([]rule{{"Brokers", "", len(brokers) > 0, "at least one host:port"}})
	for i, addr := range brokers {
		problems = append(problems, broken([]rule{
			{fmt.Sprintf("Brokers[%d]", i), addr, isHostPort(addr), "host:port, the port from 1 to 65535"},
		})...)
	}
	return problems
}

func isHostPort(addr string) bool {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || host == "" || strings.ContainsAny(host, " \t\r\n/@") {
		return false
	}
	number, err := strconv.ParseUint(port, 10, 16)
	return err == nil && number > 0
}

func nameRules(c *Config, inGroup bool) []rule {
	short := fmt.Sprintf("at most %d bytes", maxProtocolString)
	return []rule{
		{"GroupID", c.GroupID, c.GroupID != "" || !inGroup, "a name, or Assign to read partitions without a group"},
		{"GroupID", c.GroupID, len(c.GroupID) <= maxProtocolString, short},
		{"GroupInstanceID", c.GroupInstanceID, c.GroupInstanceID == "" || isTopicName(c.GroupInstanceID), topicNameWant},
		{"ClientID", c.ClientID, len(c.ClientID) <= maxProtocolString, short},
		{"Rack", c.Rack, len(c.Rack) <= maxProtocolString, short},
	}
}

const topicNameWant = "1 to 249 of the characters a-z, A-Z, 0-9, '.', '_', '-', and neither \".\" nor \"..\""

// isTopicName is Kafka's rule for topic names, which holds for static members' names as well.
func isTopicName(name string) bool {
	if name == "" || name == "." || name == ".." || len(name) > 249 {
		return false
	}
	return strings.IndexFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-')
	}) < 0
}

// between is the rule that most durations have.
func between(field string, value, least time.Duration) rule {
	return rule{field, value, value >= least && value <= maxDuration, fmt.Sprintf("from %v to %v", least, maxDuration)}
}

// timeRules are those of the group's times, in the order of the fields.
func timeRules(given, c, sound *Config) []rule {
	rules := []rule{between("SessionTimeout", c.SessionTimeout, minDuration)}
	if given.HeartbeatInterval != 0 {
		rules = append(rules,
			between("HeartbeatInterval", c.HeartbeatInterval, minDuration),
			rule{"HeartbeatInterval", c.HeartbeatInterval, c.HeartbeatInterval < sound.SessionTimeout,
				fmt.Sprintf("below SessionTimeout (%v), best a third of it", sound.SessionTimeout)})
	}
	rules = append(rules,
		between("RebalanceTimeout", c.RebalanceTimeout, minDuration),
		rule{"RebalanceTimeout", c.RebalanceTimeout,
			c.RebalanceTimeout < minDuration || c.RebalanceTimeout >= sound.HeartbeatInterval+drainReserve+minDuration,
			fmt.Sprintf("more than HeartbeatInterval (%v) + %v", sound.HeartbeatInterval, drainReserve)})
	if given.DrainTimeout != 0 {
		// Without room to drain RebalanceTimeout is to blame, and there is no bound to name.
		most := sound.maxDrainTimeout()
		rules = append(rules,
			between("DrainTimeout", c.DrainTimeout, minDuration),
			rule{"DrainTimeout", c.DrainTimeout, c.DrainTimeout <= most || most < minDuration,
				fmt.Sprintf("at most %v (RebalanceTimeout - HeartbeatInterval - %v)", most, drainReserve)})
	}
	rules = append(rules, between("CloseTimeout", c.CloseTimeout, minDuration),
		between("TokenTimeout", c.TokenTimeout, minDuration), between("BlockedAfter", c.BlockedAfter, minDuration),
		between("StuckAfter", c.StuckAfter, minDuration))
	if given.MaxProcessingTime != 0 {
		limit := between("MaxProcessingTime", c.MaxProcessingTime, minProcessingTime)
		limit.want = "0 for no limit, or " + limit.want
		rules = append(rules, limit)
	}
	return rules
}

func checkAssignors(assignors []rebalance.Assignor) []Problem {
	var problems []Problem
	seen := make(map[string]bool)
	for i, assignor := range assignors {
		field := fmt.Sprintf("Assignors[%d]", i)
		if assignor == nil {
			problems = append(problems, rule{field: field, value: assignor, want: "an assignor"}.problem())
			continue
		}
		name := assignor.Name()
		problems = append(problems, broken([]rule{
			{field, name, name != "" && len(name) <= maxProtocolString, "an assignor with a name"},
			{field, name, !seen[name], "each assignor once"},
		})...)
		seen[name] = true
	}
	return problems
}

func choiceRules(c *Config) []rule {
	return []rule{
		resetRule("Reset", c.Reset),
		{"IsolationLevel", c.IsolationLevel, c.IsolationLevel <= ReadUncommitted, "ReadCommitted or ReadUncommitted"},
	}
}

func resetRule(field string, policy rebalance.ResetPolicy) rule {
	var wrong *rebalance.ResetPolicyError
	if !errors.As(policy.Validate(), &wrong) {
		return rule{field: field, holds: true}
	}
	return rule{field: field, value: policy, want: wrong.Want}
}

// sizeRules are those of records and bytes.
func sizeRules(given, c, sound *Config) []rule {
	rules := []rule{{"MaxInTransit", c.MaxInTransit, c.MaxInTransit >= 1 && c.MaxInTransit <= maxMaxInTransit,
		fmt.Sprintf("from 1 to %d", maxMaxInTransit)}}
	if given.ResumeBelow != 0 {
		rules = append(rules, rule{"ResumeBelow", c.ResumeBelow, c.ResumeBelow >= 1 && c.ResumeBelow < sound.MaxInTransit,
			fmt.Sprintf("from 1 to below MaxInTransit (%d)", sound.MaxInTransit)})
	}
	switch {
	case given.MemoryBudget == 0:
	case given.FetchMaxBytes == 0: // which gives way
		rules = append(rules, rule{"MemoryBudget", c.MemoryBudget, c.MemoryBudget >= 1, "at least 1"})
	default:
		rules = append(rules, rule{"MemoryBudget", c.MemoryBudget, c.MemoryBudget >= int64(sound.FetchMaxBytes),
			fmt.Sprintf("at least FetchMaxBytes (%d)", sound.FetchMaxBytes)})
	}
	toFetchMax := fmt.Sprintf("from 1 to FetchMaxBytes (%d)", sound.FetchMaxBytes)
	rules = append(rules, rule{"FetchMinBytes", c.FetchMinBytes, c.FetchMinBytes >= 1 && c.FetchMinBytes <= sound.FetchMaxBytes, toFetchMax})
	if given.FetchMaxBytes != 0 {
		rules = append(rules, rule{"FetchMaxBytes", c.FetchMaxBytes, c.FetchMaxBytes >= 1 && c.FetchMaxBytes <= maxFetchBytes,
			fmt.Sprintf("from 1 to %d", maxFetchBytes)})
	}
	if given.PartitionMaxBytes != 0 {
		rules = append(rules, rule{"PartitionMaxBytes", c.PartitionMaxBytes,
			c.PartitionMaxBytes >= 1 && c.PartitionMaxBytes <= sound.FetchMaxBytes, toFetchMax})
	}
	return append(rules, rule{"MaxBatchBytes", c.MaxBatchBytes, c.MaxBatchBytes >= 1 && c.MaxBatchBytes <= maxFetchBytes,
		fmt.Sprintf("from 1 to %d", maxFetchBytes)})
}

// clientTimeRules are those of talking to brokers.
func clientTimeRules(given, c, sound *Config) []rule {
	var rules []rule
	if given.FetchMaxWait != 0 {
		rules = append(rules,
			between("FetchMaxWait", c.FetchMaxWait, minDuration),
			rule{"FetchMaxWait", c.FetchMaxWait, c.FetchMaxWait < sound.RequestTimeout,
				fmt.Sprintf("below RequestTimeout (%v)", sound.RequestTimeout)})
	}
	return append(rules,
		between("MetadataMaxAge", c.MetadataMaxAge, minMetadataMaxAge),
		between("ConnectTimeout", c.ConnectTimeout, minDuration),
		between("RequestTimeout", c.RequestTimeout, minDuration))
}

// checkPolicy checks a restart policy whose zero fields mean their defaults.
func checkPolicy(field string, policy supervisor.Policy) []Problem {
	policy = policy.WithDefaults()
	rest := policy
	rest.Backoff = supervisor.DefaultBackoff()
	return append(supervisorProblems(field, "Policy.", rest.Validate()),
		supervisorProblems(field+".Backoff", "Backoff.", policy.Backoff.Validate())...)
}

// supervisorProblems turns the supervisor's joined errors, which read "Policy.Window is -1s: must be above 0", into
// problems of the field that holds the policy. prefix is how the errors call that field, with a dot.
func supervisorProblems(field, prefix string, err error) []Problem {
	if err == nil {
		return nil
	}
	errs := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		errs = joined.Unwrap()
	}
	problems := make([]Problem, 0, len(errs))
	for _, err := range errs {
		name, rest, named := strings.Cut(err.Error(), " is ")
		value, want, bounded := strings.Cut(rest, ": must be ")
		if !named || !bounded {
			problems = append(problems, Problem{Field: field, Want: err.Error()})
			continue
		}
		problems = append(problems, Problem{
			Field: field + "." + strings.TrimPrefix(name, prefix), Value: value, Want: strings.ReplaceAll(want, prefix, field+"."),
		})
	}
	return problems
}

// problem returns a problem of a part of the registration.
func (r *Registration) problem(part, value, want string) Problem {
	field := r.String()
	if part != "" {
		field += "." + part
	}
	return Problem{Field: field, Value: value, Want: want}
}

// check returns all that is wrong with one registration; seen maps each topic to the registration that has it already.
func (r *Registration) check(sound *Config, seen map[string]string) []Problem {
	if r.kind == "" {
		return []Problem{r.problem("", "", "one made by Handle, HandleBatch, HandleAsync or HandleActor")}
	}
	var problems []Problem
	if r.record == nil && r.batch == nil && r.async == nil && r.actor == nil {
		problems = append(problems, r.problem("handler", "nil", "a function"))
	}
	if r.nilOptions > 0 {
		problems = append(problems, r.problem("options", "nil", "no nil options"))
	}
	switch {
	case r.pattern != nil:
		problems = append(problems, r.pattern.check(r, seen)...)
	case len(r.topics) == 0:
		problems = append(problems, r.problem("topics", "", "at least one topic, or a Pattern"))
	}
	for _, topic := range r.topics {
		switch owner, taken := seen[topic]; {
		case !isTopicName(topic):
			problems = append(problems, r.problem("topics", shortQuote(topic), topicNameWant))
		case taken:
			problems = append(problems, r.problem("topics", shortQuote(topic), "each topic once, "+owner+" has it already"))
		default:
			seen[topic] = r.String()
		}
	}
	if n := r.maxRecords; n != nil && (*n < 1 || *n > sound.MaxInTransit) {
		problems = append(problems, r.problem("MaxRecords", strconv.Itoa(*n), fmt.Sprintf("from 1 to MaxInTransit (%d)", sound.MaxInTransit)))
	}
	if r.reset != nil {
		problems = append(problems, broken([]rule{resetRule(r.String()+".ResetTo", *r.reset)})...)
	}
	problems = append(problems, r.flawed...)
	if r.keyFunc != nil && r.order != actors.OrderKey {
		problems = append(problems, r.problem("OrderBy", "", "KeyOrder beside it"))
	}
	if r.restart != nil {
		problems = append(problems, checkPolicy(r.String()+".Restart", *r.restart)...)
	}
	return problems
}
