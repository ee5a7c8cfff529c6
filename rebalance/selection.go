package rebalance

import (
	"fmt"
	"regexp"
	"slices"
)

// TopicRule says which topics somebody wants: those named, and those whose whole name an Allow expression matches and no
// Deny expression does. Expressions are in RE2 syntax (package regexp).
type TopicRule struct {
	Names       []string
	Allow, Deny []string
}

// PatternError is a topic expression that is not in RE2 syntax.
type PatternError struct {
	Expression string
	Err        error
}

// Error names the expression.
func (e *PatternError) Error() string {
	return fmt.Sprintf("rebalance: topic pattern %q: %v", e.Expression, e.Err)
}

// Unwrap returns what is wrong with the syntax.
func (e *PatternError) Unwrap() error { return e.Err }

// Selection decides by which rule a topic is wanted. It never changes and is safe for concurrent use.
type Selection struct {
	named map[string]int
	rules []compiledRule
}

type compiledRule struct {
	index       int
	allow, deny []*regexp.Regexp
}

// NewSelection makes a selection of rules. A topic is under the rule that names it; one that none names is under the first
// rule whose expressions match it. The error is a *[PatternError].
func NewSelection(rules []TopicRule) (*Selection, error) {
	s := &Selection{named: make(map[string]int)}
	for i, rule := range rules {
		for _, name := range rule.Names {
			if _, taken := s.named[name]; !taken {
				s.named[name] = i
			}
		}
		if len(rule.Allow) == 0 {
			continue
		}
		compiled := compiledRule{index: i}
		var err error
		if compiled.allow, err = compileAll(rule.Allow); err != nil {
			return nil, err
		}
		if compiled.deny, err = compileAll(rule.Deny); err != nil {
			return nil, err
		}
		s.rules = append(s.rules, compiled)
	}
	return s, nil
}

// compileAll makes expressions that match whole names only, as the Java client's patterns do.
func compileAll(expressions []string) ([]*regexp.Regexp, error) {
	out := make([]*regexp.Regexp, len(expressions))
	for i, expression := range expressions {
		// Alone first: a stray parenthesis must not become valid by the brackets around it.
		_, err := regexp.Compile(expression)
		if err == nil {
			out[i], err = regexp.Compile("^(?:" + expression + ")$")
		}
		if err != nil {
			return nil, &PatternError{Expression: expression, Err: err}
		}
	}
	return out, nil
}

// Rule returns the index of the rule that a topic is wanted by, and false for a topic that nobody wants.
func (s *Selection) Rule(topic string) (int, bool) {
	if i, ok := s.named[topic]; ok {
		return i, true
	}
	for _, rule := range s.rules {
		if anyMatches(rule.allow, topic) && !anyMatches(rule.deny, topic) {
			return rule.index, true
		}
	}
	return 0, false
}

func anyMatches(expressions []*regexp.Regexp, topic string) bool {
	return slices.ContainsFunc(expressions, func(e *regexp.Regexp) bool { return e.MatchString(topic) })
}

// HasPatterns reports whether the topics wanted depend on which ones there are.
func (s *Selection) HasPatterns() bool { return len(s.rules) > 0 }

// Topics returns what is subscribed to: every topic that a rule names, whether it exists or not, and those of listed that
// the expressions want. Sorted, each once, never nil.
func (s *Selection) Topics(listed []string) []string {
	out := make([]string, 0, len(s.named))
	for name := range s.named {
		out = append(out, name)
	}
	for _, topic := range listed {
		if _, wanted := s.Rule(topic); wanted {
			out = append(out, topic)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
