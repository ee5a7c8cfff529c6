package api

import (
	"fmt"
	"strings"
)

// ConfigError is everything that is wrong with what was given to [Spawn], [Run] or [Resolve], and nothing was started; or to
// [Consumer.Subscribe], [Consumer.Unsubscribe] or [Consumer.SetConcurrency], and nothing was changed.
type ConfigError struct {
	// Problems is not empty. It is in the order of Config's fields, then of the registrations, then of the options.
	Problems []Problem
}

// Problem is one thing that is wrong.
type Problem struct {
	// Field is what is wrong: a field of Config such as "SessionTimeout", a part of a registration such as
	// `Handle("orders").MaxRecords`, an option such as "WithObserver", or one of sarama's settings such as
	// "Sarama.Net.SASL.Version".
	Field string
	// Value is what it was, as it is in effect; empty where there is no value to show, "panicking (...)" for a function that
	// did. It is never a secret's.
	Value string
	// Want is the bound, such as "at most 27s (RebalanceTimeout - HeartbeatInterval - 5s)". Where it depends on a field that
	// is wrong itself, that field's default stands in for it.
	Want string
}

// String returns the problem in one line.
func (p Problem) String() string {
	if p.Value == "" {
		return fmt.Sprintf("%s: want %s", p.Field, p.Want)
	}
	return fmt.Sprintf("%s is %s: want %s", p.Field, p.Value, p.Want)
}

// Error has one line for each problem.
func (e *ConfigError) Error() string {
	if len(e.Problems) == 1 {
		return "troupe: configuration: " + e.Problems[0].String()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "troupe: %d configuration errors:", len(e.Problems))
	for _, p := range e.Problems {
		b.WriteString("\n\t" + p.String())
	}
	return b.String()
}
