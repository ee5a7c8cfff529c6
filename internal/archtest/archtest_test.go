package archtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func findTree(t *testing.T) Tree {
	t.Helper()
	tree, err := FindTree(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// The go command reads the sources in a process of its own, which the test cache does not see. Reading the folders
	// here makes a cached result depend on every file's size and time.
	err = filepath.WalkDir(tree.Root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && path != tree.Root && strings.HasPrefix(entry.Name(), ".") {
			return fs.SkipDir
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// TestImportArrows is the table of ARCHITECTURE.md as a test.
func TestImportArrows(t *testing.T) {
	violations, err := CheckImports(t.Context(), findTree(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, violation := range violations {
		t.Error(violation)
	}
}

func TestPurePackagesArePure(t *testing.T) {
	violations, err := CheckPure(t.Context(), findTree(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, violation := range violations {
		t.Error(violation)
	}
}

func TestEveryExpectedPackageExists(t *testing.T) {
	missing, err := Missing(t.Context(), findTree(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range missing {
		t.Errorf("package %s is expected by archtest.Expected and does not exist", path)
	}
}

func TestEveryExpectedPackageHasARow(t *testing.T) {
	for _, path := range Expected {
		if _, found := rowOf(path); !found {
			t.Errorf("expected package %s is in no row of Table", path)
		}
	}
}

// plant returns the tree with one more file in a package.
func plant(t *testing.T, path, imports, declarations string) Tree {
	t.Helper()
	tree := findTree(t)
	packages, err := tree.List(t.Context(), false, "./"+path)
	if err != nil || len(packages) != 1 || packages[0].Name == "" {
		t.Fatalf("package %s to plant in: %v, %v", path, packages, err)
	}
	source := "package " + packages[0].Name + "\n\n" + imports + "\n\n" + declarations + "\n"
	planted := filepath.Join(t.TempDir(), "planted.go")
	if err := os.WriteFile(planted, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	tree.Overlay = map[string]string{filepath.Join(packages[0].Dir, "planted.go"): planted}
	return tree
}

// TestPlantedImportsAreFound proves that TestImportArrows can fail.
func TestPlantedImportsAreFound(t *testing.T) {
	for _, row := range []struct{ path, imported string }{
		{"actors", "github.com/IBM/sarama"},
		{"actors", Module + "/pkg/api"},
		{"rebalance", "context"},
		{"rebalance", "sync"},
		{"rebalance", "os/exec"},
		{"commit", "sync/atomic"},
		{"commit", "go.uber.org/zap"},
		{"pkg/kafka", "testing"},
		{"pkg/event", Module + "/actors"},
	} {
		t.Run(row.path+" "+row.imported, func(t *testing.T) {
			tree := plant(t, row.path, `import _ "`+row.imported+`"`, "")
			violations, err := CheckImports(t.Context(), tree)
			if err != nil {
				t.Fatal(err)
			}
			if want := row.path + " may not import " + row.imported; !slices.Contains(violations, want) {
				t.Errorf("planted import was not reported: %q lacks %q", violations, want)
			}
		})
	}
}

// TestPlantedImpuritiesAreFound proves that TestPurePackagesArePure can fail.
func TestPlantedImpuritiesAreFound(t *testing.T) {
	for _, row := range []struct{ name, imports, code, want string }{
		{"clock", `import planted "time"`, `var _ = planted.Now()`, "time.Now"},
		{"clock as a value", `import planted "time"`, `var plantedNow = planted.Now`, "time.Now"},
		{"sleep", `import planted "time"`, `func plantedSleep() { planted.Sleep(1) }`, "time.Sleep"},
		{"timer", `import planted "time"`, `type plantedTimer struct{ *planted.Timer }`, "time.Timer"},
		{"wall clock", `import planted "time"`, `func plantedUnix(at planted.Time) int64 { return at.UnixMilli() }`, "time.Time.UnixMilli"},
		{"wall clock embedded", `import planted "time"`, `func plantedDay(at struct{ planted.Time }) int { return at.YearDay() }`, "time.Time.YearDay"},
		{"wall clock in words", `import planted "time"`, `func plantedFormat(at planted.Time) string { return at.Format("15") }`, "time.Time.Format"},
		{"wall clock in seconds", `import planted "time"`, `func plantedSeconds(at planted.Time) int64 { return at.Unix() }`, "time.Time.Unix"},
		{"wall clock method value", `import planted "time"`, `var _ = planted.Time.Round`, "time.Time.Round"},
		{"goroutine", "", `func plantedGo() { go func() {}() }`, "go statement"},
		{"channel", "", `func plantedChannel(c chan int) { c <- 1 }`, "channel type"},
		{"select", "", `func plantedSelect() { select {} }`, "select"},
		{"global randomness", `import planted "math/rand/v2"`, `func plantedRandom() int { return planted.IntN(6) }`, "math/rand/v2.IntN"},
	} {
		t.Run(row.name, func(t *testing.T) {
			violations, err := CheckPure(t.Context(), plant(t, "rebalance", row.imports, row.code))
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(violations, func(v string) bool {
				return strings.HasPrefix(v, "rebalance/") && strings.Contains(v, row.want)
			}) {
				t.Errorf("planted %s was not reported: %q lacks %q", row.name, violations, row.want)
			}
		})
	}
}

// TestPurePackagesMayCompareInstants keeps the check from growing stricter than the design.
func TestPurePackagesMayCompareInstants(t *testing.T) {
	tree := plant(t, "rebalance", "import (\nplanted \"time\"\nplantedRand \"math/rand/v2\"\n)", `
func plantedPure(now, then planted.Time, seed uint64) bool {
	wait := planted.Duration(plantedRand.New(plantedRand.NewPCG(seed, 0)).Int64N(int64(planted.Second)))
	return now.Before(then.Add(wait.Round(planted.Millisecond))) || now.Sub(then) > 0 || then.IsZero()
}`)
	violations, err := CheckPure(t.Context(), tree)
	if err != nil {
		t.Fatal(err)
	}
	for _, violation := range violations {
		t.Error(violation)
	}
}

func TestRowOfPrefersTheLongestPath(t *testing.T) {
	for path, want := range map[string]string{
		"actors": "actors", "examples/quickstart": "examples", "integration/launch": "integration", "internal/wire/x": "internal/wire",
	} {
		if row, found := rowOf(path); !found || row.Path != want {
			t.Errorf("rowOf(%s) = %q, %v; want %q", path, row.Path, found, want)
		}
	}
	for _, path := range []string{"actorsx", "internal", "pkg", ""} {
		if row, found := rowOf(path); found {
			t.Errorf("rowOf(%q) = %q, want none", path, row.Path)
		}
	}
}
