package launch

import (
	"strings"
	"testing"
)

func TestParseVersion(t *testing.T) {
	for text, want := range map[string]string{"4.4.0": "4.4.0", "3.7.2": "3.7.2", "10.0.12": "10.0.12"} {
		if got, err := parseVersion(text); err != nil || got.String() != want {
			t.Errorf("parseVersion(%q) = %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "4", "4.4", "v4.4.0", "4.4.0-rc1", "4.4.0\n", "3.6.9", "0.10.2", "4.4.99999"} {
		if got, err := parseVersion(text); err == nil {
			t.Errorf("parseVersion(%q) = %v, want an error", text, got)
		}
	}
}

func TestParseJavaVersion(t *testing.T) {
	for _, row := range []struct {
		output  string
		feature int
		full    string
	}{
		{"openjdk version \"17.0.15\" 2025-04-15\nOpenJDK Runtime", 17, "17.0.15"},
		{"java version \"1.8.0_402\"\n", 8, "1.8.0_402"},
		{"openjdk version \"21\" 2023-09-19", 21, "21"},
		{"Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version \"25-ea\" 2025-09-16", 25, "25-ea"},
	} {
		feature, full, err := parseJavaVersion(row.output)
		if err != nil || feature != row.feature || full != row.full {
			t.Errorf("parseJavaVersion(%q) = %d, %q, %v; want %d, %q", row.output, feature, full, err, row.feature, row.full)
		}
	}
	if _, _, err := parseJavaVersion("command not found"); err == nil {
		t.Error("no error for output without a version")
	}
}

func twoNodes() []nodePlan {
	return []nodePlan{
		{id: 1, listeners: []listener{
			{name: "PLAINTEXT", protocol: "PLAINTEXT", port: 1001},
			{name: "CONTROLLER", protocol: "PLAINTEXT", port: 1101, unadvertised: true},
			{name: "OUT", protocol: "SASL_SSL", port: 1201, advertised: "127.0.0.1:1"},
		}},
		{id: 2, listeners: []listener{
			{name: "PLAINTEXT", protocol: "PLAINTEXT", port: 1002},
			{name: "CONTROLLER", protocol: "PLAINTEXT", port: 1102, unadvertised: true},
			{name: "BROKERS", protocol: "PLAINTEXT", port: 1302},
		}},
	}
}

func TestServerPropertiesListenersAndVoters(t *testing.T) {
	plans := twoNodes()
	got := serverProperties(plans[0], plans, "/data", map[string]string{"num.io.threads": "7", "extra": "x"})
	for key, want := range map[string]string{
		"node.id":                          "1",
		"log.dirs":                         "/data",
		"listeners":                        "PLAINTEXT://127.0.0.1:1001,CONTROLLER://127.0.0.1:1101,OUT://127.0.0.1:1201",
		"advertised.listeners":             "PLAINTEXT://127.0.0.1:1001,OUT://127.0.0.1:1",
		"inter.broker.listener.name":       "PLAINTEXT",
		"listener.security.protocol.map":   "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,OUT:SASL_SSL",
		"controller.quorum.voters":         "1@127.0.0.1:1101,2@127.0.0.1:1102",
		"offsets.topic.replication.factor": "2",
		"min.insync.replicas":              "2",
		"num.io.threads":                   "7", // the caller's wins
		"extra":                            "x",
	} {
		if got[key] != want {
			t.Errorf("%s = %q, want %q", key, got[key], want)
		}
	}
	single := serverProperties(plans[1], plans[1:], "/data", nil)
	if single["offsets.topic.replication.factor"] != "1" || single["transaction.state.log.min.isr"] != "1" {
		t.Errorf("one node replicates: %v", single)
	}
	if got := single["inter.broker.listener.name"]; got != "BROKERS" {
		t.Errorf("inter.broker.listener.name = %q with a listener for brokers", got)
	}
}

func TestRenderPropertiesIsSortedAndOneLineEach(t *testing.T) {
	got := renderProperties(map[string]string{"b": "two\nlines", "a": `back\slash`, "c": ""})
	if want := "a=back\\\\slash\nb=two\\nlines\nc=\n"; got != want {
		t.Errorf("rendered %q, want %q", got, want)
	}
}

func TestPlannedPortsAreDistinct(t *testing.T) {
	plans, err := planNodes(3, Options{}.listeners())
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for _, plan := range plans {
		for _, l := range plan.listeners {
			if seen[l.port] || l.port < firstPort || l.port >= firstPort+portRange {
				t.Errorf("node %d %s: port %d is taken twice or out of range", plan.id, l.name, l.port)
			}
			seen[l.port] = true
		}
	}
	if len(seen) != 6 {
		t.Errorf("%d ports for three nodes, want 6", len(seen))
	}
}

func TestUUIDsSuitKafka(t *testing.T) {
	for range 200 {
		if id := newUUID(); len(id) != 22 || strings.HasPrefix(id, "-") {
			t.Fatalf("uuid %q", id)
		}
	}
}
