#!/usr/bin/env bash
# Runs each native fuzz target of the module for FUZZTIME, or those whose name matches the argument. The go command fuzzes one target of one package at a time, so
# they are found first. A finding is written below the package's testdata/fuzz, as the go command does; commit it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# `go test -list` prints a package's targets and then "ok", the package and the time.
listing=$(go test -list '^Fuzz' ./...)
targets=$(awk -v only="${1:-.}" '/^Fuzz/ && $1 ~ only { names[++n] = $1 } /^ok/ { for (i = 1; i <= n; i++) print $2, names[i]; n = 0 }' <<<"$listing")
if [[ -z $targets ]]; then
	echo "no fuzz targets"
	exit 0
fi
failed=0
while read -r package name; do
	echo "== $package $name"
	go test -run '^$' -fuzz "^$name\$" -fuzztime "${FUZZTIME:-15s}" "$package" </dev/null || failed=1
done <<<"$targets"
exit "$failed"
