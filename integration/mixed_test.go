package integration

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// dialect is one assignor in each client's words.
type dialect struct {
	troupe rebalance.Assignor
	sarama func() sarama.BalanceStrategy // of a member of its own: some keep what it had
	franz  func() kgo.GroupBalancer
	java   string
}

var dialects = []dialect{
	{rebalance.Range(), sarama.NewBalanceStrategyRange, kgo.RangeBalancer, "RangeAssignor"},
	{rebalance.Sticky(), sarama.NewBalanceStrategySticky, kgo.StickyBalancer, "StickyAssignor"},
	{
		rebalance.CooperativeSticky(), sarama.NewBalanceStrategyCooperativeSticky, kgo.CooperativeStickyBalancer,
		"CooperativeStickyAssignor",
	},
}

// A group may have members of several clients, and whichever of them leads.
func TestAGroupOfSeveralClientsSharesEveryPartition(t *testing.T) {
	for _, d := range dialects {
		t.Run(d.troupe.Name(), func(t *testing.T) {
			t.Parallel()
			severalClients(t, realKafka.broker(t), d)
		})
	}
}

func severalClients(t *testing.T, b broker, d dialect) {
	g := &mixedGroup{dialect: d, b: b, topic: unique(t, "topic"), group: unique(t, "group"), ledger: newLedger()}
	b.CreateTopic(t, g.topic, mixedPartitions)
	// franz-go waits for 5 s when it asks for a topic before the broker knows it.
	eventually(t, patience, "the topic shows up", func() bool { return len(b.EndOffsets(t, g.topic)) == mixedPartitions })
	stop := stream(t, b, g.topic, mixedPartitions)
	defer stop()
	one := g.joinTroupe(t, "troupe one")
	g.settles(t, 1)
	leaveSarama := g.joinSarama(t, "sarama one")
	g.settles(t, 2)
	leaveFranz := g.joinFranz(t, "franz-go one")
	g.settles(t, 3)
	leaveJava, members := g.joinJava(t), 3
	if leaveJava != nil {
		members++
		g.settles(t, members)
	}
	require.True(t, one.Stats().Leader)
	one.mustClose(t)
	g.settles(t, members-1)
	two := g.joinTroupe(t, "troupe two")
	g.settles(t, members)
	require.False(t, two.Stats().Leader)
	leaveSarama()
	g.settles(t, members-1)
	leaveSarama = g.joinSarama(t, "sarama two")
	g.settles(t, members)
	leaveFranz()
	g.settles(t, members-1)
	leaveFranz = g.joinFranz(t, "franz-go two")
	g.settles(t, members)
	if leaveJava != nil {
		leaveJava()
		g.settles(t, 3)
	}
	n := stop()
	eventually(t, patience, "every record handled", func() bool { return g.ledger.distinct() == n })
	require.Equal(t, d.troupe.Name(), protocolOf(t, b, g.group))
	leaveFranz()
	leaveSarama()
	settled(t, mixedPartitions, two)
	allCommitted(t, b, g.topic, g.group)
	two.mustClose(t)
	ends := b.EndOffsets(t, g.topic)
	g.ledger.allHandled(t, ends)
	g.ledger.noOverlap(t)
	require.Equal(t, ends, b.Committed(t, g.group))
	for _, m := range []*member{one, two} {
		require.Empty(t, told[event.PartitionsLost](m))
	}
	t.Logf("%d records, %d of them more than once", n, len(g.ledger.repeated()))
}

const mixedPartitions = 6

// mixedGroup is a group whose members are of several clients. All of them write into one ledger.
type mixedGroup struct {
	dialect
	b            broker
	topic, group string
	ledger       *ledger
}

// mixedWork is how long a handler takes with a record, so that an overlap has a length.
const mixedWork = 500 * time.Microsecond

// settles waits until the coordinator has so many members, of which each has a part and none another's, and records flow.
func (g *mixedGroup) settles(t *testing.T, members int) {
	t.Helper()
	began := time.Now()
	var view groupView
	if !waitFor(patience, func() bool {
		view = g.b.Group(t, g.group)
		if view.State != "Stable" || len(view.Members) != members {
			return false
		}
		owners := make(map[kafka.TopicPartition]int)
		for _, partitions := range view.Members {
			for _, tp := range partitions {
				owners[tp]++
			}
			if len(partitions) == 0 {
				return false
			}
		}
		for _, n := range owners {
			if n != 1 {
				return false
			}
		}
		return len(owners) == mixedPartitions
	}) {
		t.Fatalf("%d members do not settle within %v: %+v", members, patience, view)
	}
	t.Logf("%d members settle after %v", members, time.Since(began).Round(time.Millisecond))
	before := g.ledger.distinct()
	eventually(t, patience, "records flow", func() bool { return g.ledger.distinct() > before+60 })
}

