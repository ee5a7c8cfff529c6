package integration

import "testing"

// rules are what must hold on every broker. Each gets a topic and a group of its own.
var rules = []struct {
	name string
	test func(t *testing.T, b broker)
	// core rules go by every request of the protocol, and also run on the old version and by secured listeners.
	core bool
}{
	{"EachRecordOnceAndInOrder", eachRecordOnceAndInOrder, true},
	{"CommitsWhileRunning", commitsWhileRunning, true},
	{"BatchesAreBoundedAndNothingIsLostBetweenThem", batchesAreBounded, false},
	{"AHandlerActorAcknowledgesInAnyOrder", handlerActor, true},
	{"AFailingHandlerRestartsAlone", failingHandlerRestartsAlone, true},
	{"ARestartGoesOnAtTheCommit", restartGoesOn, true},
	{"MembersJoinAndLeave", membersJoinAndLeave, true},
	{"ResetEarliest", resetEarliest, true},
	{"ResetLatest", resetLatest, false},
	{"ResetNone", resetNone, true},
	{"ANewPartitionStartsAtItsBeginning", newPartitionStartsAtItsBeginning, true},
	{"ALateAckIsStale", lateAckIsStale, false},
	{"AnUnknownTopicIsJoinedWhenItAppears", unknownTopic, true},
	{"WithoutAGroupPartitionsBeginWhereTheyAreAssigned", withoutAGroupWhereAssigned, true},
	{"ARangeEndsByItself", aRangeEndsByItself, true},
	{"APatternFollowsTheTopics", aPatternFollowsTheTopics, true},
	{"ATopicThatIsDeletedLeavesThePattern", aTopicThatIsDeletedLeavesThePattern, false},
	{"RejoinOnDemand", rejoinOnDemand, true},
	{"QuestionsForOffsets", questionsForOffsets, true},
	{"QuestionsBesideATransaction", questionsBesideATransaction, false},
	{"QuestionsInARebalance", questionsInARebalance, false},
	{"AnEarlierOffsetIsCommittedAndResumedAt", commitsAnEarlierOffset, false},
	{"OffsetsThatMayNotBeCommittedAreRefused", refusesOffsets, false},
	{"OffsetsAreCommittedThroughRebalances", commitsOffsetsThroughRebalances, false},
	{"SubscribeAtRunTime", subscribesAtRunTime, true},
	{"UnsubscribeAtRunTime", unsubscribesAtRunTime, true},
	{"SubscribeToAPatternAtRunTime", subscribesToAPatternAtRunTime, false},
	{"ConcurrencyChangesUnderHandlers", concurrencyChanges, false},
	{"AbandonWaitsForNobody", abandonWaitsForNobody, false},
	{"SeekToAnOffsetTheBeginningTheEndAndATime", seeks, true},
	{"SeekWhileTheGroupRebalances", seeksWhileRebalancing, false},
	{"SkipOfAPoisonRecord", skipsAPoisonRecord, true},
	{"PauseAndResume", pausesAndResumes, true},
	{"TokensAreExclusive", tokensAreExclusive, true},
	{"CallbacksHaveTheirTokens", callbacksHaveTheirTokens, true},
	{"EveryControlCallWhileTheGroupRebalances", everyCallWhileRebalancing, false},
	{"BadInputOfControlCallsIsRefused", refusesBadInput, true},
	{"AHandlerThatTakesTooLongCostsTheMembership/Dynamic", givesUpAndComesBack, false},
	{"AHandlerThatTakesTooLongCostsTheMembership/Static", givesUpAndComesBackStatic, false},
	{"ACloseIsBoundedByItsContext", closeIsBounded, false},
	{"ABombStopsItsPartitionOnly", bombStopsItsPartitionOnly, false},
	{"HolesAndFailures/PartitionOrder/Handle", holesAndFailures(inPartitionOrder, recordKind), false},
	{"HolesAndFailures/PartitionOrder/HandleBatch", holesAndFailures(inPartitionOrder, batchKind), false},
	{"HolesAndFailures/PartitionOrder/HandleAsync", holesAndFailures(inPartitionOrder, asyncKind), false},
	{"HolesAndFailures/PartitionOrder/HandleActor", holesAndFailures(inPartitionOrder, actorKind), false},
	{"HolesAndFailures/KeyOrder/Handle", holesAndFailures(inKeyOrder, recordKind), false},
	{"HolesAndFailures/KeyOrder/HandleBatch", holesAndFailures(inKeyOrder, batchKind), false},
	{"HolesAndFailures/KeyOrder/HandleAsync", holesAndFailures(inKeyOrder, asyncKind), false},
	{"HolesAndFailures/KeyOrder/HandleActor", holesAndFailures(inKeyOrder, actorKind), false},
	{"HolesAndFailures/Unordered/Handle", holesAndFailures(inNoOrder, recordKind), false},
	{"HolesAndFailures/Unordered/HandleBatch", holesAndFailures(inNoOrder, batchKind), false},
	{"HolesAndFailures/Unordered/HandleAsync", holesAndFailures(inNoOrder, asyncKind), false},
	{"HolesAndFailures/Unordered/HandleActor", holesAndFailures(inNoOrder, actorKind), false},
}

func TestEmbedded(t *testing.T) {
	conformance(t, func(t *testing.T) broker { return newEmbedded(t) })
}

func TestKafka(t *testing.T) { conformance(t, realKafka.broker) }

func TestKafkaSecured(t *testing.T) { core(t, realKafka.secured) }

func TestKafkaOld(t *testing.T) { core(t, oldKafka.broker) }

func TestKafkaOldSecured(t *testing.T) { core(t, oldKafka.secured) }

// core is conformance with the core rules alone.
func core(t *testing.T, factory func(t *testing.T) broker) {
	for _, rule := range rules {
		if !rule.core {
			continue
		}
		t.Run(rule.name, func(t *testing.T) {
			t.Parallel()
			rule.test(t, factory(t))
		})
	}
}

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
