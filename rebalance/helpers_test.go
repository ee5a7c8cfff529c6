package rebalance

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

var epoch0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

var errNetwork = errors.New("connection reset")

// typeName is the name of a value's type without the package.
func typeName(v any) string { return reflect.TypeOf(v).Name() }

// summary writes effects as words: the type's name, and for moves the new state.
func summary[E any](effects []E) string {
	words := make([]string, 0, len(effects))
	for _, e := range effects {
		switch e := any(e).(type) {
		case Moved:
			words = append(words, ">"+e.To.String())
		case PartitionMoved:
			words = append(words, ">"+e.To.String())
		case LinkMoved:
			words = append(words, ">"+e.To.String())
		case RevokePartitions:
			words = append(words, fmt.Sprintf("RevokePartitions(%d)", len(e.Grants)))
		case LosePartitions:
			words = append(words, fmt.Sprintf("LosePartitions(%d)", len(e.Grants)))
		case AssignPartitions:
			words = append(words, fmt.Sprintf("AssignPartitions(%d)", len(e.Grants)))
		default:
			words = append(words, typeName(e))
		}
	}
	return strings.Join(words, " ")
}

// implementers returns the names of this package's types (test files apart) that have a method of that name.
func implementers(t *testing.T, method string) []string {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, source, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range parsed.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv != nil && f.Name.Name == method {
				names = append(names, f.Recv.List[0].Type.(*ast.Ident).Name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// checkTable compares the outcome of every state with every input to a table of lines "STATE Input: outcome", and that the
// table has no more and no fewer lines than there are pairs.
func checkTable[S machineState](t *testing.T, table string, states int, inputs []string, run func(state S, input string) string) {
	t.Helper()
	want := make(map[string]string)
	for line := range strings.Lines(strings.TrimSpace(table)) {
		key, outcome, _ := strings.Cut(strings.TrimSpace(line), ":")
		if _, twice := want[key]; twice {
			t.Errorf("%q is twice in the table", key)
		}
		want[key] = strings.TrimSpace(outcome)
	}
	var actual strings.Builder
	failed := false
	for state := range states {
		for _, input := range inputs {
			key := S(state).String() + " " + input
			got := run(S(state), input)
			fmt.Fprintf(&actual, "%s: %s\n", key, got)
			outcome, ok := want[key]
			if !ok || got != outcome {
				failed = true
				t.Errorf("%s\n got  %q\n want %q", key, got, outcome)
			}
			delete(want, key)
		}
	}
	for key := range want {
		failed = true
		t.Errorf("the table has %q, which does not exist", key)
	}
	if failed {
		t.Logf("actual table:\n%s", actual.String())
	}
}

func sameNames(t *testing.T, what string, got, want []string) {
	t.Helper()
	got, want = slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))
	if !slices.Equal(got, want) {
		t.Fatalf("%s: the test knows %v, the package has %v", what, got, want)
	}
}

func tp(topic string, partition int32) kafka.TopicPartition {
	return kafka.TopicPartition{Topic: topic, Partition: partition}
}

// find returns the only effect of type T, and fails when there is none or more than one.
func find[T, E any](t *testing.T, effects []E) T {
	t.Helper()
	var found []T
	for _, e := range effects {
		if v, ok := any(e).(T); ok {
			found = append(found, v)
		}
	}
	if len(found) != 1 {
		var zero T
		t.Fatalf("%d effects of type %T in [%s]", len(found), zero, summary(effects))
	}
	return found[0]
}
