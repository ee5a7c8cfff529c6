package archtest

import (
	"context"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// pureTimeMethods are the methods of time.Time a pure package may use. They compare or move an instant and work on the
// monotonic clock where both sides have it; every other method reads the wall clock or a place on the globe.
var pureTimeMethods = []string{"Add", "After", "Before", "Compare", "Equal", "IsZero", "Sub"}

// pureFunctions are the only functions a pure package may use of packages that can also be impure.
var pureFunctions = map[string][]string{
	"time":         {"ParseDuration"},
	"math/rand/v2": {"New", "NewChaCha8", "NewPCG", "NewZipf"},
}

// CheckPure returns one line per thing a pure package does and must not do. Import lists are CheckImports' business.
func CheckPure(ctx context.Context, tree Tree) ([]string, error) {
	packages, err := tree.List(ctx, false, "./...")
	if err != nil {
		return nil, err
	}
	var pure []string
	for _, listed := range packages {
		if row, found := rowOf(listed.Path()); found && row.Pure && len(listed.GoFiles) > 0 {
			pure = append(pure, listed.ImportPath)
		}
	}
	if len(pure) == 0 {
		return nil, nil
	}
	if packages, err = tree.List(ctx, true, pure...); err != nil {
		return nil, err
	}
	exports := map[string]string{}
	for _, listed := range packages {
		exports[listed.ImportPath] = listed.Export
	}
	var violations []string
	for _, listed := range packages {
		if slices.Contains(pure, listed.ImportPath) {
			found, err := tree.checkPackage(listed, exports)
			if err != nil {
				return nil, err
			}
			violations = append(violations, found...)
		}
	}
	return violations, nil
}

// checkPackage type-checks one package from its sources, its dependencies from their export data. A package that does
// not type-check is a violation too: nothing is known about it.
func (t Tree) checkPackage(listed *Package, exports map[string]string) ([]string, error) {
	files := token.NewFileSet()
	var parsed []*ast.File
	for _, name := range listed.GoFiles {
		file := filepath.Join(listed.Dir, name)
		source, err := os.ReadFile(t.onDisk(file))
		if err != nil {
			return nil, err
		}
		syntax, err := parser.ParseFile(files, file, source, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		parsed = append(parsed, syntax)
	}
	lookup := func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("no export data for %s", path)
		}
		return os.Open(exports[path])
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}, Types: map[ast.Expr]types.TypeAndValue{}}
	// With an Error function the type checker goes on after an error, so one broken line hides nothing else.
	config := types.Config{Importer: importer.ForCompiler(files, "gc", lookup), Error: func(error) {}}
	checker := &pureChecker{tree: t, files: files, info: info}
	if _, err := config.Check(listed.ImportPath, files, parsed, info); err != nil {
		checker.violations = append(checker.violations, fmt.Sprintf("%s does not type-check: %v", listed.Path(), err))
	}
	for _, syntax := range parsed {
		ast.Inspect(syntax, checker.inspect)
	}
	return checker.violations, nil
}

type pureChecker struct {
	tree       Tree
	files      *token.FileSet
	info       *types.Info
	violations []string
}

func (c *pureChecker) report(position token.Pos, format string, args ...any) {
	at := c.files.Position(position)
	if relative, err := filepath.Rel(c.tree.Root, at.Filename); err == nil {
		at.Filename = filepath.ToSlash(relative)
	}
	c.violations = append(c.violations, fmt.Sprintf("%s:%d: %s", at.Filename, at.Line, fmt.Sprintf(format, args...)))
}

func (c *pureChecker) inspect(node ast.Node) bool {
	switch node := node.(type) {
	case *ast.GoStmt:
		c.report(node.Pos(), "go statement in a pure package")
	case *ast.SelectStmt:
		c.report(node.Pos(), "select in a pure package")
	case *ast.ChanType:
		c.report(node.Pos(), "channel type in a pure package")
	case *ast.Ident:
		c.checkUse(node)
	case ast.Expr:
		// A channel that comes from elsewhere is one too.
		if kind, known := c.info.Types[node]; known && kind.Type != nil && !kind.IsType() {
			if _, channel := kind.Type.Underlying().(*types.Chan); channel {
				c.report(node.Pos(), "channel in a pure package")
			}
		}
	}
	return true
}

// checkUse looks at what a name stands for, so renamed and dot imports, method values and embedded times count too.
func (c *pureChecker) checkUse(name *ast.Ident) {
	used := c.info.Uses[name]
	if used == nil || used.Pkg() == nil {
		return
	}
	function, ok := used.(*types.Func)
	if !ok {
		if _, isType := used.(*types.TypeName); isType && used.Pkg().Path() == "time" && slices.Contains([]string{"Timer", "Ticker", "Location"}, used.Name()) {
			c.report(name.Pos(), "time.%s in a pure package", used.Name())
		}
		return
	}
	receiver := function.Signature().Recv()
	if receiver == nil {
		if allowed, restricted := pureFunctions[used.Pkg().Path()]; restricted && !slices.Contains(allowed, used.Name()) {
			c.report(name.Pos(), "%s.%s in a pure package", used.Pkg().Path(), used.Name())
		}
		return
	}
	kind := receiver.Type()
	if pointer, ok := kind.(*types.Pointer); ok {
		kind = pointer.Elem()
	}
	if named, ok := kind.(*types.Named); ok && named.Obj().Pkg() != nil && named.Obj().Pkg().Path() == "time" &&
		named.Obj().Name() == "Time" && !slices.Contains(pureTimeMethods, used.Name()) {
		c.report(name.Pos(), "wall-clock method time.Time.%s in a pure package", used.Name())
	}
}
