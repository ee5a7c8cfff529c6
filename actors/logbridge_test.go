package actors

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

func bridgeLogger() (*zap.Logger, *observer.ObservedLogs) {
	core, logs := observer.New(zapcore.DebugLevel)
	return zap.New(core), logs
}

// bridgeSecret stands for a record's payload, in every shape in which a logger could print it.
type bridgeSecret struct{ Payload string }

const bridgePayload = "s3cr3t"

func (s bridgeSecret) String() string               { return s.Payload }
func (s bridgeSecret) Error() string                { return s.Payload }
func (s bridgeSecret) LogValue() slog.Value         { return slog.StringValue(s.Payload) }
func (s bridgeSecret) GoString() string             { return s.Payload }
func (s bridgeSecret) MarshalText() ([]byte, error) { return []byte(s.Payload), nil }

func TestLogBridge_NeverPrintsPayloads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(2 * deadLetterThrottle)
		logger, logs := bridgeLogger()
		sys := newSystem(logger, nil)
		defer sys.shutdown()
		secret := bridgeSecret{bridgePayload}
		for _, message := range []any{secret, &secret, bridgePayload, []byte(bridgePayload), fmt.Errorf("x %w", secret), map[string]any{"k": secret}} {
			// A panic with the payload as the reason, in an actor without our wrapper.
			pid := sys.root.Spawn(actor.PropsFromFunc(func(ctx actor.Context) {
				switch m := ctx.Message().(type) {
				case *actor.Started, *actor.Stopping, *actor.Stopped, *actor.Restarting:
				default:
					panic(m)
				}
			}))
			sys.root.Send(pid, message)
			synctest.Wait()
			sys.root.Stop(pid)
			synctest.Wait()
			// Dead letters: as a message, in an envelope, to a nil sender and a real one.
			sys.root.Send(pid, message)
			sys.root.RequestWithCustomSender(pid, message, pid)
			time.Sleep(2 * deadLetterThrottle)
			synctest.Wait()
		}
		seen := map[string]int{}
		for _, entry := range logs.All() {
			seen[entry.Message]++
			line, err := zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()).EncodeEntry(entry.Entry, entry.Context)
			require.NoError(t, err)
			assert.NotContains(t, line.String(), bridgePayload)
			assert.Equal(t, zapcore.DebugLevel, entry.Level, "protoactor's Info is our Debug: %s", line)
		}
		assert.Equal(t, 1, seen["actor system started"])
		assert.Equal(t, 6, seen["[ACTOR] Recovering"])
		assert.Positive(t, seen["[DeadLetter]"])
		types := logs.FilterMessage("[DeadLetter]").FilterField(zap.String("message", "actors.bridgeSecret"))
		assert.Equal(t, 1, types.Len(), "the type is printed")
	})
}

func TestLogBridge_LinesOfAUsersActorPassAsTheyAre(t *testing.T) {
	core, logs := observer.New(zapcore.InfoLevel)
	sys := newSystem(zap.New(core), nil)
	defer sys.shutdown()
	log := sys.actorSystem.Logger()
	log.Info("charged", "reason", "monthly", "order", bridgeSecret{"42"}, slog.Group("sum", "cents", 995), slog.Group("", "vat", 19))
	log.With("shop", "berlin").WithGroup("").WithGroup("cart").Warn("empty", "age", time.Minute)
	log.Error("lost", "error", errSpawnTest)
	log.Debug("not enabled")

	var lines []string
	for _, entry := range logs.All() {
		fields := entry.ContextMap()
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s %v", entry.Level, entry.Message, fields)))
		assert.False(t, entry.Caller.Defined)
		assert.WithinDuration(t, time.Now(), entry.Time, time.Minute)
	}
	assert.Equal(t, []string{
		"info charged map[order:42 reason:monthly sum:map[cents:995] vat:19]",
		"warn empty map[cart:map[age:1m0s] shop:berlin]",
		"error lost map[error:disk on fire]",
	}, lines)
}

func TestLogBridge_UnknownOriginIsTreatedAsProtoactors(t *testing.T) {
	logger, logs := bridgeLogger()
	record := slog.NewRecord(time.Time{}, slog.LevelInfo, "where from", 0)
	record.AddAttrs(slog.Any("x", bridgeSecret{bridgePayload}), slog.Group("g", "k", bridgePayload), slog.Int("n", 7),
		slog.Any("directive", actor.StopDirective), slog.Any("pid", actor.NewPID("here", "kid")), slog.String("message", bridgePayload))
	require.NoError(t, logBridge{logger}.Handle(t.Context(), record))
	require.Len(t, logs.All(), 1)
	entry := logs.All()[0]
	assert.Equal(t, zapcore.DebugLevel, entry.Level)
	assert.Equal(t, map[string]any{
		"x": "actors.bridgeSecret", "g": "[]slog.Attr", "n": int64(7), "directive": "StopDirective", "pid": "kid", "message": "string",
	}, entry.ContextMap())
}
