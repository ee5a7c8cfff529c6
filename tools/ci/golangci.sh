#!/usr/bin/env bash
# Prints the path of the golangci-lint pinned in tools/go.mod, building it first when this machine has none yet.
#
# The build takes minutes on a small machine, so the binary is kept in the user's cache folder. Its name carries the
# linter's version, the Go toolchain (a linter built with an older Go refuses newer code) and tools/go.sum, so a bump of
# any of the three builds a new one and nothing ever runs a stale one.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
package=github.com/golangci/golangci-lint/v2/cmd/golangci-lint

cd "$here"
# GOFLAGS=-mod=mod in a caller's environment must not edit the pinned versions.
export GOFLAGS=-mod=readonly GOWORK=off
version=$(go list -m -f '{{.Version}}' github.com/golangci/golangci-lint/v2)
sum=$(git hash-object go.sum | cut -c1-8)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/troupe/bin
binary=$cache/golangci-lint-$version-$(go env GOVERSION)-$(go env GOOS)-$(go env GOARCH)-$sum

if [[ ! -x $binary ]]; then
	mkdir -p "$cache"
	echo "building golangci-lint $version (once per version; some minutes)" >&2
	started=$SECONDS
	# Built beside its place and renamed: two builds at once, or one that is cut off, never leave half a binary.
	temporary=$(mktemp "$binary.XXXXXX")
	trap 'rm -f "$temporary"' EXIT
	go build -trimpath -ldflags '-s -w' -o "$temporary" "$package" >&2
	mv "$temporary" "$binary"
	trap - EXIT
	echo "built golangci-lint $version in $((SECONDS - started)) s" >&2
fi
echo "$binary"