// joinTroupe starts a member of this module.
func (g *mixedGroup) joinTroupe(t *testing.T, name string) *member {
	c := config(g.b, g.group)
	c.Assignors = []rebalance.Assignor{g.dialect.troupe}
	return spawn(t, c, api.Handle(g.topic, g.ledger.watch(name, func(context.Context, *kafka.Record) error {
		pause(mixedWork)
		return nil
	})))
}

// handle is what a member of another client does with a record.
func (g *mixedGroup) handle(name string, partition int32, offset int64) {
	e := g.ledger.open(context.Background(), name, &kafka.Record{Topic: g.topic, Partition: partition, Offset: offset})
	pause(mixedWork)
	g.ledger.close(e, nil)
}

// joinSarama starts a sarama.ConsumerGroup.
func (g *mixedGroup) joinSarama(t *testing.T, name string) (leave func()) {
	t.Helper()
	want, c := config(g.b, g.group), sarama.NewConfig()
	c.ClientID, c.Version = "sarama", sarama.V2_8_0_0
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	c.Consumer.Offsets.AutoCommit.Interval = 200 * time.Millisecond
	c.Consumer.Group.Session.Timeout, c.Consumer.Group.Heartbeat.Interval = want.SessionTimeout, want.HeartbeatInterval
	c.Consumer.Group.Rebalance.Timeout, c.Consumer.Group.Rebalance.Retry.Backoff = want.RebalanceTimeout, 100*time.Millisecond
	c.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{g.dialect.sarama()}
	group, err := sarama.NewConsumerGroup(g.b.Addrs(), g.group, c)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			if err := group.Consume(ctx, []string{g.topic}, saramaHandler{g, name}); err != nil && ctx.Err() == nil {
				t.Logf("%s: %v", name, err) // it joins again
			}
		}
	})
	leave = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		if err := group.Close(); err != nil {
			t.Errorf("close %s: %v", name, err)
		}
	})
	t.Cleanup(leave)
	return leave
}

// saramaHandler handles claims one record after the other.
type saramaHandler struct {
	group *mixedGroup
	name  string
}

func (saramaHandler) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (saramaHandler) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (h saramaHandler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case m, open := <-claim.Messages():
			if !open {
				return nil
			}
			h.group.handle(h.name, m.Partition, m.Offset)
			session.MarkMessage(m, "")
		case <-session.Context().Done():
			return nil
		}
	}
}

// joinFranz starts a member of franz-go, which keeps its partitions while it handles what it polled.
func (g *mixedGroup) joinFranz(t *testing.T, name string) (leave func()) {
	t.Helper()
	want := config(g.b, g.group)
	client, err := kgo.NewClient(kgo.SeedBrokers(g.b.Addrs()...), kgo.ConsumerGroup(g.group), kgo.ConsumeTopics(g.topic),
		kgo.Balancers(g.dialect.franz()), kgo.BlockRebalanceOnPoll(), kgo.AutoCommitInterval(200*time.Millisecond),
		kgo.SessionTimeout(want.SessionTimeout), kgo.HeartbeatInterval(want.HeartbeatInterval),
		kgo.RebalanceTimeout(want.RebalanceTimeout), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			client.PollRecords(ctx, 100).EachRecord(func(r *kgo.Record) { g.handle(name, r.Partition, r.Offset) })
			client.AllowRebalance()
		}
	})
	leave = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		// What was polled last is committed by the next poll, which does not come.
		if err := client.CommitUncommittedOffsets(context.Background()); err != nil {
			t.Logf("last commit of %s: %v", name, err)
		}
		client.CloseAllowingRebalance()
	})
	t.Cleanup(leave)
	return leave
}

