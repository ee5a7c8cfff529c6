package api

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/troupego/troupe/rebalance"
)

// Pattern chooses topics by their names, among those that exist; it is given to [Handle] and its siblings in place of names:
//
//	api.Handle(api.Matching(`orders\..*`, "refunds").Except(`.*\.test`), charge)
//
// The topics are those whose whole name one of the expressions of [Matching] matches and none of those of Except does, in
// the syntax of package regexp (RE2). The brokers' own topics, such as __consumer_offsets, match no pattern
// (exclude.internal.topics). A topic that another registration names is that one's; of several patterns that match, the one
// of the first registration holds.
//
// A topic that appears is joined when the member's metadata is renewed, Config.MetadataMaxAge at most later, and its
// partitions are consumed from where Config.Reset says. One that is deleted is given up after three looks in a row have not
// shown it. Each change is an event.SubscriptionChanged; Stats().Subscription has what is subscribed to.
// (Java: KafkaConsumer.subscribe(Pattern).)
type Pattern struct{ allow, deny []string }

// Matching returns a pattern of the topics whose whole name one of the expressions matches; at least one.
func Matching(expressions ...string) Pattern { return Pattern{allow: slices.Clone(expressions)} }

// Except returns the pattern without the topics whose whole name one of the expressions matches.
func (p Pattern) Except(expressions ...string) Pattern {
	return Pattern{allow: p.allow, deny: slices.Concat(p.deny, expressions)}
}

// String returns how the pattern reads in the program.
func (p Pattern) String() string {
	out := "Matching(" + quotedList(p.allow) + ")"
	if len(p.deny) > 0 {
		out += ".Except(" + quotedList(p.deny) + ")"
	}
	return out
}

func quotedList(list []string) string {
	quoted := make([]string, len(list))
	for i, s := range list {
		quoted[i] = fmt.Sprintf("%q", s)
	}
	return strings.Join(quoted, ", ")
}

// check returns all that is wrong with the pattern of a registration; seen maps each one to the registration that has it.
func (p Pattern) check(r *Registration, seen map[string]string) []Problem {
	if len(p.allow) == 0 {
		return []Problem{r.problem("topics", "Matching()", "at least one expression")}
	}
	var problems []Problem
	for _, expression := range slices.Concat(p.allow, p.deny) {
		_, err := rebalance.NewSelection([]rebalance.TopicRule{{Allow: []string{expression}}})
		var wrong *rebalance.PatternError
		switch {
		case expression == "":
			problems = append(problems, r.problem("topics", `""`, "an expression that matches the name of some topic"))
		case errors.As(err, &wrong):
			problems = append(problems, r.problem("topics", shortQuote(expression), "an expression as in package regexp: "+wrong.Err.Error()))
		}
	}
	if owner, taken := seen[p.String()]; taken {
		problems = append(problems, r.problem("topics", shorten(p.String()), "each pattern once, "+owner+" has it already"))
	}
	seen[p.String()] = r.String()
	return problems
}
