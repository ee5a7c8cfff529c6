package wire

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/pkg/kafka"
)

// A question that waits at a broker which hangs is asked of another one as soon as the broker is known to hang.
func TestAvoidTakesTheQuestionUnderWayToAnotherBroker(t *testing.T) {
	for name, byBootstrap := range map[string]bool{"KnownByMetadata": false, "KnownAsABootstrapServerOnly": true} {
		t.Run(name, func(t *testing.T) {
			cluster := newCluster(t, kfake.NumBrokers(3))
			c := newNetwork(t, cluster.ListenAddrs()[:1], nil).Metadata().(*metadataClient)
			defer c.Close()
			meta, err := c.Metadata(t.Context(), []string{"orders"})
			require.NoError(t, err)
			first := c.link.broker.Addr
			if !byBootstrap {
				c.drop()
				_, err = c.Metadata(t.Context(), []string{"orders"})
				require.NoError(t, err)
				require.NotEqual(t, int32(-1), c.link.broker.ID)
			}
			asked := make(chan struct{})
			cluster.ControlKey(kmsg.Metadata.Int16(), func(kmsg.Request) (kmsg.Response, error, bool) {
				close(asked)
				return nil, nil, true // no answer to this one
			})
			ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second) // below the request time-out
			defer cancel()
			answered := make(chan error, 1)
			go func() {
				_, err := c.Metadata(ctx, []string{"orders"})
				answered <- err
			}()
			<-asked
			for _, b := range meta.Brokers {
				if b.Addr == first {
					c.Avoid(kafka.Broker{ID: b.ID, Addr: b.Addr})
				}
			}
			require.NoError(t, <-answered)
			require.NotEqual(t, first, c.link.broker.Addr)
			_, err = c.Metadata(t.Context(), []string{"orders"})
			require.NoError(t, err)
		})
	}
}

// Of another broker's trouble a connection whose end is known takes no notice, and with one broker there is no choice.
func TestAvoidLeavesOtherConnectionsAndTheOnlyBroker(t *testing.T) {
	cluster := newCluster(t, kfake.NumBrokers(1))
	c := newNetwork(t, cluster.ListenAddrs(), nil).Metadata().(*metadataClient)
	defer c.Close()
	meta, err := c.Metadata(t.Context(), []string{"orders"})
	require.NoError(t, err)
	for range 2 {
		for _, b := range meta.Brokers {
			c.Avoid(b)
		}
		_, err = c.Metadata(t.Context(), []string{"orders"})
		require.NoError(t, err)
	}
	before := c.link
	c.Avoid(kafka.Broker{ID: 77, Addr: "127.0.0.1:1"})
	_, err = c.Metadata(t.Context(), []string{"orders"})
	require.NoError(t, err)
	require.Same(t, before, c.link)
}
