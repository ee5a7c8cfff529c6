package api

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/supervisor"
)

func resolveOne(t *testing.T, config Config, parts ...Part) actors.Registration {
	t.Helper()
	settings, err := Resolve(config, parts...)
	if err != nil {
		t.Fatal(err)
	}
	if len(settings.Registrations) != 1 {
		t.Fatalf("%d registrations, want 1", len(settings.Registrations))
	}
	return settings.Registrations[0]
}

func TestMiddlewareWrapsInTheOrderGivenTheFirstOutermost(t *testing.T) {
	var calls []string
	named := func(name string) Middleware {
		return func(next Handler) Handler {
			return func(ctx context.Context, record *kafka.Record) error {
				calls = append(calls, name)
				return next(ctx, record)
			}
		}
	}
	cause := errors.New("no")
	r := resolveOne(t, validConfig(), Handle("orders", func(context.Context, *kafka.Record) error {
		calls = append(calls, "handler")
		return cause
	}, Use(named("a"), named("b")), Use(named("c"))))
	if err := r.Record(t.Context(), &kafka.Record{}); !errors.Is(err, cause) {
		t.Errorf("error is %v, want the handler's", err)
	}
	if want := []string{"a", "b", "c", "handler"}; !slices.Equal(calls, want) {
		t.Errorf("calls are %v, want %v", calls, want)
	}
}

func TestBatchMiddlewareSeesTheWholeBatch(t *testing.T) {
	seen := 0
	counting := func(next BatchHandler) BatchHandler {
		return func(ctx context.Context, records []kafka.Record) error {
			seen += len(records)
			return next(ctx, records)
		}
	}
	r := resolveOne(t, validConfig(), HandleBatch("orders", nothingBatch, UseBatch(counting)))
	if err := r.Batch(t.Context(), make([]kafka.Record, 3)); err != nil || seen != 3 {
		t.Errorf("middleware saw %d records (error %v), want 3", seen, err)
	}
}

func TestMiddlewareIsAppliedOncePerSpawnAndRegistrationsMayBeUsedAgain(t *testing.T) {
	applied := 0
	registration := Handle("orders", nothing, Use(func(next Handler) Handler {
		applied++
		return next
	}))
	for want := 1; want <= 2; want++ {
		resolveOne(t, validConfig(), registration)
		if applied != want {
			t.Errorf("applied %d times, want %d", applied, want)
		}
	}
}

func TestARegistrationTakesOneTopicOrSeveral(t *testing.T) {
	topics := []string{"orders", "refunds"}
	several := Handle(topics, nothing)
	topics[0] = "changed"
	for _, tt := range []struct {
		registration Registration
		want         []string
		name         string
	}{
		{Handle("orders", nothing), []string{"orders"}, `Handle("orders")`},
		{several, []string{"orders", "refunds"}, `Handle("orders", "refunds")`},
		{HandleBatch("clicks", nothingBatch), []string{"clicks"}, `HandleBatch("clicks")`},
		{HandleActor("audit", noActor), []string{"audit"}, `HandleActor("audit")`},
		{Handle(Matching("a.*", "b").Except("c"), nothing), nil, `Handle(Matching("a.*", "b").Except("c"))`},
	} {
		if got := resolveOne(t, validConfig(), tt.registration).Topics; !slices.Equal(got, tt.want) {
			t.Errorf("topics are %v, want %v", got, tt.want)
		}
		if got := tt.registration.String(); got != tt.name {
			t.Errorf("registration reads %s, want %s", got, tt.name)
		}
	}
}

func TestARegistrationsRestartReplacesTheConfigs(t *testing.T) {
	config := validConfig()
	config.Restart = supervisor.Policy{MaxRestarts: 3, OnSpent: supervisor.StopAll}
	if got := resolveOne(t, config, Handle("a", nothing)).Restart; got.MaxRestarts != 3 || got.OnSpent != supervisor.StopAll {
		t.Errorf("policy is %+v, want the Config's", got)
	}
	own := supervisor.Policy{MaxRestarts: 7}
	for _, registration := range []Registration{
		Handle("a", nothing, Restart(own)), HandleBatch("a", nothingBatch, Restart(own)), HandleActor("a", noActor, Restart(own)),
	} {
		if got, want := resolveOne(t, config, registration).Restart, own.WithDefaults(); got != want {
			t.Errorf("policy of %s is %+v, want %+v", registration, got, want)
		}
	}
}

func TestMaxRecordsHoldsForEveryKindOfHandler(t *testing.T) {
	for _, registration := range []Registration{
		Handle("a", nothing, MaxRecords(7)), HandleBatch("a", nothingBatch, MaxRecords(7)), HandleActor("a", noActor, MaxRecords(7)),
	} {
		if got := resolveOne(t, validConfig(), registration).MaxRecords; got != 7 {
			t.Errorf("MaxRecords of %s is %d, want 7", registration, got)
		}
	}
}

func TestExactlyOneKindOfHandlerReachesTheTree(t *testing.T) {
	for _, registration := range []Registration{Handle("a", nothing), HandleBatch("a", nothingBatch), HandleActor("a", noActor)} {
		r := resolveOne(t, validConfig(), registration)
		kinds := 0
		for _, set := range []bool{r.Record != nil, r.Batch != nil, r.Actor != nil} {
			if set {
				kinds++
			}
		}
		if kinds != 1 {
			t.Errorf("%s gives the tree %d handlers, want 1", registration, kinds)
		}
	}
}

func noActor(kafka.TopicPartition) actor.Actor { return nil }
