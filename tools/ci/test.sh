#!/usr/bin/env bash
# `make test`: every stage runs even if an earlier one failed, because one run should tell all that is wrong. At the end:
# the lines of go test, the seconds of each stage, and the brokers the suites really ran on.
#
#   TROUPE_REQUIRE_KAFKA=1   no real Kafka is a failure instead of a loud line
#   TROUPE_KAFKA_VERSION     which Kafka to start; TROUPE_KAFKA_BROKERS: use that cluster instead
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

work=$(mktemp -d "${TMPDIR:-/tmp}/troupe-test.XXXXXX")
trap 'rm -rf "$work"' EXIT
results=$work/results brokers=$work/brokers stages=$work/stages
: >"$results" >"$brokers" >"$stages"
# integration/launch appends a line per broker used and per suite skipped: go test shows no output of a passing package.
export TROUPE_BROKER_LOG=$brokers
began=$SECONDS
failures=()

stage() { # stage NAME COMMAND...
	local name=$1 started=$SECONDS verdict=ok
	shift
	printf '\n== %s\n' "$name"
	"$@" </dev/null || { verdict=FAILED && failures+=("$name"); }
	printf '%-12s %4d s  %s\n' "$name" "$((SECONDS - started))" "$verdict" | tee -a "$stages"
}

# go test with its output both shown and kept.
tests() { go test "$@" 2>&1 | tee -a "$results"; }

lint() {
	local linter
	linter=$(tools/ci/golangci.sh) && "$linter" run ./...
}

unit() {
	local packages
	packages=$(go list ./... | grep -v -E '/integration(/|$)') || return 1
	# shellcheck disable=SC2086 # one word per package
	tests -race -timeout 5m $packages
}

# What a new user runs first has to end well by itself and say so in its last line.
example() { # example NAME PATTERN [FLAG...]: the last line of the example's output has to match
	local name=$1 pattern=$2 limit=()
	shift 2
	if command -v timeout >/dev/null; then limit=(timeout --kill-after=10 120); fi
	"${limit[@]+"${limit[@]}"}" go run "./examples/$name" "$@" >"$work/$name" || {
		echo "go run ./examples/$name ended with status $?"
		cat "$work/$name"
		return 1
	}
	tail -n 1 "$work/$name" | tee "$work/$name.json"
	grep -q -E "$pattern" "$work/$name.json" || { echo "its last line is not the JSON result" && return 1; }
}

examples() {
	go build -o "$work/examples/" ./examples/... || return 1
	local failed=0 ordered='^[{]"produced":20000,"processed":[0-9]+,"distinct":20000,"committed":20000,"lag":0,"order_violations":0,.*[}]$'
	example quickstart '^[{]"produced":.*[}]$' || failed=1
	example keyorder "$ordered" || failed=1
	example asyncack "$ordered" || failed=1
	example standalone '^[{]"produced":20000,"wanted":[1-9][0-9]*,"replayed":[0-9]+,"lost":0,"repeated":0,"early":0,.*[}]$' || failed=1
	example control '^[{]"checks":5,"failed":0[}]$' || failed=1
	example capability '^[{]"checks":7,"failed":0,.*[}]$' || failed=1
	example replay '^[{]"produced":30000,"live":[0-9]+,"wanted":10000,"replayed":10000,"lost":0,"repeated":0,"outside":0,.*[}]$' || failed=1
	example rebalance '"lost":0,"repeated":[0-9]+,"overlaps":0,.*"lag":0,' -every 500ms -table=false || failed=1
	return "$failed"
}

# Never from the test cache: that a broker served it yesterday says nothing about today.
integration() {
	tests -race -count=1 -timeout 9m ./integration/... || return 1
	if [[ ${TROUPE_REQUIRE_KAFKA:-} == 1 ]]; then
		if grep '^SKIPPED: ' "$brokers" || ! grep -q -E '^BROKER: (Apache|outside) ?Kafka' "$brokers"; then
			echo "TROUPE_REQUIRE_KAFKA=1, but not every suite ran on a real Kafka"
			return 1
		fi
	fi
}

stage verify tools/ci/verify.sh
stage lint lint
stage unit unit
# What reads the bytes of others: offset maps in metadata, subscriptions, assignments.
stage fuzz env FUZZTIME="${FUZZTIME:-10s}" tools/ci/fuzz.sh 'OffsetMap|Metadata|Subscription|Assignment|UserData'
stage examples examples
stage integration integration

printf '\n== go test\n'
grep -E '^(ok|FAIL|---? FAIL|panic:)' "$results" || echo "nothing ran"
printf '\n== brokers\n'
sort -u "$brokers" | grep . || echo "none"
printf '\n== stages\n'
cat "$stages"
if ((${#failures[@]} > 0)); then
	echo "FAIL: ${failures[*]} ($((SECONDS - began)) s)"
	exit 1
fi
echo "PASS: everything ($((SECONDS - began)) s)"
