package api

import (
	"reflect"
	"testing"
	"time"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
	"github.com/troupego/troupe/supervisor"
)

// The numbers are those of the fields' documentation, written out.
func TestZeroFieldsMeanTheirDocumentedDefaults(t *testing.T) {
	got, err := Resolve(validConfig(), Handle("orders", nothing))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		field     string
		got, want any
	}{
		{"GroupID", got.GroupID, "billing"},
		{"GroupInstanceID", got.GroupInstanceID, ""},
		{"ClientID", got.ClientID, "troupe"},
		{"Rack", got.Rack, ""},
		{"SessionTimeout", got.SessionTimeout, 45 * time.Second},
		{"HeartbeatInterval", got.HeartbeatInterval, 3 * time.Second},
		{"RebalanceTimeout", got.RebalanceTimeout, 60 * time.Second},
		{"DrainTimeout", got.DrainTimeout, 30 * time.Second},
		{"CloseTimeout", got.CloseTimeout, 30 * time.Second},
		{"TokenTimeout", got.TokenTimeout, time.Minute},
		{"MaxProcessingTime", got.MaxProcessingTime, time.Duration(0)},
		{"len(Assignors)", len(got.Assignors), 1},
		{"Assignors[0]", got.Assignors[0].Name(), "cooperative-sticky"},
		{"Reset", got.Registrations[0].Reset, rebalance.ResetEarliest},
		{"Isolation", got.Isolation, kafka.ReadCommitted},
		{"Strategy", got.Strategy.Name(), "opportunistic"},
		{"OffsetMap", got.OffsetMap, false},
		{"BlockedAfter", got.BlockedAfter, 10 * time.Second},
		{"StuckAfter", got.StuckAfter, time.Minute},
		{"MaxInTransit", got.MaxInTransit, 10_000},
		{"ResumeBelow", got.ResumeBelow, 5_000},
		{"MemoryBudget", got.MemoryBudget, int64(256 << 20)},
		{"FetchMinBytes", got.FetchMinBytes, 1},
		{"FetchMaxWait", got.FetchMaxWait, 500 * time.Millisecond},
		{"FetchMaxBytes", got.FetchMaxBytes, 8 << 20},
		{"PartitionMaxBytes", got.PartitionMaxBytes, 1 << 20},
		{"MaxBatchBytes", got.MaxBatchBytes, 64 << 20},
		{"MetadataMaxAge", got.MetadataMaxAge, time.Minute},
		{"Backoff", got.Backoff, supervisor.Backoff{Initial: 100 * time.Millisecond, Max: 10 * time.Second, Factor: 2, Jitter: 0.2}},
		{"Concurrency", got.Concurrency, 0},
		{"TreeRestart.OnSpent", got.TreeRestart.OnSpent, supervisor.StopAll},
		{"MaxRecords", got.Registrations[0].MaxRecords, 500},
		{"Restart.MaxRestarts", got.Registrations[0].Restart.MaxRestarts, 10},
		{"Restart.Window", got.Registrations[0].Restart.Window, time.Minute},
		{"Restart.OnSpent", got.Registrations[0].Restart.OnSpent, supervisor.PauseAndProbe},
	} {
		if !reflect.DeepEqual(tt.got, tt.want) {
			t.Errorf("%s is %v, want %v", tt.field, tt.got, tt.want)
		}
	}
	c := validConfig().withDefaults()
	if c.ConnectTimeout != 4*time.Second || c.RequestTimeout != 30*time.Second {
		t.Errorf("ConnectTimeout %v and RequestTimeout %v, want 4s and 30s", c.ConnectTimeout, c.RequestTimeout)
	}
}

func TestDefaultsGiveWayToWhatIsSet(t *testing.T) {
	for _, tt := range []struct {
		name      string
		set       func(*Config)
		got       func(Config) any
		want      any
		maxRecord int
	}{
		{"heartbeat to session", func(c *Config) { c.SessionTimeout = 6 * time.Second },
			func(c Config) any { return c.HeartbeatInterval }, 2 * time.Second, 500},
		{"drain to rebalance", func(c *Config) { c.RebalanceTimeout = 10 * time.Second },
			func(c Config) any { return c.DrainTimeout }, 2 * time.Second, 500},
		{"resume to window", func(c *Config) { c.MaxInTransit = 1 }, func(c Config) any { return c.ResumeBelow }, 0, 1},
		{"budget to fetch", func(c *Config) { c.FetchMaxBytes = 1 << 30 }, func(c Config) any { return c.MemoryBudget }, int64(1 << 30), 500},
		{"fetch to budget", func(c *Config) { c.MemoryBudget = 1 << 10 }, func(c Config) any { return c.FetchMaxBytes }, 1 << 10, 500},
		{"partition to fetch", func(c *Config) { c.FetchMaxBytes = 1 << 10 }, func(c Config) any { return c.PartitionMaxBytes }, 1 << 10, 500},
		{"fetch wait to request", func(c *Config) { c.RequestTimeout = 200 * time.Millisecond },
			func(c Config) any { return c.FetchMaxWait }, 100 * time.Millisecond, 500},
	} {
		t.Run(tt.name, func(t *testing.T) {
			config := validConfig()
			tt.set(&config)
			settings, err := Resolve(config, Handle("orders", nothing))
			if err != nil {
				t.Fatal(err)
			}
			if got := tt.got(config.withDefaults()); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
			if got := settings.Registrations[0].MaxRecords; got != tt.maxRecord {
				t.Errorf("MaxRecords is %d, want %d", got, tt.maxRecord)
			}
		})
	}
}

