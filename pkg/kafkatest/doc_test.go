package kafkatest_test

import (
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/pkg/kafkatest"
)

func TestThePackageCommentShowsTheSynctestExampleAsItIs(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	source, err := os.ReadFile("synctest_example_test.go")
	require.NoError(t, err)
	_, example, found := strings.Cut(string(source), "\nfunc Test")
	require.True(t, found)
	shown := "//\tfunc Test" + strings.ReplaceAll(strings.TrimSpace(example), "\n", "\n//\t")
	require.Contains(t, string(doc), shown+"\n")
}

func TestNodesInMemoryAreNamedAsNobodyElseIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.NewBroker(t, kafkatest.InMemory(), kafkatest.Brokers(2))
		require.Equal(t, []string{"node-0.kafkatest.invalid:9092", "node-1.kafkatest.invalid:9092"}, b.Addrs())
		resp, err := kmsg.NewPtrMetadataRequest().RequestWith(t.Context(), newConsumer(t, b))
		require.NoError(t, err)
		named := map[int32]string{}
		for _, node := range resp.Brokers {
			require.EqualValues(t, 9092, node.Port)
			named[node.NodeID] = node.Host
		}
		require.Equal(t, map[int32]string{0: "node-0.kafkatest.invalid", 1: "node-1.kafkatest.invalid"}, named)
	})
}