// joinJava starts Kafka's console consumer from the jars of the running broker. It returns nil where those are not to be
// found: on an outside cluster, and on systems without /proc. What it prints was handled; when, nobody knows.
func (g *mixedGroup) joinJava(t *testing.T) (leave func()) {
	t.Helper()
	java, classPath, program := javaOf(g.b)
	if java == "" {
		t.Log("no Java member: the broker's class path is not known")
		return nil
	}
	want, config := config(g.b, g.group), filepath.Join(t.TempDir(), "consumer.properties")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, "partition.assignment.strategy=org.apache.kafka.clients.consumer.%s\n"+
		"auto.offset.reset=earliest\nauto.commit.interval.ms=200\nsession.timeout.ms=%d\nheartbeat.interval.ms=%d\n"+
		"max.poll.interval.ms=%d\n", g.dialect.java, want.SessionTimeout.Milliseconds(), want.HeartbeatInterval.Milliseconds(),
		want.RebalanceTimeout.Milliseconds()), 0o600))
	command := exec.Command(java, "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", classPath,
		program, "--bootstrap-server", g.b.Addrs()[0], "--topic", g.topic,
		"--group", g.group, "--consumer.config", config,
		"--property", "print.partition=true", "--property", "print.offset=true", "--property", "print.value=false")
	var problems strings.Builder
	command.Stderr = &problems
	output, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	printed := make(chan int, 1)
	go func() { printed <- g.readJava(output) }()
	leave = sync.OnceFunc(func() {
		_ = command.Process.Signal(syscall.SIGTERM) // it leaves the group
		timer := time.AfterFunc(patience, func() { _ = command.Process.Kill() })
		defer timer.Stop()
		n := <-printed
		err := command.Wait()
		t.Logf("the Java member handled %d records and ended: %v", n, err)
		if n == 0 || t.Failed() {
			t.Logf("the Java member says: %s", problems.String())
		}
	})
	t.Cleanup(leave)
	return leave
}

// javaOf returns the Java and the class path of a broker that runs on this machine, and its console consumer's class; all
// empty where they are not to be seen.
func javaOf(b broker) (java, classPath, program string) {
	local, ok := b.(*kafkaBroker)
	if !ok || local.cluster.External() {
		return "", "", ""
	}
	process := filepath.Join("/proc", fmt.Sprint(local.cluster.Nodes()[0].PID()))
	java, err := os.Readlink(filepath.Join(process, "exe"))
	if err != nil {
		return "", "", ""
	}
	line, err := os.ReadFile(filepath.Join(process, "cmdline"))
	if err != nil {
		return "", "", ""
	}
	_, rest, found := strings.Cut(string(line), "\x00-cp\x00")
	if !found {
		return "", "", ""
	}
	classPath, _, _ = strings.Cut(rest, "\x00")
	var major, minor int
	if _, err := fmt.Sscanf(local.cluster.Version(), "%d.%d", &major, &minor); err == nil && major == 3 && minor < 8 {
		return java, classPath, "kafka.tools.ConsoleConsumer"
	}
	return java, classPath, "org.apache.kafka.tools.consumer.ConsoleConsumer"
}

// readJava notes what a console consumer prints until it ends.
func (g *mixedGroup) readJava(output io.Reader) (n int) {
	for lines := bufio.NewScanner(output); lines.Scan(); {
		s := spot{tp: kafka.TopicPartition{Topic: g.topic}}
		if _, err := fmt.Sscanf(lines.Text(), "Partition:%d\tOffset:%d", &s.tp.Partition, &s.offset); err != nil {
			continue
		}
		n++
		g.ledger.mu.Lock()
		g.ledger.handled[s]++
		g.ledger.mu.Unlock()
	}
	return n
}

// allCommitted waits until a group has committed a topic to its end.
func allCommitted(t *testing.T, b broker, topic, group string) {
	t.Helper()
	ends := b.EndOffsets(t, topic)
	eventually(t, patience, "everything committed", func() bool { return maps.Equal(ends, b.Committed(t, group)) })
}

// protocolOf returns the assignor that a group has agreed on.
func protocolOf(t *testing.T, b broker, group string) string {
	t.Helper()
	return newAdmin(t, b.Addrs(), nil).protocol(t, group)
}

func (a admin) protocol(t *testing.T, group string) string {
	t.Helper()
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Groups = append(req.Groups, group)
	resp, err := req.RequestWith(requestContext(t), a.client)
	require.NoError(t, err)
	require.Len(t, resp.Groups, 1)
	return resp.Groups[0].Protocol
}
