package archtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// CheckImports returns one line per import that its package's row does not allow, and per package in no row.
func CheckImports(ctx context.Context, tree Tree) ([]string, error) {
	packages, err := tree.List(ctx, false, "./...")
	if err != nil {
		return nil, err
	}
	var violations []string
	for _, listed := range packages {
		if len(listed.GoFiles)+len(listed.CgoFiles)+len(listed.IgnoredGoFiles) == 0 {
			continue // nothing but tests, or nothing at all
		}
		row, found := rowOf(listed.Path())
		if !found {
			violations = append(violations, fmt.Sprintf("%s is in no row of archtest.Table", listed.Path()))
			continue
		}
		imports, err := tree.allImports(listed)
		if err != nil {
			return nil, err
		}
		slices.Sort(imports)
		for _, imported := range slices.Compact(imports) {
			if !row.allows(imported) {
				violations = append(violations, fmt.Sprintf("%s may not import %s", listed.Path(), imported))
			}
		}
	}
	return violations, nil
}

// Missing returns the expected packages that do not exist.
func Missing(ctx context.Context, tree Tree) ([]string, error) {
	packages, err := tree.List(ctx, false, "./...")
	if err != nil {
		return nil, err
	}
	var missing []string
	for _, path := range Expected {
		if !slices.ContainsFunc(packages, func(p *Package) bool { return p.Path() == path }) {
			missing = append(missing, path)
		}
	}
	return missing, nil
}

// rowOf returns the row with the longest path that covers the package.
func rowOf(path string) (best Row, found bool) {
	for _, row := range Table {
		if covers(row.Path, path) && (!found || len(row.Path) > len(best.Path)) {
			best, found = row, true
		}
	}
	return best, found
}

// covers reports whether the import path is the given one or below it.
func covers(path, imported string) bool {
	return path == anything || imported == path || strings.HasPrefix(imported, path+"/")
}

func coveredBy(paths []string, imported string) bool {
	return slices.ContainsFunc(paths, func(path string) bool { return covers(path, imported) })
}

func (r Row) allows(imported string) bool {
	if imported == "C" {
		return false // no package of this module needs a C compiler
	}
	if inside, ok := strings.CutPrefix(imported, Module+"/"); ok {
		return covers(r.Path, inside) || coveredBy(r.Project, inside)
	}
	if first, _, _ := strings.Cut(imported, "/"); strings.Contains(first, ".") {
		return coveredBy(r.Outside, imported)
	}
	return slices.Contains(r.AllowedStd, imported) || !coveredBy(r.DeniedStd, imported)
}
