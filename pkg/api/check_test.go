package api

import (
	"context"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
	"github.com/troupego/troupe/supervisor"
)

func validConfig() Config {
	return Config{Brokers: []string{"localhost:9092"}, GroupID: "billing"}
}

func nothing(context.Context, *kafka.Record) error { return nil }

func nothingBatch(context.Context, []kafka.Record) error { return nil }

// problemsOf returns what Resolve finds.
func problemsOf(t *testing.T, config Config, parts ...Part) []Problem {
	t.Helper()
	settings, err := Resolve(config, parts...)
	if err == nil {
		return nil
	}
	if settings.GroupID != "" || settings.Registrations != nil {
		t.Error("settings were returned along with an error")
	}
	var wrong *ConfigError
	if !errors.As(err, &wrong) || len(wrong.Problems) == 0 {
		t.Fatalf("error is %T (%v), want a *ConfigError with problems", err, err)
	}
	return wrong.Problems
}

type namelessAssignor struct{ rebalance.Assignor }

func (namelessAssignor) Name() string { return "" }

func TestEachRuleOfConfigNamesFieldValueAndBound(t *testing.T) {
	const tooLong = "24.9 days"
	long := 25 * 24 * time.Hour
	name := strings.Repeat("x", math.MaxInt16+1)
	cut := `"` + name[:60] + `"... (32768 bytes)`
	times := "from 1ms to 596h31m23.647s"
	for _, tt := range []struct {
		rule string
		set  func(*Config)
		want Problem
	}{
		{"no brokers", func(c *Config) { c.Brokers = nil }, Problem{"Brokers", `""`, "at least one host:port"}},
		{"no port", func(c *Config) { c.Brokers = []string{"a:1", "b"} }, Problem{"Brokers[1]", `"b"`, "host:port, the port from 1 to 65535"}},
		{"port 0", func(c *Config) { c.Brokers = []string{"a:0"} }, Problem{"Brokers[0]", `"a:0"`, "host:port, the port from 1 to 65535"}},
		{"port too high", func(c *Config) { c.Brokers = []string{"a:65536"} }, Problem{"Brokers[0]", `"a:65536"`, "host:port, the port from 1 to 65535"}},
		{"named port", func(c *Config) { c.Brokers = []string{"a:kafka"} }, Problem{"Brokers[0]", `"a:kafka"`, "host:port, the port from 1 to 65535"}},
		{"no host", func(c *Config) { c.Brokers = []string{":9092"} }, Problem{"Brokers[0]", `":9092"`, "host:port, the port from 1 to 65535"}},
		{"a list in one string", func(c *Config) { c.Brokers = []string{"a:1,b:2"} }, Problem{"Brokers[0]", `"a:1,b:2"`, "host:port, the port from 1 to 65535"}},
		{"a URL", func(c *Config) { c.Brokers = []string{"tcp://a:1"} }, Problem{"Brokers[0]", `"tcp://a:1"`, "host:port, the port from 1 to 65535"}},
		{"a space", func(c *Config) { c.Brokers = []string{" a:1"} }, Problem{"Brokers[0]", `" a:1"`, "host:port, the port from 1 to 65535"}},
		{"no group", func(c *Config) { c.GroupID = "" }, Problem{"GroupID", `""`, "a name, or Assign to read partitions without a group"}},
		{"group too long", func(c *Config) { c.GroupID = name }, Problem{"GroupID", cut, "at most 32767 bytes"}},
		{"instance id", func(c *Config) { c.GroupInstanceID = "a b" }, Problem{"GroupInstanceID", `"a b"`, topicNameWant}},
		{"client id", func(c *Config) { c.ClientID = name }, Problem{"ClientID", cut, "at most 32767 bytes"}},
		{"rack", func(c *Config) { c.Rack = name }, Problem{"Rack", cut, "at most 32767 bytes"}},

		{"strategy", func(c *Config) { c.CommitStrategy = commit.EveryRecords(0) }, Problem{"CommitStrategy", "EveryRecords with n = 0", "at least 1"}},
		{"strategy's time", func(c *Config) { c.CommitStrategy = commit.Every(-time.Second) }, Problem{"CommitStrategy", "Every with d = -1s", "more than 0s"}},
		{"blocked", func(c *Config) { c.BlockedAfter = -time.Second }, Problem{"BlockedAfter", "-1s", times}},
		{"stuck", func(c *Config) { c.StuckAfter = -time.Second }, Problem{"StuckAfter", "-1s", times}},
		{"negative session", func(c *Config) { c.SessionTimeout = -time.Second }, Problem{"SessionTimeout", "-1s", times}},
		{"session over " + tooLong, func(c *Config) { c.SessionTimeout = long }, Problem{"SessionTimeout", "600h0m0s", times}},
		{"session under a millisecond", func(c *Config) { c.SessionTimeout = time.Microsecond }, Problem{"SessionTimeout", "1µs", times}},
		{"negative heartbeat", func(c *Config) { c.HeartbeatInterval = -1 }, Problem{"HeartbeatInterval", "-1ns", times}},
		{"heartbeat as long as session", func(c *Config) { c.HeartbeatInterval, c.SessionTimeout = 6*time.Second, 6*time.Second },
			Problem{"HeartbeatInterval", "6s", "below SessionTimeout (6s), best a third of it"}},
		{"negative rebalance", func(c *Config) { c.RebalanceTimeout = -time.Second }, Problem{"RebalanceTimeout", "-1s", times}},
		{"rebalance over " + tooLong, func(c *Config) { c.RebalanceTimeout = long }, Problem{"RebalanceTimeout", "600h0m0s", times}},
		{"rebalance without room to drain", func(c *Config) { c.RebalanceTimeout = 8 * time.Second },
			Problem{"RebalanceTimeout", "8s", "more than HeartbeatInterval (3s) + 5s"}},
		{"drain too long", func(c *Config) { c.DrainTimeout = 53 * time.Second },
			Problem{"DrainTimeout", "53s", "at most 52s (RebalanceTimeout - HeartbeatInterval - 5s)"}},
		{"default drain set, too long for a short rebalance", func(c *Config) { c.DrainTimeout, c.RebalanceTimeout = 30*time.Second, 20*time.Second },
			Problem{"DrainTimeout", "30s", "at most 12s (RebalanceTimeout - HeartbeatInterval - 5s)"}},
		{"negative drain", func(c *Config) { c.DrainTimeout = -time.Second }, Problem{"DrainTimeout", "-1s", times}},
		{"negative processing time", func(c *Config) { c.MaxProcessingTime = -time.Second },
			Problem{"MaxProcessingTime", "-1s", "0 for no limit, or from 1s to 596h31m23.647s"}},
		{"processing time under a second", func(c *Config) { c.MaxProcessingTime = 999 * time.Millisecond },
			Problem{"MaxProcessingTime", "999ms", "0 for no limit, or from 1s to 596h31m23.647s"}},
		{"processing time over " + tooLong, func(c *Config) { c.MaxProcessingTime = long },
			Problem{"MaxProcessingTime", "600h0m0s", "0 for no limit, or from 1s to 596h31m23.647s"}},
		{"negative close", func(c *Config) { c.CloseTimeout = -time.Second }, Problem{"CloseTimeout", "-1s", times}},

		{"nil assignor", func(c *Config) { c.Assignors = []rebalance.Assignor{nil} }, Problem{"Assignors[0]", "", "an assignor"}},
		{"assignor twice", func(c *Config) { c.Assignors = []rebalance.Assignor{rebalance.Range(), rebalance.Range()} },
			Problem{"Assignors[1]", `"range"`, "each assignor once"}},
		{"nameless assignor", func(c *Config) { c.Assignors = []rebalance.Assignor{namelessAssignor{}} },
			Problem{"Assignors[0]", `""`, "an assignor with a name"}},
		{"reset", func(c *Config) { c.Reset = 5 },
			Problem{"Reset", "ResetPolicy(5)", "ResetEarliest, ResetLatest, ResetNone, ResetByDuration or ResetAt"}},
		{"reset by no duration", func(c *Config) { c.Reset = rebalance.ResetByDuration(0) },
			Problem{"Reset", "by_duration:PT0S", "a duration above 0 and at most 100 years (P36500D)"}},
		{"reset at no time", func(c *Config) { c.Reset = rebalance.ResetAt(-1) },
			Problem{"Reset", "timestamp:-1", "a timestamp of at least 0 ms"}},
		{"isolation", func(c *Config) { c.IsolationLevel = 2 }, Problem{"IsolationLevel", "IsolationLevel(2)", "ReadCommitted or ReadUncommitted"}},

		{"negative window", func(c *Config) { c.MaxInTransit = -1 }, Problem{"MaxInTransit", "-1", "from 1 to 1000000"}},
		{"window too large", func(c *Config) { c.MaxInTransit = 1_000_001 }, Problem{"MaxInTransit", "1000001", "from 1 to 1000000"}},
		{"resume not below the window", func(c *Config) { c.MaxInTransit, c.ResumeBelow = 100, 100 },
			Problem{"ResumeBelow", "100", "from 1 to below MaxInTransit (100)"}},
		{"negative resume", func(c *Config) { c.ResumeBelow = -1 }, Problem{"ResumeBelow", "-1", "from 1 to below MaxInTransit (10000)"}},
		{"budget below a fetch", func(c *Config) { c.MemoryBudget, c.FetchMaxBytes = 1<<20, 2<<20 },
			Problem{"MemoryBudget", "1048576", "at least FetchMaxBytes (2097152)"}},
		{"negative budget", func(c *Config) { c.MemoryBudget = -1 }, Problem{"MemoryBudget", "-1", "at least 1"}},
		{"negative fetch minimum", func(c *Config) { c.FetchMinBytes = -1 }, Problem{"FetchMinBytes", "-1", "from 1 to FetchMaxBytes (8388608)"}},
		{"fetch minimum above maximum", func(c *Config) { c.FetchMinBytes = 9 << 20 },
			Problem{"FetchMinBytes", "9437184", "from 1 to FetchMaxBytes (8388608)"}},
		{"negative fetch maximum", func(c *Config) { c.FetchMaxBytes = -1 }, Problem{"FetchMaxBytes", "-1", "from 1 to 1073741824"}},
		{"fetch maximum too large", func(c *Config) { c.FetchMaxBytes = 1<<30 + 1 }, Problem{"FetchMaxBytes", "1073741825", "from 1 to 1073741824"}},
		{"partition maximum above fetch maximum", func(c *Config) { c.PartitionMaxBytes = 9 << 20 },
			Problem{"PartitionMaxBytes", "9437184", "from 1 to FetchMaxBytes (8388608)"}},
		{"negative partition maximum", func(c *Config) { c.PartitionMaxBytes = -1 },
			Problem{"PartitionMaxBytes", "-1", "from 1 to FetchMaxBytes (8388608)"}},
		{"negative batch maximum", func(c *Config) { c.MaxBatchBytes = -1 }, Problem{"MaxBatchBytes", "-1", "from 1 to 1073741824"}},
		{"batch maximum too large", func(c *Config) { c.MaxBatchBytes = 1<<30 + 1 }, Problem{"MaxBatchBytes", "1073741825", "from 1 to 1073741824"}},
		{"negative fetch wait", func(c *Config) { c.FetchMaxWait = -1 }, Problem{"FetchMaxWait", "-1ns", times}},
		{"fetch wait as long as a request", func(c *Config) { c.FetchMaxWait = 30 * time.Second },
			Problem{"FetchMaxWait", "30s", "below RequestTimeout (30s)"}},
		{"metadata age", func(c *Config) { c.MetadataMaxAge = time.Millisecond },
			Problem{"MetadataMaxAge", "1ms", "from 100ms to 596h31m23.647s"}},
		{"connect", func(c *Config) { c.ConnectTimeout = -1 }, Problem{"ConnectTimeout", "-1ns", times}},
		{"request", func(c *Config) { c.RequestTimeout = long }, Problem{"RequestTimeout", "600h0m0s", times}},
		{"backoff", func(c *Config) { c.Backoff.Factor = 0.5 }, Problem{"Backoff.Factor", "0.5", "finite and at least 1"}},
		{"restart", func(c *Config) { c.Restart.MaxRestarts = -2 }, Problem{"Restart.MaxRestarts", "-2", "from 1 to 10000, or NoRestarts"}},
		{"restart backoff", func(c *Config) { c.Restart.Backoff.Jitter = 1 }, Problem{"Restart.Backoff.Jitter", "1", "from 0 to below 1, or NoJitter"}},
		{"restart probes", func(c *Config) { c.Restart.ProbeInitial, c.Restart.ProbeMax = time.Minute, time.Second },
			Problem{"Restart.ProbeMax", "1s", "at least Restart.ProbeInitial (1m0s)"}},
		{"restart backoff's maximum", func(c *Config) { c.Restart.Backoff.Initial, c.Restart.Backoff.Max = time.Minute, time.Second },
			Problem{"Restart.Backoff.Max", "1s", "above 0 and at least Restart.Backoff.Initial (1m0s)"}},
		{"concurrency", func(c *Config) { c.Concurrency = -1 }, Problem{"Concurrency", "-1", "0 for no limit, or more"}},
	} {
		t.Run(tt.rule, func(t *testing.T) {
			config := validConfig()
			tt.set(&config)
			before := config
			got := problemsOf(t, config, Handle("orders", nothing))
			if len(got) != 1 || got[0] != tt.want {
				t.Errorf("problems are %q, want only %q", got, tt.want)
			}
			if !reflect.DeepEqual(config, before) {
				t.Error("the check changed the Config")
			}
		})
	}
}

