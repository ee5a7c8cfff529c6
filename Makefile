# Every target works in a fresh clone with Go alone; see CONTRIBUTING.md for what each is for.
SHELL := bash
.DEFAULT_GOAL := test
.PHONY: test lint verify fuzz-short integration chaos sim sim-mutants sim-stack bench

# Everything that has to pass: format, tidy, vet, lint, unit tests under the race detector with the import arrows, the
# examples, the codecs fuzzed for ten seconds each, the suites on the embedded broker and on a real Kafka. TROUPE_REQUIRE_KAFKA=1 makes a missing Kafka a failure.
test:
	@tools/ci/test.sh

# gofmt, go mod tidy, go vet; changes nothing.
verify:
	@tools/ci/verify.sh

# The linter pinned in tools/go.mod, built once per version.
lint:
	@linter=$$(tools/ci/golangci.sh) && "$$linter" run ./...

# Each native fuzz target for FUZZTIME.
FUZZTIME ?= 15s
fuzz-short:
	@FUZZTIME=$(FUZZTIME) tools/ci/fuzz.sh

# The suites that need a broker, alone and in full words. KAFKA picks the version, e.g. make integration KAFKA=3.7.2
KAFKA ?=
integration:
	TROUPE_KAFKA_VERSION=$(KAFKA) go test -race -count=1 -timeout 10m -v ./integration/...

# Three nodes of a real Kafka and a group of members that are killed, frozen, stopped and restarted for the time T, while
# producers run; SEED=0 for a fresh schedule, e.g. make chaos T=5m SEED=7 KAFKA=3.7.2
T ?= 30m
chaos:
	TROUPE_REQUIRE_KAFKA=1 TROUPE_KAFKA_VERSION=$(KAFKA) TROUPE_CHAOS=$(T) TROUPE_CHAOS_SEED=$(SEED) \
		go test -race -count=1 -timeout 0 -v -run '^TestChaos' ./integration

# The simulation (docs/simulation.md): N histories from SEED on, 0 for fresh ones. It ends with status 1 and prints the seed
# when a guarantee did not hold; the shrunk script goes to internal/sim/testdata/.
N ?= 20000
SEED ?= 0
sim:
	go run ./internal/sim/troupesim -n $(N) -seed $(SEED) -keep internal/sim/testdata

# Every deliberate fault has to be caught within 2000 histories.
sim-mutants:
	go run ./internal/sim/troupesim -mutants -n 2000 -seed $(SEED)

# The whole stack in virtual time (docs/simulation.md): N histories from SEED on, 0 for fresh ones. The traces of violations
# go to the folder TRACES, or to the output where it is empty.
TRACES ?=
sim-stack:
	go test -count=1 -timeout 0 ./internal/stacksim -run TestHistoriesKeepTheGuarantees -v -args -histories $(N) -seed $(SEED) $(if $(TRACES),-traces $(abspath $(TRACES)))

# Troupe beside sarama and franz-go on the embedded broker, less than a minute; bench/RESULTS.md has the long runs.
bench:
	@cd bench && go run .