// A field that is added to Config and forgotten on the way to the tree would be set in vain.
func TestEveryFieldOfConfigReachesTheSettings(t *testing.T) {
	changed := map[string]func(*Config){
		"GroupID":           func(c *Config) { c.GroupID = "other" },
		"GroupInstanceID":   func(c *Config) { c.GroupInstanceID = "one" },
		"ClientID":          func(c *Config) { c.ClientID = "app" },
		"Rack":              func(c *Config) { c.Rack = "r1" },
		"SessionTimeout":    func(c *Config) { c.SessionTimeout = 20 * time.Second },
		"HeartbeatInterval": func(c *Config) { c.HeartbeatInterval = time.Second },
		"RebalanceTimeout":  func(c *Config) { c.RebalanceTimeout = 50 * time.Second },
		"DrainTimeout":      func(c *Config) { c.DrainTimeout = time.Second },
		"CloseTimeout":      func(c *Config) { c.CloseTimeout = time.Second },
		"TokenTimeout":      func(c *Config) { c.TokenTimeout = time.Second },
		"MaxProcessingTime": func(c *Config) { c.MaxProcessingTime = time.Minute },
		"Assignors":         func(c *Config) { c.Assignors = []rebalance.Assignor{otherAssignor{}} },
		"Reset":             func(c *Config) { c.Reset = rebalance.ResetLatest },
		"IsolationLevel":    func(c *Config) { c.IsolationLevel = ReadUncommitted },
		"CommitStrategy":    func(c *Config) { c.CommitStrategy = commit.OnDemand() },
		"OffsetMap":         func(c *Config) { c.OffsetMap = true },
		"BlockedAfter":      func(c *Config) { c.BlockedAfter = time.Second },
		"StuckAfter":        func(c *Config) { c.StuckAfter = time.Second },
		"MaxInTransit":      func(c *Config) { c.MaxInTransit = 100 },
		"ResumeBelow":       func(c *Config) { c.ResumeBelow = 1 },
		"MemoryBudget":      func(c *Config) { c.MemoryBudget = 10 << 20 },
		"FetchMinBytes":     func(c *Config) { c.FetchMinBytes = 2 },
		"FetchMaxWait":      func(c *Config) { c.FetchMaxWait = time.Second },
		"FetchMaxBytes":     func(c *Config) { c.FetchMaxBytes = 2 << 20 },
		"PartitionMaxBytes": func(c *Config) { c.PartitionMaxBytes = 2 << 20 },
		"MaxBatchBytes":     func(c *Config) { c.MaxBatchBytes = 2 << 20 },
		"MetadataMaxAge":    func(c *Config) { c.MetadataMaxAge = time.Second },
		"Backoff":           func(c *Config) { c.Backoff.Factor = 3 },
		"Restart":           func(c *Config) { c.Restart.MaxRestarts = 3 },
		"Concurrency":       func(c *Config) { c.Concurrency = 3 },
		// These go to the network, which shows nothing.
		"Brokers": nil, "ConnectTimeout": nil, "RequestTimeout": nil,
	}
	// Functions cannot be compared, so the registration has none of its own.
	resolved := func(config Config) any {
		settings, err := Resolve(config, Handle("orders", nothing))
		if err != nil {
			t.Fatal(err)
		}
		settings.Seed, settings.Registrations[0].Record = 0, nil
		return settings
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[Config]()) {
		set, known := changed[field.Name]
		if !known {
			t.Errorf("field %s is not in this test", field.Name)
		}
		if set == nil {
			continue
		}
		config := validConfig()
		set(&config)
		if reflect.DeepEqual(resolved(config), resolved(validConfig())) {
			t.Errorf("field %s changes nothing in the settings", field.Name)
		}
	}
}

type otherAssignor struct{ rebalance.Assignor }

func (otherAssignor) Name() string { return "other" }
