package archtest

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRaisedMinimumsStay guards requirements that protoactor alone would hold at older versions: otel/sdk below 1.43 has
// known vulnerabilities, and an old protobuf keeps the linker from dropping dead code (5 MB of a binary).
func TestRaisedMinimumsStay(t *testing.T) {
	mod, err := os.ReadFile("../../go.mod")
	require.NoError(t, err)
	for module, old := range map[string][]string{
		"go.opentelemetry.io/otel/sdk":      {"v1.1", "v1.2", "v1.3", "v1.40", "v1.41", "v1.42"},
		"google.golang.org/protobuf":        {"v1.33", "v1.34", "v1.35"},
		"github.com/prometheus/common":      {"v0.4"},
		"github.com/IBM/sarama":             {"v1.60"},
		"go.opentelemetry.io/otel":          {"v1.1", "v1.2", "v1.3", "v1.40", "v1.41", "v1.42"},
		"github.com/twmb/franz-go/pkg/kmsg": {"v1.14"},
	} {
		_, rest, found := strings.Cut(string(mod), "\t"+module+" ")
		require.True(t, found, "go.mod does not name %s", module)
		for _, prefix := range old {
			require.False(t, strings.HasPrefix(rest, prefix+"."), "%s is at an old version: %.20s", module, rest)
		}
	}
}
