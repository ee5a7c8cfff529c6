// Package docs keeps the documents true: what they show of the code is compared with the code.
package docs

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the generated parts of the documents anew")

// Root returns the module's root, going up from the folder that a test runs in.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		above := filepath.Dir(dir)
		if above == dir {
			t.Fatal("no go.mod above the test's folder")
		}
		dir = above
	}
}

// Read returns a file of the module.
func Read(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(Root(t), path))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// CheckPart compares a generated part of a document, which lies between <!-- generated: name --> and <!-- end -->, with what
// the code says. With -update it writes the part.
func CheckPart(t testing.TB, document, name, content string) {
	t.Helper()
	text := Read(t, document)
	begin, end := "<!-- generated: "+name+" -->\n", "<!-- end -->"
	head, rest, found := strings.Cut(text, begin)
	if !found {
		t.Fatalf("%s has no part %q", document, name)
	}
	old, tail, found := strings.Cut(rest, end)
	switch {
	case !found:
		t.Fatalf("part %q of %s has no end", name, document)
	case old == content:
	case *update:
		if err := os.WriteFile(filepath.Join(Root(t), document), []byte(head+begin+content+end+tail), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("part %q of %s is not what the code says: run this test with -update", name, document)
	}
}
