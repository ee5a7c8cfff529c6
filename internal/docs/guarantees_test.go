package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// guaranteePages has a page for each guarantee, in order.
var guaranteePages = []string{
	"g01-at-least-once", "g02-order", "g03-commits", "g04-ownership", "g05-revoke", "g06-membership", "g07-isolation", "g08-bounds",
	"g09-nothing-silent", "g10-one-token",
}

const guaranteeFolder = "docs/guarantees"

var (
	quotedTest = regexp.MustCompile("`((?:Test|Fuzz)[A-Z][A-Za-z0-9_]*)((?:/[A-Za-z0-9_]+)*)`")
	quoted     = regexp.MustCompile("`([^`]+)`")
)

// testFunctions are the test functions of the module by name, each with the sources of the packages' tests that have one.
func testFunctions(t *testing.T) map[string]string {
	t.Helper()
	type folder struct {
		names []string
		text  strings.Builder
	}
	folders := make(map[string]*folder)
	err := filepath.WalkDir(Root(t), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, source, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir := folders[filepath.Dir(path)]
		if dir == nil {
			dir = &folder{}
			folders[filepath.Dir(path)] = dir
		}
		dir.text.Write(source)
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && (strings.HasPrefix(f.Name.Name, "Test") || strings.HasPrefix(f.Name.Name, "Fuzz")) {
				dir.names = append(dir.names, f.Name.Name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]string)
	for _, dir := range folders {
		for _, name := range dir.names {
			out[name] += dir.text.String()
		}
	}
	return out
}

func TestEachGuaranteeHasAPageWithTheNamesOfItsTests(t *testing.T) {
	tests := testFunctions(t)
	for i, page := range guaranteePages {
		name := guaranteeFolder + "/" + page + ".md"
		text := Read(t, name)
		if heading := fmt.Sprintf("# G%d: ", i+1); !strings.HasPrefix(text, heading) {
			t.Errorf("%s does not begin with %q", name, heading)
		}
		_, list, found := strings.Cut(text, "\n## Tests\n")
		if named := quotedTest.FindAllString(list, -1); !found || len(slices.Compact(slices.Sorted(slices.Values(named)))) < 3 {
			t.Errorf("%s names %d tests", name, len(named))
		}
		for _, m := range quotedTest.FindAllStringSubmatch(text, -1) {
			sources, ok := tests[m[1]]
			if !ok {
				t.Errorf("%s names %s, which does not exist", name, m[1])
				continue
			}
			for _, part := range strings.Split(m[2], "/")[1:] {
				if !regexp.MustCompile(`["/]` + part + `["/]`).MatchString(sources) {
					t.Errorf("%s names %s%s, and the tests of that package say nothing of %s", name, m[1], m[2], part)
				}
			}
		}
	}
	pages, err := filepath.Glob(filepath.Join(Root(t), guaranteeFolder, "g*.md"))
	if err != nil || len(pages) != len(guaranteePages) {
		t.Errorf("%d pages for %d guarantees (%v)", len(pages), len(guaranteePages), err)
	}
}

// TestPagesOfGuaranteesNameWhatThereIs looks up what the pages quote of the code: events, mutants, settings, figures.
func TestPagesOfGuaranteesNameWhatThereIs(t *testing.T) {
	mutants, scripts := Read(t, "internal/sim/mutant.go"), filepath.Join(Root(t), "internal/sim/testdata")
	declared := map[string]string{
		"event":  Read(t, "pkg/event/event.go") + Read(t, "pkg/event/control.go") + Read(t, "pkg/event/range.go"),
		"Config": Read(t, "pkg/api/config.go"),
		"Stats":  Read(t, "actors/stats.go"),
	}
	name := regexp.MustCompile(`^\*?(event|Config|Stats\(\)(?:\.Partitions\[i\])?)\.([A-Z]\w+)$`)
	mutant := regexp.MustCompile(`^[a-z]+(-[a-z]+)+$`)
	for _, page := range guaranteePages {
		text := Read(t, guaranteeFolder+"/"+page+".md")
		for _, m := range quoted.FindAllStringSubmatch(text, -1) {
			what := m[1]
			if parts := name.FindStringSubmatch(what); parts != nil {
				kind, _, _ := strings.Cut(parts[1], "(")
				if !regexp.MustCompile(`(?m)^(type |\t|\t[\w, ]+, )` + parts[2] + `[ ,]`).MatchString(declared[kind]) {
					t.Errorf("%s quotes %s, which is not declared", page, what)
				}
			}
			if mutant.MatchString(what) && what != "cooperative-sticky" && !strings.Contains(mutants, `"`+what+`"`) {
				if _, err := os.Stat(filepath.Join(scripts, what+".txt")); err != nil {
					t.Errorf("%s quotes %s, which is neither a mutant nor a script of the simulation", page, what)
				}
			}
		}
	}
}
