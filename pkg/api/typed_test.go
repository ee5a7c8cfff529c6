package api

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

type typedOrder struct {
	ID    int64     `json:"id"`
	Item  string    `json:"item"`
	Price float64   `json:"price"`
	At    time.Time `json:"at"`
}

// typedHandler resolves a registration and returns what the tree calls.
func typedHandler[T any](t *testing.T, codec Codec[T], handler func(context.Context, T, *kafka.Record) error, options ...RecordOption) actors.RecordHandler {
	t.Helper()
	return resolveOne(t, validConfig(), HandleTyped("orders", codec, handler, options...)).Record
}

func record(value string) *kafka.Record {
	return &kafka.Record{Topic: "orders", Partition: 2, Offset: 41, Value: []byte(value)}
}

func TestATypedHandlerGetsTheValueAndTheRecord(t *testing.T) {
	cause := errors.New("no")
	var got typedOrder
	var of *kafka.Record
	handle := typedHandler(t, JSON[typedOrder](), func(_ context.Context, order typedOrder, r *kafka.Record) error {
		got, of = order, r
		return cause
	})
	r := record(`{"id": 7, "ITEM": "lamp", "color": "red"}`)
	if err := handle(t.Context(), r); err != cause {
		t.Errorf("error is %v, want the handler's", err)
	}
	if want := (typedOrder{ID: 7, Item: "lamp"}); got != want || of != r {
		t.Errorf("got %+v of %p, want %+v of %p", got, of, want, r)
	}
}

func TestATombstoneIsTheZeroValueOfJSON(t *testing.T) {
	calls := 0
	handle := typedHandler(t, JSON[*typedOrder](), func(_ context.Context, order *typedOrder, _ *kafka.Record) error {
		calls++
		if order != nil {
			t.Errorf("got %+v, want nil", order)
		}
		return nil
	})
	if err := handle(t.Context(), &kafka.Record{Topic: "orders"}); err != nil || calls != 1 {
		t.Errorf("%d calls, error %v", calls, err)
	}
	var failed *DecodeError
	if err := handle(t.Context(), record("")); !errors.As(err, &failed) {
		t.Errorf("an empty value: %v, want a *DecodeError", err)
	}
}

func TestBytesMayBeKept(t *testing.T) {
	var kept [][]byte
	handle := typedHandler(t, Bytes(), func(_ context.Context, value []byte, _ *kafka.Record) error {
		kept = append(kept, value)
		return nil
	})
	r := record("book")
	for _, r := range []*kafka.Record{r, record(""), {}} {
		if err := handle(t.Context(), r); err != nil {
			t.Error(err)
		}
	}
	clear(r.Value)
	if string(kept[0]) != "book" || kept[1] == nil || len(kept[1]) != 0 || kept[2] != nil {
		t.Errorf("kept %q", kept)
	}
}

// picky refuses what it reads, and quotes it.
type picky struct{}

func (*picky) UnmarshalJSON(value []byte) error { return fmt.Errorf("bad: %s", value) }

func TestADecodeErrorNamesTheRecordAndQuotesNothingOfIt(t *testing.T) {
	const secret = "4711"
	order := func(context.Context, typedOrder, *kafka.Record) error {
		return errors.New("it was called")
	}
	panicking := func(v any) Codec[typedOrder] {
		return CodecFunc[typedOrder](func(*kafka.Record) (typedOrder, error) { panic(v) })
	}
	own := errors.New("not one of ours")
	for name, c := range map[string]struct {
		codec Codec[typedOrder]
		value string
		want  string
	}{
		"syntax":         {JSON[typedOrder](), `{"id": 12x` + secret, "json: syntax error at byte 10"},
		"cut off":        {JSON[typedOrder](), `{"item": "` + secret, "json: syntax error at byte 14"},
		"more after it":  {JSON[typedOrder](), `{} ` + secret, "json: syntax error at byte 4"},
		"number":         {JSON[typedOrder](), `{"id": ` + secret + `99999999999999999999}`, "json: number at byte 31 does not fit field id of type int64"},
		"string":         {JSON[typedOrder](), `{"price": "` + secret + `"}`, "json: string at byte 16 does not fit field price of type float64"},
		"the whole":      {JSON[typedOrder](), secret, "json: number at byte 4 does not fit type api.typedOrder"},
		"a time":         {JSON[typedOrder](), `{"at": "` + secret + `"}`, "json: the value was refused with a *time.ParseError"},
		"panic":          {panicking("no " + secret), secret, "the codec panicked with a string"},
		"error as panic": {panicking(errors.New(secret)), secret, "the codec panicked with a *errors.errorString"},
		"index": {CodecFunc[typedOrder](func(r *kafka.Record) (typedOrder, error) { return typedOrder{ID: int64(r.Key[3])}, nil }), secret,
			"the codec panicked: runtime error: index out of range [3] with length 0"},
		"own": {CodecFunc[typedOrder](func(*kafka.Record) (typedOrder, error) { return typedOrder{}, own }), secret, "not one of ours"},
	} {
		t.Run(name, func(t *testing.T) {
			err := typedHandler(t, c.codec, order)(t.Context(), record(c.value))
			var failed *DecodeError
			if !errors.As(err, &failed) || failed.TopicPartition != (kafka.TopicPartition{Topic: "orders", Partition: 2}) || failed.Offset != 41 {
				t.Fatalf("error is %T (%v)", err, err)
			}
			if want := "troupe: decode orders-2@41: " + c.want; err.Error() != want {
				t.Errorf("error is %q, want %q", err, want)
			}
			if strings.Contains(fmt.Sprintf("%+v", err), secret) {
				t.Errorf("%+v quotes the record", err)
			}
			if (name == "own") != errors.Is(err, own) {
				t.Errorf("errors.Is finds the codec's own error: %v", errors.Is(err, own))
			}
		})
	}
	err := typedHandler(t, JSON[*picky](), func(context.Context, *picky, *kafka.Record) error { return nil })(t.Context(), record(`{"id": 4711}`))
	if err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("a type's own decoder: %v", err)
	}
}

