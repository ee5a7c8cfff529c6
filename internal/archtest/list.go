package archtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// Package is one package as the go command lists it.
type Package struct {
	ImportPath     string
	Name           string
	Dir            string
	Standard       bool
	GoFiles        []string // files of this build
	CgoFiles       []string
	IgnoredGoFiles []string // files of other builds, tests included
	Imports        []string // of GoFiles and CgoFiles
	Export         string   // file with export data, if it was asked for
	Error          *struct{ Err string }
}

// Path is the package's path inside the module.
func (p *Package) Path() string {
	return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, Module), "/")
}

// Tree is the module as it lies on disk, or as it would with some files replaced.
type Tree struct {
	// Root is the module's folder.
	Root string
	// Overlay maps absolute file names to the files to read instead, as in the go command's -overlay.
	Overlay map[string]string
}

// FindTree returns the tree of the module the current folder belongs to.
func FindTree(ctx context.Context) (Tree, error) {
	output, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return Tree{}, fmt.Errorf("go env GOMOD: %w", err)
	}
	file := strings.TrimSpace(string(output))
	if file == "" || file == os.DevNull {
		return Tree{}, errors.New("not inside a module")
	}
	return Tree{Root: filepath.Dir(file)}, nil
}

// List returns the packages that match the patterns. With dependencies it also returns everything they import, each
// with its export data, which compiles what was not compiled yet.
func (t Tree) List(ctx context.Context, dependencies bool, patterns ...string) (packages []*Package, err error) {
	arguments := []string{"list", "-e", "-json=ImportPath,Name,Dir,Standard,GoFiles,CgoFiles,IgnoredGoFiles,Imports,Export,Error"}
	if dependencies {
		arguments = append(arguments, "-deps", "-export")
	}
	if len(t.Overlay) > 0 {
		file, err := t.writeOverlay()
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, os.Remove(file)) }()
		arguments = append(arguments, "-overlay="+file)
	}
	command := exec.CommandContext(ctx, "go", append(arguments, patterns...)...)
	command.Dir = t.Root
	var complaints bytes.Buffer
	command.Stderr = &complaints
	output, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, complaints.Bytes())
	}
	for decoder := json.NewDecoder(bytes.NewReader(output)); ; {
		var listed Package
		if err := decoder.Decode(&listed); errors.Is(err, io.EOF) {
			return packages, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		packages = append(packages, &listed)
	}
}

func (t Tree) writeOverlay() (string, error) {
	text, err := json.Marshal(map[string]any{"Replace": t.Overlay})
	if err != nil {
		return "", err
	}
	file, err := os.CreateTemp("", "overlay-*.json")
	if err != nil {
		return "", err
	}
	_, err = file.Write(text)
	if err = errors.Join(err, file.Close()); err != nil {
		return "", errors.Join(err, os.Remove(file.Name()))
	}
	return file.Name(), nil
}

// onDisk is the file that stands for the named one.
func (t Tree) onDisk(name string) string {
	if replacement, ok := t.Overlay[name]; ok {
		return replacement
	}
	return name
}

// allImports adds the imports of files left out of this build to those the go command named.
func (t Tree) allImports(listed *Package) ([]string, error) {
	imports := append([]string(nil), listed.Imports...)
	for _, name := range listed.IgnoredGoFiles {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file := filepath.Join(listed.Dir, name)
		parsed, err := parser.ParseFile(token.NewFileSet(), t.onDisk(file), nil, parser.ImportsOnly)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		for _, spec := range parsed.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return nil, fmt.Errorf("%s: import %s: %w", file, spec.Path.Value, err)
			}
			imports = append(imports, path)
		}
	}
	return imports, nil
}