func TestEachRuleOfRegistrationsAndOptionsNamesFieldValueAndBound(t *testing.T) {
	parts := func(p ...Part) []Part { return p }
	for _, tt := range []struct {
		rule  string
		parts []Part
		want  Problem
	}{
		{"none", parts(WithLogger(nil)), Problem{"registrations", "", "at least one Handle, HandleBatch, HandleAsync or HandleActor"}},
		{"zero registration", parts(Registration{}), Problem{"Registration{}", "", "one made by Handle, HandleBatch, HandleAsync or HandleActor"}},
		{"nil handler", parts(Handle("a", nil)), Problem{`Handle("a").handler`, "nil", "a function"}},
		{"nil handler with middleware", parts(Handle("a", nil, Use(pass))), Problem{`Handle("a").handler`, "nil", "a function"}},
		{"nil batch handler", parts(HandleBatch("a", nil)), Problem{`HandleBatch("a").handler`, "nil", "a function"}},
		{"nil actor producer", parts(HandleActor("a", nil)), Problem{`HandleActor("a").handler`, "nil", "a function"}},
		{"nil option", parts(Handle("a", nothing, nil)), Problem{`Handle("a").options`, "nil", "no nil options"}},
		{"no topic", parts(Handle([]string{}, nothing)), Problem{`Handle().topics`, "", "at least one topic, or a Pattern"}},
		{"empty topic", parts(Handle("", nothing)), Problem{`Handle("").topics`, `""`, topicNameWant}},
		{"illegal topic", parts(Handle("a/b", nothing)), Problem{`Handle("a/b").topics`, `"a/b"`, topicNameWant}},
		{"dot", parts(Handle(".", nothing)), Problem{`Handle(".").topics`, `"."`, topicNameWant}},
		{"long topic", parts(Handle(strings.Repeat("x", 250), nothing)), Problem{`Handle("` + strings.Repeat("x", 250) + `").topics`,
			`"` + strings.Repeat("x", 60) + `"... (250 bytes)`, topicNameWant}},
		{"topic of two registrations", parts(Handle("a", nothing), HandleBatch([]string{"b", "a"}, nothingBatch)),
			Problem{`HandleBatch("b", "a").topics`, `"a"`, `each topic once, Handle("a") has it already`}},
		{"topic twice in one", parts(Handle([]string{"a", "a"}, nothing)),
			Problem{`Handle("a", "a").topics`, `"a"`, `each topic once, Handle("a", "a") has it already`}},
		{"no records", parts(Handle("a", nothing, MaxRecords(0))), Problem{`Handle("a").MaxRecords`, "0", "from 1 to MaxInTransit (10000)"}},
		{"more records than the window", parts(HandleBatch("a", nothingBatch, MaxRecords(10_001))),
			Problem{`HandleBatch("a").MaxRecords`, "10001", "from 1 to MaxInTransit (10000)"}},
		{"restart", parts(Handle("a", nothing, Restart(supervisor.Policy{Window: -time.Second}))),
			Problem{`Handle("a").Restart.Window`, "-1s", "above 0"}},
		{"nil middleware", parts(Handle("a", nothing, Use(pass, nil))), Problem{`Handle("a").Use[1]`, "nil", "a middleware"}},
		{"middleware without a handler", parts(HandleBatch("a", nothingBatch, UseBatch(func(BatchHandler) BatchHandler { return nil }))),
			Problem{`HandleBatch("a").UseBatch[0]`, "nil", "a middleware that returns a handler"}},
		{"nil async handler", parts(HandleAsync("a", nil)), Problem{`HandleAsync("a").handler`, "nil", "a function"}},
		{"no workers", parts(Handle("a", nothing, KeyOrder(0))), Problem{`Handle("a").KeyOrder`, "0", "at least 1 worker"}},
		{"fewer workers than none", parts(HandleBatch("a", nothingBatch, Unordered(-3))),
			Problem{`HandleBatch("a").Unordered`, "-3", "at least 1 worker"}},
		{"nil ordering key", parts(Handle("a", nothing, KeyOrder(1), OrderBy(nil))), Problem{`Handle("a").OrderBy`, "nil", "a function"}},
		{"ordering key without key order", parts(Handle("a", nothing, Unordered(1), OrderBy(func(*kafka.Record) []byte { return nil }))),
			Problem{`Handle("a").OrderBy`, "", "KeyOrder beside it"}},
		{"negative wait", parts(HandleBatch("a", nothingBatch, MaxWait(-time.Second))),
			Problem{`HandleBatch("a").MaxWait`, "-1s", "from 0 to " + maxDuration.String()}},
		{"nil positions", parts(Handle("a", nothing), WithPositions(nil)), Problem{"WithPositions", "", "a function"}},
		{"nil part", parts(Handle("a", nothing), nil), Problem{"parts[1]", "nil", "a registration or an option"}},
		{"nil observer", parts(Handle("a", nothing), WithObserver(nil)), Problem{"WithObserver", "", "a function"}},
		{"nil dialer", parts(Handle("a", nothing), WithDialer(nil)), Problem{"WithDialer", "", "a function"}},
		{"nil sarama hook", parts(Handle("a", nothing), WithSaramaConfig(nil)), Problem{"WithSaramaConfig", "", "a function"}},
		{"observer buffer", parts(Handle("a", nothing), WithObserverBuffer(0)), Problem{"WithObserverBuffer", "0", "from 1 to 1048576"}},
		{"SASL v0", parts(Handle("a", nothing), WithSaramaConfig(func(c *sarama.Config) {
			c.Net.SASL.Enable, c.Net.SASL.User, c.Net.SASL.Password = true, "u", "secret"
			c.Net.SASL.Version = sarama.SASLHandshakeV0
		})), Problem{"Sarama.Net.SASL.Version", "0", "1 (sarama.SASLHandshakeV1)"}},
		{"proxy without a dialer", parts(Handle("a", nothing), WithSaramaConfig(func(c *sarama.Config) { c.Net.Proxy.Enable = true })),
			Problem{"Sarama.Net.Proxy.Dialer", "nil", "a dialer, since Net.Proxy.Enable is true"}},
		{"what sarama's own check says", parts(Handle("a", nothing), WithSaramaConfig(func(c *sarama.Config) { c.Net.MaxOpenRequests = 0 })),
			Problem{"Sarama", "", "settings that pass sarama's own check, which says: Net.MaxOpenRequests must be > 0"}},
		{"panicking sarama hook", parts(Handle("a", nothing), WithSaramaConfig(func(*sarama.Config) { panic("no certificate") })),
			Problem{"WithSaramaConfig", "panicking (no certificate)", "a function that returns"}},
		{"panicking middleware", parts(Handle("a", nothing, Use(pass, func(Handler) Handler { panic(errors.New("no\nmeter")) }))),
			Problem{`Handle("a").Use[1]`, `panicking ("no\nmeter")`, "a middleware that returns a handler"}},
	} {
		t.Run(tt.rule, func(t *testing.T) {
			if got := problemsOf(t, validConfig(), tt.parts...); len(got) != 1 || got[0] != tt.want {
				t.Errorf("problems are %q, want only %q", got, tt.want)
			}
		})
	}
}

