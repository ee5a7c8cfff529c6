package docs

import (
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

func TestReadmeShowsTheMinimalExampleAsItIs(t *testing.T) {
	source := Read(t, "examples/minimal/main.go")
	source = source[strings.Index(source, "package main"):]
	if !strings.Contains(Read(t, "README.md"), "```go\n"+source+"```") {
		t.Error("the Go block of README.md is not examples/minimal/main.go")
	}
}

func TestLinksOfTheDocumentsLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	documents := []string{
		"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "examples/README.md", "docs/README.md", "docs/live-upgrade.md", "docs/simulation.md",
		"docs/token.md",
		guaranteeFolder + "/README.md",
	}
	for _, page := range guaranteePages {
		documents = append(documents, guaranteeFolder+"/"+page+".md")
		for _, index := range []string{"README.md", "ARCHITECTURE.md", guaranteeFolder + "/README.md"} {
			if !strings.Contains(Read(t, index), page+".md)") {
				t.Errorf("%s does not link to %s", index, page)
			}
		}
	}
	for _, doc := range documents {
		for _, m := range link.FindAllStringSubmatch(Read(t, doc), -1) {
			if _, err := os.Stat(filepath.Join(Root(t), filepath.Dir(doc), m[1])); err != nil {
				t.Errorf("%s links to %s: %v", doc, m[1], err)
			}
		}
	}
}

// TestTokenPageShowsCodeThatCompiles: the page's samples are parts of the Go examples, but for how deep they are indented.
func TestTokenPageShowsCodeThatCompiles(t *testing.T) {
	flat := func(source string) string {
		lines := strings.Split(source, "\n")
		for i := range lines {
			lines[i] = strings.TrimSpace(lines[i])
		}
		return strings.Join(lines, "\n")
	}
	page, examples := Read(t, "docs/token.md"), flat(Read(t, "pkg/api/example_token_test.go"))
	blocks := strings.Split(page, "```go\n")[1:]
	for _, block := range blocks {
		if block, _, _ = strings.Cut(block, "```"); !strings.Contains(examples, flat(block)) {
			t.Errorf("no Go example has this sample:\n%s", block)
		}
	}
	named := regexp.MustCompile("`(Example\\w+)`").FindAllStringSubmatch(page, -1)
	for _, m := range named {
		if !strings.Contains(examples, "func "+m[1]+"()") {
			t.Errorf("there is no %s", m[1])
		}
	}
	if len(blocks) == 0 || len(named) == 0 {
		t.Error("the page has no samples")
	}
}

// TestArchitectureShowsWhatTheCodeSays compares the generated parts; -update writes them. The tables of errors are compared in
// package actors, which has the decisions.
func TestArchitectureShowsWhatTheCodeSays(t *testing.T) {
	const document = "ARCHITECTURE.md"
	CheckPart(t, document, "member chart", chart(rebalance.MemberChart()))
	CheckPart(t, document, "stand-alone chart", chart(rebalance.StandaloneChart()))
	CheckPart(t, document, "partition chart", chart(rebalance.PartitionChart()))
	CheckPart(t, document, "link chart", chart(rebalance.LinkChart()))
	CheckPart(t, document, "heartbeat chart", chart(rebalance.PulseChart()))
	CheckPart(t, document, "message catalog", messageTable(t))
}

// TestSequenceChartsSendMessagesThatThereAre reads the sequence charts: whatever one actor of the tree sends to another is a
// message of the catalog.
func TestSequenceChartsSendMessagesThatThereAre(t *testing.T) {
	catalog := messageTable(t)
	actor := regexp.MustCompile(`^participant (\w+) as (root|group|heartbeat|committer|partition.*|runner)$`)
	arrow := regexp.MustCompile(`^(\w+)-?->>(\w+): (\w+)`)
	charts, arrows := 0, 0
	for _, block := range strings.Split(Read(t, "ARCHITECTURE.md"), "```mermaid\nsequenceDiagram\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		charts++
		ours := make(map[string]bool)
		for line := range strings.Lines(block) {
			line = strings.TrimSpace(line)
			if m := actor.FindStringSubmatch(line); m != nil {
				ours[m[1]] = true
			}
			if m := arrow.FindStringSubmatch(line); m != nil && ours[m[1]] && ours[m[2]] {
				arrows++
				if !strings.Contains(catalog, "| `"+m[3]+"` |") {
					t.Errorf("%q: no such message", line)
				}
			}
		}
	}
	if charts < 5 || arrows < 50 {
		t.Errorf("%d charts with %d messages were found", charts, arrows)
	}
}

func chart(mermaid string) string {
	return "```mermaid\n" + strings.TrimSpace(mermaid) + "\n```\n"
}

// messageTable lists the messages of package actors by their comments: "name: from -> to, when.". Those of messages.go come
// first, then those that stand beside what they are for.
func messageTable(t *testing.T) string {
	t.Helper()
	const first = "messages.go"
	files, err := filepath.Glob(filepath.Join(Root(t), "actors/*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("| message | way and meaning | stamped with |\n|---|---|---|\n")
	b.WriteString(messageRows(t, filepath.Join(Root(t), "actors", first)))
	for _, file := range files {
		if name := filepath.Base(file); name != first && !strings.HasSuffix(name, "_test.go") {
			b.WriteString(messageRows(t, file))
		}
	}
	return b.String()
}

func messageRows(t *testing.T, path string) string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, decl := range file.Decls {
		gen, ok := decl.(*ast.GenDecl)
		if !ok || gen.Tok != token.TYPE || gen.Doc == nil {
			continue
		}
		spec := gen.Specs[0].(*ast.TypeSpec)
		fields, ok := spec.Type.(*ast.StructType)
		text := strings.Join(strings.Fields(gen.Doc.Text()), " ")
		_, meaning, found := strings.Cut(text, ": ")
		if !ok || !found || !strings.Contains(meaning, "->") {
			continue // no message
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
