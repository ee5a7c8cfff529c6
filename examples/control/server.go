package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// callLimit bounds one call, whatever the brokers do.
const callLimit = 10 * time.Second

// server is the HTTP API over a running consumer. It decides nothing by itself: what cannot be done is said by the consumer's
// typed errors.
type server struct {
	consumer *api.Consumer
	topic    string
}

// partitionView is one partition in the answer to GET /partitions.
type partitionView struct {
	Partition int32    `json:"partition"`
	State     string   `json:"state"`
	Condition string   `json:"condition"`
	Position  int64    `json:"position"`
	Committed int64    `json:"committed"`
	Lag       int64    `json:"lag"`
	Paused    []string `json:"paused,omitempty"`
	// Blocked is the offset at which the handler fails, or works; -1 when it does not.
	Blocked int64 `json:"blocked"`
}

// routes says what can be asked for. All but the first take ?partition=n, or none for all partitions that are owned.
func (s *server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /partitions", s.partitions)
	mux.HandleFunc("POST /pause", s.control(func(ctx context.Context, _ *http.Request, tps []kafka.TopicPartition) error {
		return s.consumer.Pause(ctx, tps...)
	}))
	mux.HandleFunc("POST /resume", s.control(func(ctx context.Context, _ *http.Request, tps []kafka.TopicPartition) error {
		return s.consumer.Resume(ctx, tps...)
	}))
	mux.HandleFunc("POST /seek", s.control(s.seek))
	mux.HandleFunc("POST /skip", s.control(s.skip))
	return mux
}

// badRequest is what the caller got wrong.
type badRequest struct{ error }

func (s *server) partitions(w http.ResponseWriter, _ *http.Request) {
	views := []partitionView{}
	for _, p := range s.consumer.Stats().Partitions {
		views = append(views, partitionView{
			Partition: p.TopicPartition.Partition, State: p.State, Condition: p.Condition, Position: p.Position, Committed: p.Committed,
			Lag: p.Lag, Paused: p.PauseReasons, Blocked: p.HandlerOffset,
		})
	}
	answer(w, http.StatusOK, views)
}

// control runs one change of the consumer and answers with what became of it.
func (s *server) control(change func(context.Context, *http.Request, []kafka.TopicPartition) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), callLimit)
		defer cancel()
		tps, err := s.named(r)
		if err == nil {
			err = change(ctx, r, tps)
		}
		if err != nil {
			answer(w, status(err), map[string]string{"error": err.Error()})
			return
		}
		answer(w, http.StatusOK, map[string]string{"done": r.URL.Path[1:]})
	}
}

// named returns the partition that a request names, nothing when it names none.
func (s *server) named(r *http.Request) ([]kafka.TopicPartition, error) {
	text := r.URL.Query().Get("partition")
	if text == "" {
		return nil, nil
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 0 {
		return nil, badRequest{errors.New("partition is a number from 0")}
	}
	return []kafka.TopicPartition{{Topic: s.topic, Partition: int32(n)}}, nil
}

// seek takes ?time=RFC3339, ?offset=n, or ?to=beginning|end.
func (s *server) seek(ctx context.Context, r *http.Request, tps []kafka.TopicPartition) error {
	query := r.URL.Query()
	var to rebalance.StartPosition
	switch {
	case query.Has("time"):
		since, err := time.Parse(time.RFC3339Nano, query.Get("time"))
		if err != nil {
			return badRequest{errors.New("time is one as in RFC 3339")}
		}
		to = rebalance.StartBy(rebalance.ResetAt(since.UnixMilli()))
	case query.Has("offset"):
		offset, err := strconv.ParseInt(query.Get("offset"), 10, 64)
		if err != nil {
			return badRequest{errors.New("offset is a number from 0")}
		}
		to = rebalance.StartAtOffset(offset)
	case query.Get("to") == "beginning":
		to = rebalance.StartBy(rebalance.ResetEarliest)
	case query.Get("to") == "end":
		to = rebalance.StartBy(rebalance.ResetLatest)
	default:
		return badRequest{errors.New("seek takes time, offset, or to=beginning or to=end")}
	}
	return s.consumer.Seek(ctx, to, tps...)
}

// skip takes ?partition=n&offset=n&reason=text: that record is finished without its handler.
func (s *server) skip(ctx context.Context, r *http.Request, tps []kafka.TopicPartition) error {
	offset, err := strconv.ParseInt(r.URL.Query().Get("offset"), 10, 64)
	if err != nil || len(tps) != 1 {
		return badRequest{errors.New("skip takes partition, offset and reason")}
	}
	return s.consumer.Skip(ctx, tps[0], offset, r.URL.Query().Get("reason"))
}

// status says in HTTP's words what an error means.
func status(err error) int {
	var bad badRequest
	var unassigned *actors.UnassignedError
	var state *actors.StateError
	var held *actors.HeldError
	switch {
	case errors.As(err, &unassigned), errors.Is(err, actors.ErrNotSubscribed):
		return http.StatusNotFound
	case errors.As(err, &state), errors.As(err, &held):
		return http.StatusConflict
	case errors.Is(err, actors.ErrClosing):
		return http.StatusServiceUnavailable
	case errors.Is(err, context.DeadlineExceeded):
		return http.StatusGatewayTimeout
	case errors.As(err, &bad):
		return http.StatusBadRequest
	}
	return http.StatusUnprocessableEntity
}

func answer(w http.ResponseWriter, code int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(value)
}