// A field that is wrong itself says nothing about another one: its default stands in for it.
func TestBoundsAreNotMadeOfOtherWrongValues(t *testing.T) {
	times := "from 1ms to 596h31m23.647s"
	for name, tt := range map[string]struct {
		set  func(*Config)
		want []Problem
	}{
		"session": {func(c *Config) { c.SessionTimeout, c.HeartbeatInterval = -1, 3*time.Second },
			[]Problem{{"SessionTimeout", "-1ns", times}}},
		"session and heartbeat": {func(c *Config) { c.SessionTimeout, c.HeartbeatInterval = -1, time.Minute }, []Problem{
			{"SessionTimeout", "-1ns", times}, {"HeartbeatInterval", "1m0s", "below SessionTimeout (45s), best a third of it"}}},
		"heartbeat": {func(c *Config) {
			c.HeartbeatInterval, c.RebalanceTimeout, c.DrainTimeout = time.Hour, 20*time.Second, 20*time.Second
		}, []Problem{{"HeartbeatInterval", "1h0m0s", "below SessionTimeout (45s), best a third of it"},
			{"DrainTimeout", "20s", "at most 12s (RebalanceTimeout - HeartbeatInterval - 5s)"}}},
		"rebalance": {func(c *Config) { c.RebalanceTimeout, c.DrainTimeout = -time.Second, 30*time.Second },
			[]Problem{{"RebalanceTimeout", "-1s", times}}},
		"rebalance without room and drain": {func(c *Config) { c.RebalanceTimeout, c.DrainTimeout = 2*time.Second, time.Minute }, []Problem{
			{"RebalanceTimeout", "2s", "more than HeartbeatInterval (3s) + 5s"},
			{"DrainTimeout", "1m0s", "at most 52s (RebalanceTimeout - HeartbeatInterval - 5s)"}}},
		"no room whatever the drain": {func(c *Config) {
			c.SessionTimeout, c.HeartbeatInterval, c.DrainTimeout = 5*time.Minute, 2*time.Minute, time.Second
		}, []Problem{{"RebalanceTimeout", "1m0s", "more than HeartbeatInterval (2m0s) + 5s"}}},
		"window": {func(c *Config) { c.MaxInTransit, c.ResumeBelow = -1, 20_000 }, []Problem{
			{"MaxInTransit", "-1", "from 1 to 1000000"}, {"ResumeBelow", "20000", "from 1 to below MaxInTransit (10000)"}}},
		"fetch": {func(c *Config) {
			c.FetchMaxBytes, c.PartitionMaxBytes, c.FetchMinBytes, c.MemoryBudget = math.MaxInt32, math.MaxInt32, 1<<20, 16<<20
		}, []Problem{{"FetchMaxBytes", "2147483647", "from 1 to 1073741824"}, {"PartitionMaxBytes", "2147483647", "from 1 to FetchMaxBytes (8388608)"}}},
		"budget": {func(c *Config) { c.MemoryBudget, c.FetchMaxBytes = -1, 1<<20 },
			[]Problem{{"MemoryBudget", "-1", "at least FetchMaxBytes (1048576)"}}},
		"request": {func(c *Config) { c.RequestTimeout, c.FetchMaxWait = -1, time.Second }, []Problem{{"RequestTimeout", "-1ns", times}}},
		"restart": {func(c *Config) { c.Restart.ProbeInitial, c.Restart.ProbeMax = -time.Second, -time.Second }, []Problem{
			{"Restart.ProbeInitial", "-1s", "above 0"}, {"Restart.ProbeMax", "-1s", "above 0"}}},
		"backoff": {func(c *Config) { c.Backoff.Initial, c.Backoff.Max = -time.Second, -time.Minute }, []Problem{
			{"Backoff.Initial", "-1s", "above 0, or NoDelay"}, {"Backoff.Max", "-1m0s", "above 0"}}},
	} {
		t.Run(name, func(t *testing.T) {
			config := validConfig()
			tt.set(&config)
			if got := problemsOf(t, config, Handle("orders", nothing, MaxRecords(1))); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("problems are %q, want %q", got, tt.want)
			}
		})
	}
}