func TestMiddlewareIsOutsideOfTheCodec(t *testing.T) {
	var seen error
	watch := func(next Handler) Handler {
		return func(ctx context.Context, r *kafka.Record) error {
			seen = next(ctx, r)
			return seen
		}
	}
	handle := typedHandler(t, JSON[int](), func(context.Context, int, *kafka.Record) error { return nil }, Use(watch))
	err := handle(t.Context(), record("x"))
	if _, ok := seen.(*DecodeError); !ok || err != seen {
		t.Errorf("middleware saw %v, the tree %v", seen, err)
	}
}

func TestATypedRegistrationWithoutCodecOrHandlerIsAConfigurationError(t *testing.T) {
	good := func(context.Context, int, *kafka.Record) error { return nil }
	var noFunction CodecFunc[int]
	for name, c := range map[string]struct {
		registration Registration
		want         []Problem
	}{
		"no codec":          {HandleTyped("orders", Codec[int](nil), good), []Problem{{`HandleTyped("orders").codec`, "nil", "a codec"}}},
		"no codec function": {HandleTyped("orders", noFunction, good), []Problem{{`HandleTyped("orders").codec`, "nil", "a codec"}}},
		"no handler":        {HandleTyped("orders", JSON[int](), nil), []Problem{{`HandleTyped("orders").handler`, "nil", "a function"}}},
		"nil option":        {HandleTyped("orders", JSON[int](), good, nil), []Problem{{`HandleTyped("orders").options`, "nil", "no nil options"}}},
		"everything": {HandleTyped([]string{"a", "b"}, Codec[int](nil), nil, KeyOrder(0)), []Problem{
			{`HandleTyped("a", "b").handler`, "nil", "a function"},
			{`HandleTyped("a", "b").codec`, "nil", "a codec"},
			{`HandleTyped("a", "b").KeyOrder`, "0", "at least 1 worker"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			got := problemsOf(t, validConfig(), c.registration)
			if fmt.Sprint(got) != fmt.Sprint(c.want) {
				t.Errorf("problems are %q, want %q", got, c.want)
			}
		})
	}
}

func TestARegistrationsResetReplacesTheConfigs(t *testing.T) {
	config := validConfig()
	config.Reset = rebalance.ResetLatest
	if got := resolveOne(t, config, Handle("orders", nothing)).Reset; got != rebalance.ResetLatest {
		t.Errorf("reset is %v, want the configuration's", got)
	}
	want := rebalance.ResetByDuration(time.Hour)
	if got := resolveOne(t, config, Handle("orders", nothing, ResetTo(want))).Reset; got != want {
		t.Errorf("reset is %v, want %v", got, want)
	}
	config.Reset = rebalance.ResetAt(math.MinInt64)
	got := problemsOf(t, config, Handle("orders", nothing, ResetTo(rebalance.ResetByDuration(-time.Second))), Handle("clicks", nothing))
	if len(got) != 2 || got[0].Field != "Reset" ||
		got[1] != (Problem{`Handle("orders").ResetTo`, "by_duration:-PT1S", "a duration above 0 and at most 100 years (P36500D)"}) {
		t.Errorf("problems are %q", got)
	}
}
