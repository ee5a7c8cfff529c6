package integration

import "testing"

// rules are what must hold on every broker. Each gets a topic and a group of its own.
var rules = []struct {
	name string
	test func(t *testing.T, b broker)
}{
	{"EachRecordOnceAndInOrder", eachRecordOnceAndInOrder},
	{"CommitsWhileRunning", commitsWhileRunning},
	{"BatchesAreBoundedAndNothingIsLostBetweenThem", batchesAreBounded},
	{"AHandlerActorAcknowledgesInAnyOrder", handlerActor},
	{"AFailingHandlerRestartsAlone", failingHandlerRestartsAlone},
	{"ARestartGoesOnAtTheCommit", restartGoesOn},
	{"MembersJoinAndLeave", membersJoinAndLeave},
	{"ResetEarliest", resetEarliest},
	{"ResetLatest", resetLatest},
	{"ResetNone", resetNone},
	{"ANewPartitionStartsAtItsBeginning", newPartitionStartsAtItsBeginning},
	{"ALateAckIsStale", lateAckIsStale},
	{"AnUnknownTopicIsJoinedWhenItAppears", unknownTopic},
	{"ACloseIsBoundedByItsContext", closeIsBounded},
	{"ABombStopsItsPartitionOnly", bombStopsItsPartitionOnly},
}

func TestEmbedded(t *testing.T) {
	conformance(t, func(t *testing.T) broker { return newEmbedded(t) })
}

func TestKafka(t *testing.T) { conformance(t, realKafka.broker) }

// conformance runs the rules, each on a broker that the factory gives it.
func conformance(t *testing.T, factory func(t *testing.T) broker) {
	for _, rule := range rules {
		t.Run(rule.name, func(t *testing.T) {
			t.Parallel()
			rule.test(t, factory(t))
		})
	}
}

// everywhere runs a test on the embedded broker and on a real Kafka.
func everywhere(t *testing.T, test func(t *testing.T, b broker)) {
	t.Helper()
	t.Run("Embedded", func(t *testing.T) {
		t.Parallel()
		test(t, newEmbedded(t))
	})
	t.Run("Kafka", func(t *testing.T) {
		t.Parallel()
		test(t, realKafka.broker(t))
	})
}