func TestAllProblemsComeAtOnceEachOnItsOwnLine(t *testing.T) {
	config := Config{HeartbeatInterval: time.Hour, DrainTimeout: time.Hour, MaxInTransit: -1}
	_, err := Spawn(t.Context(), config, Handle("bad topic", nil), WithObserver(nil), WithSaramaConfig(func(c *sarama.Config) {
		c.Net.Proxy.Enable = true
	}))
	want := []string{"troupe: 9 configuration errors:",
		"Brokers is", "GroupID is", "HeartbeatInterval is", "DrainTimeout is", "MaxInTransit is",
		`Handle("bad topic").handler is`, `Handle("bad topic").topics is`, "WithObserver: want", "Sarama.Net.Proxy.Dialer is nil: want"}
	if err == nil {
		t.Fatal("no error")
	}
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != len(want) {
		t.Fatalf("%d lines, want %d:\n%v", len(lines), len(want), err)
	}
	for i, line := range lines {
		if !strings.HasPrefix(strings.TrimPrefix(line, "\t"), want[i]) {
			t.Errorf("line %d is %q, want it to begin with %q", i, line, want[i])
		}
	}
}

func TestASingleProblemIsOneLine(t *testing.T) {
	err := &ConfigError{Problems: []Problem{{Field: "SessionTimeout", Value: "-1s", Want: "more"}}}
	if got, want := err.Error(), "troupe: configuration: SessionTimeout is -1s: want more"; got != want {
		t.Errorf("error is %q, want %q", got, want)
	}
}

func pass(next Handler) Handler { return next }
