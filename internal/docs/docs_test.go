// Package docs keeps the documents true: what they show of the code is compared with the code.
package docs

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/troupego/troupe/rebalance"
)

var update = flag.Bool("update", false, "write the generated parts of ARCHITECTURE.md anew")

const root = "../.."

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestReadmeShowsTheMinimalExampleAsItIs(t *testing.T) {
	source := read(t, "examples/minimal/main.go")
	source = source[strings.Index(source, "package main"):]
	if !strings.Contains(read(t, "README.md"), "```go\n"+source+"```") {
		t.Error("the Go block of README.md is not examples/minimal/main.go")
	}
}

func TestLinksOfTheDocumentsLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	for _, doc := range []string{"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "examples/README.md"} {
		for _, m := range link.FindAllStringSubmatch(read(t, doc), -1) {
			if _, err := os.Stat(filepath.Join(root, filepath.Dir(doc), m[1])); err != nil {
				t.Errorf("%s links to %s: %v", doc, m[1], err)
			}
		}
	}
}

// TestArchitectureShowsWhatTheCodeSays compares the generated parts; -update writes them.
func TestArchitectureShowsWhatTheCodeSays(t *testing.T) {
	text := read(t, "ARCHITECTURE.md")
	fresh := text
	for name, content := range map[string]string{
		"member chart":      chart(rebalance.MemberChart()),
		"stand-alone chart": chart(rebalance.StandaloneChart()),
		"partition chart":   chart(rebalance.PartitionChart()),
		"link chart":        chart(rebalance.LinkChart()),
		"message catalog":   messageTable(t),
	} {
		begin, end := "<!-- generated: "+name+" -->\n", "<!-- end -->"
		from := strings.Index(fresh, begin)
		if from < 0 {
			t.Fatalf("ARCHITECTURE.md has no part %q", name)
		}
		from += len(begin)
		to := strings.Index(fresh[from:], end)
		if to < 0 {
			t.Fatalf("part %q of ARCHITECTURE.md has no end", name)
		}
		fresh = fresh[:from] + content + fresh[from+to:]
	}
	if fresh == text {
		return
	}
	if *update {
		if err := os.WriteFile(filepath.Join(root, "ARCHITECTURE.md"), []byte(fresh), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Error("ARCHITECTURE.md is not what the code says; go test ./internal/docs -update")
}

func chart(mermaid string) string {
	return "```mermaid\n" + strings.TrimSpace(mermaid) + "\n```\n"
}

// messageTable lists the messages of actors/messages.go by their comments: "name: from -> to, when.".
func messageTable(t *testing.T) string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, "actors/messages.go"), nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("| message | way and meaning | stamped with |\n|---|---|---|\n")
	for _, decl := range file.Decls {
		gen, ok := decl.(*ast.GenDecl)
		if !ok || gen.Tok != token.TYPE || gen.Doc == nil {
			continue
		}
		spec := gen.Specs[0].(*ast.TypeSpec)
		fields, ok := spec.Type.(*ast.StructType)
		text := strings.Join(strings.Fields(gen.Doc.Text()), " ")
		_, meaning, found := strings.Cut(text, ": ")
		if !ok || !found || spec.Name.Name == "silent" { // a mark, not a message
			continue
		}
		var stamps []string
		for _, f := range fields.Fields.List {
			for _, n := range f.Names {
				switch n.Name {
				case "epoch", "generation", "seq", "id", "delivery":
					stamps = append(stamps, n.Name)
				}
			}
		}
		b.WriteString("| `" + spec.Name.Name + "` | " + meaning + " | " + strings.Join(stamps, ", ") + " |\n")
	}
	return b.String()
}
