package rebalance

import (
	"errors"
	"math/rand/v2"
	"path"
	"slices"
	"testing"
)

func TestATopicIsUnderTheRuleThatNamesItBeforeThoseThatMatch(t *testing.T) {
	s, err := NewSelection([]TopicRule{
		{Allow: []string{`orders\..*`, `refunds`}, Deny: []string{`.*\.test`}},
		{Names: []string{"orders.eu"}, Allow: []string{`orders\..*`, "audit.*"}},
		{Names: []string{"orders.eu", "clicks"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for topic, want := range map[string]int{
		"orders.us": 0, "refunds": 0, "orders.eu": 1, "orders.a.test": 1, "audit": 1, "clicks": 2,
		"orders": -1, "my-refunds": -1, "refunds2": -1, "": -1,
	} {
		got, wanted := s.Rule(topic)
		if !wanted {
			got = -1
		}
		if got != want {
			t.Errorf("%q is under rule %d, want %d", topic, got, want)
		}
	}
	if !s.HasPatterns() {
		t.Error("has no patterns")
	}
	got := s.Topics([]string{"orders.us", "other", "audit", "clicks", "orders.us"})
	if want := []string{"audit", "clicks", "orders.eu", "orders.us"}; !slices.Equal(got, want) {
		t.Errorf("subscribes to %v, want %v", got, want)
	}
}

func TestASelectionOfNothingIsEmptyAndNotUnknown(t *testing.T) {
	s, err := NewSelection([]TopicRule{{Allow: []string{"x.*"}}})
	if topics := s.Topics([]string{"y"}); err != nil || topics == nil || len(topics) != 0 {
		t.Errorf("%v, %v", topics, err)
	}
	if s, err = NewSelection([]TopicRule{{Names: []string{"a"}}}); err != nil || s.HasPatterns() {
		t.Errorf("%v: names are no patterns", err)
	}
}

func TestAPatternWithBadSyntaxIsNamed(t *testing.T) {
	for _, bad := range []string{"(", "a)|(b", "[", "*", `\p{Nope}`, "(?<=a)b"} {
		for _, rule := range []TopicRule{{Allow: []string{"ok", bad}}, {Allow: []string{"ok"}, Deny: []string{bad}}} {
			_, err := NewSelection([]TopicRule{rule})
			var wrong *PatternError
			if !errors.As(err, &wrong) || wrong.Expression != bad || errors.Unwrap(wrong) == nil {
				t.Errorf("%q: %v", bad, err)
			}
		}
	}
}

// Shell patterns are the twin: another engine over the same names.
func TestSelectionAgreesWithANaiveTwin(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 0))
	word := func(letters string) string {
		out := make([]byte, 1+random.IntN(3))
		for i := range out {
			out[i] = letters[random.IntN(len(letters))]
		}
		return string(out)
	}
	expression := func(glob string) string {
		var out []byte
		for _, c := range []byte(glob) {
			switch c {
			case '*':
				out = append(out, ".*"...)
			case '?':
				out = append(out, '.')
			default:
				out = append(out, c)
			}
		}
		return string(out)
	}
	for range 5000 {
		allow, deny, topic := word("ab*?"), word("ab*?"), word("ab")
		s, err := NewSelection([]TopicRule{{Names: []string{"named"}, Allow: []string{expression(allow)}, Deny: []string{expression(deny)}}})
		if err != nil {
			t.Fatal(err)
		}
		allowed, _ := path.Match(allow, topic)
		denied, _ := path.Match(deny, topic)
		_, wanted := s.Rule(topic)
		if want := allowed && !denied; wanted != want || slices.Contains(s.Topics([]string{topic}), topic) != want {
			t.Fatalf("%q: allow %q, deny %q: wanted %t", topic, allow, deny, wanted)
		}
	}
}
