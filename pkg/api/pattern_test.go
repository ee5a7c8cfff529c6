package api

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestAPatternIsGivenToTheTreeAsItIs(t *testing.T) {
	base := Matching("orders-.*", "refunds")
	first, second := base.Except(".*-test"), base.Except("x").Except("y")
	for _, tt := range []struct {
		pattern     Pattern
		allow, deny []string
	}{
		{base, []string{"orders-.*", "refunds"}, nil},
		{first, []string{"orders-.*", "refunds"}, []string{".*-test"}},
		{second, []string{"orders-.*", "refunds"}, []string{"x", "y"}},
	} {
		got := resolveOne(t, validConfig(), HandleBatch(tt.pattern, nothingBatch))
		if !slices.Equal(got.Allow, tt.allow) || !slices.Equal(got.Deny, tt.deny) || len(got.Topics) > 0 {
			t.Errorf("%s: allow %q, deny %q, topics %q", tt.pattern, got.Allow, got.Deny, got.Topics)
		}
	}
}

func TestEveryFlawOfAPatternIsNamed(t *testing.T) {
	_, err := Resolve(validConfig(),
		Handle(Matching(), nothing),
		Handle(Matching("a(", "ok", "").Except("[z-a]"), nothing),
		Handle(Matching("same"), nothing), HandleBatch(Matching("same"), nothingBatch),
		Handle(Pattern{}, nothing))
	var config *ConfigError
	if !errors.As(err, &config) {
		t.Fatal(err)
	}
	var got []string
	for _, p := range config.Problems {
		got = append(got, p.Field+" "+p.Value)
		if p.Want == "" {
			t.Errorf("%s: does not say what would be right", p.Field)
		}
	}
	want := []string{
		`Handle(Matching()).topics Matching()`,
		`Handle(Matching("a(", "ok", "").Except("[z-a]")).topics "a("`,
		`Handle(Matching("a(", "ok", "").Except("[z-a]")).topics ""`,
		`Handle(Matching("a(", "ok", "").Except("[z-a]")).topics "[z-a]"`,
		`HandleBatch(Matching("same")).topics Matching("same")`,
		`Handle(Matching()).topics Matching()`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
