package integration

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/troupego/troupe/integration/launch"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
)

// bareBroker is kfake with options that kafkatest has not.
func bareBroker(t *testing.T, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	cluster, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1), kfake.SeedTopics(1, "orders")}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	return cluster
}

func bareConfig(cluster *kfake.Cluster) api.Config {
	return config(bareAddrs{addrs: cluster.ListenAddrs()}, "billing")
}

// bareAddrs is a broker that is asked for its addresses only.
type bareAddrs struct {
	broker
	addrs []string
}

// Addrs implements broker.
func (b bareAddrs) Addrs() []string { return b.addrs }

// trusting is a client that trusts an authority.
func trusting(authority *launch.Authority) api.Option {
	return api.WithSaramaConfig(func(c *sarama.Config) {
		c.Net.TLS.Enable = true
		c.Net.TLS.Config = &tls.Config{RootCAs: authority.Pool(), MinVersion: tls.VersionTLS12}
	})
}

// A certificate that cannot be trusted is refused by its reason, and the member gets in when it is replaced.
func TestABadCertificateIsNamedAndHeals(t *testing.T) {
	for name, tt := range map[string]struct {
		kind launch.CertificateKind
		want func(error) bool
	}{
		"Expired":     {launch.ExpiredCertificate, func(err error) bool { return errors.Is(err, kafka.ErrCertificateExpired) }},
		"NotYetValid": {launch.NotYetValidCertificate, func(err error) bool { return errors.Is(err, kafka.ErrCertificateNotYetValid) }},
		"WrongHost": {launch.WrongHostCertificate, func(err error) bool {
			_, ok := errors.AsType[x509.HostnameError](err)
			return ok
		}},
		"UnknownAuthority": {launch.ValidCertificate, func(err error) bool {
			_, ok := errors.AsType[x509.UnknownAuthorityError](err)
			return ok
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			authority, err := launch.NewAuthority()
			require.NoError(t, err)
			issuer := authority
			if tt.kind == launch.ValidCertificate {
				issuer, err = launch.NewAuthority()
				require.NoError(t, err)
			}
			bad, err := issuer.Issue(tt.kind, "broker")
			require.NoError(t, err)
			good, err := authority.Issue(launch.ValidCertificate, "broker")
			require.NoError(t, err)
			var now atomic.Pointer[tls.Certificate]
			show := func(c *launch.Certificate) { certificate := c.TLS(); now.Store(&certificate) }
			show(bad)
			cluster := bareBroker(t, kfake.TLS(&tls.Config{MinVersion: tls.VersionTLS12,
				GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return now.Load(), nil }}))
			m := spawn(t, bareConfig(cluster), trusting(authority), api.Handle("orders", ignore))
			e := tellsOf(t, m, noticed, func(e event.ConnectFailed) bool { return tt.want(e.Err) })
			t.Log(e.Err)
			ctx, cancel := context.WithTimeout(t.Context(), noticed)
			defer cancel()
			err = m.WaitJoined(ctx)
			require.True(t, tt.want(err), "%v", err)
			failed, ok := errors.AsType[*kafka.ConnectError](err)
			require.True(t, ok)
			require.Equal(t, "tls", failed.Phase)
			show(good)
			m.joined(t)
			m.mustClose(t)
		})
	}
}

// The bootstrap server answers and names an address that cannot be reached from here.
func TestAnAdvertisedAddressThatCannotBeReachedIsTraced(t *testing.T) {
	t.Parallel()
	nowhere := listen(t)
	addr := nowhere.Addr().(*net.TCPAddr)
	require.NoError(t, nowhere.Close())
	cluster := bareBroker(t)
	host, port := addr.IP.String(), int32(addr.Port)
	var healed atomic.Bool
	advertise := func(key kmsg.Key, answer func(kmsg.Request) kmsg.Response) {
		cluster.ControlKey(int16(key), func(req kmsg.Request) (kmsg.Response, error, bool) {
			cluster.KeepControl()
			if healed.Load() {
				return nil, nil, false
			}
			return answer(req), nil, true
		})
	}
	advertise(kmsg.FindCoordinator, func(req kmsg.Request) kmsg.Response {
		resp := req.ResponseKind().(*kmsg.FindCoordinatorResponse)
		for _, key := range req.(*kmsg.FindCoordinatorRequest).CoordinatorKeys {
			c := kmsg.NewFindCoordinatorResponseCoordinator()
			c.Key, c.Host, c.Port = key, host, port
			resp.Coordinators = append(resp.Coordinators, c)
		}
		return resp
	})
	advertise(kmsg.Metadata, func(req kmsg.Request) kmsg.Response {
		resp := req.ResponseKind().(*kmsg.MetadataResponse)
		b := kmsg.NewMetadataResponseBroker()
		b.Host, b.Port = host, port
		resp.Brokers = append(resp.Brokers, b)
		for _, topic := range req.(*kmsg.MetadataRequest).Topics {
			mt, mp := kmsg.NewMetadataResponseTopic(), kmsg.NewMetadataResponseTopicPartition()
			mt.Topic, mt.TopicID, mt.Partitions = topic.Topic, cluster.TopicInfo("orders").TopicID, append(mt.Partitions, mp)
			resp.Topics = append(resp.Topics, mt)
		}
		return resp
	})
	m := spawn(t, bareConfig(cluster), api.Handle("orders", ignore))
	e := tellsOf(t, m, noticed, func(e event.ConnectFailed) bool {
		failed, ok := errors.AsType[*kafka.ConnectError](e.Err)
		return ok && failed.Addr == addr.String() && failed.Source == "Metadata from -1@"+cluster.ListenAddrs()[0]
	})
	require.ErrorContains(t, e.Err, addr.String())
	require.ErrorContains(t, e.Err, cluster.ListenAddrs()[0])
	ctx, cancel := context.WithTimeout(t.Context(), noticed)
	defer cancel()
	require.ErrorContains(t, m.WaitJoined(ctx), addr.String())
	healed.Store(true)
	m.joined(t)
	m.mustClose(t)
}

// A broker that has no version of a request that the library can use: the consumer says which, and ends when it cannot go
// on.
func TestABrokerWithoutTheVersionNeededIsNamed(t *testing.T) {
	for name, tt := range map[string]struct {
		key   kmsg.Key
		most  int16
		fatal bool
	}{
		"JoinGroup": {kmsg.JoinGroup, 4, true},
		"Metadata":  {kmsg.Metadata, 8, false},
		"Heartbeat": {kmsg.Heartbeat, 2, false},
		"Fetch":     {kmsg.Fetch, 10, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			versions := kversion.V3_7_0()
			versions.SetMaxKeyVersion(int16(tt.key), tt.most)
			cluster := bareBroker(t, kfake.MaxVersions(versions))
			m := spawn(t, bareConfig(cluster), api.Handle("orders", ignore))
			var found *kafka.VersionError
			eventually(t, noticed, "an event with the versions", func() bool {
				for _, err := range append(trouble(m), m.Err()) {
					if errors.As(err, &found) {
						return true
					}
				}
				return false
			})
			require.Equal(t, name, found.API)
			require.Equal(t, tt.most, found.HaveMax)
			require.Greater(t, found.WantMin, found.HaveMax)
			require.Equal(t, cluster.ListenAddrs()[0], found.Broker.Addr)
			if tt.fatal {
				require.True(t, within(noticed, m.Done()))
				require.ErrorIs(t, m.Err(), error(found))
			}
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), noticed)
			defer cancel()
			_ = m.Close(ctx) // says again what is wrong where nothing could be committed
			require.Less(t, time.Since(began), noticed)
		})
	}
}
