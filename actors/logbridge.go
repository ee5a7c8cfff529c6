package actors

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// runtimePackage prefixes the functions of protoactor's own code.
const runtimePackage = "github.com/asynkron/protoactor-go/"

// logBridge is a slog.Handler over a zap logger, for an actor system's logger.
//
// protoactor's own lines are made safe: of whatever could be a record, which is messages, panic reasons and values of types
// unknown here, they show the type only. Its lines at Info become Debug: a failure has been logged at Error by the safe wrapper,
// with its stack, and dead letters are common whenever a tree stops. Lines of anyone else, which is a user's actor that logs by
// its context, pass as they are.
type logBridge struct{ logger *zap.Logger }

func newLogBridge(logger *zap.Logger) *slog.Logger {
	// The caller would be this file.
	return slog.New(logBridge{logger.WithOptions(zap.WithCaller(false))})
}

// Enabled implements slog.Handler.
func (b logBridge) Enabled(_ context.Context, level slog.Level) bool {
	return b.logger.Core().Enabled(bridgeLevel(level))
}

// Handle implements slog.Handler.
func (b logBridge) Handle(_ context.Context, record slog.Record) error {
	ours, level := isRuntimeLine(record.PC), bridgeLevel(record.Level)
	if ours && level == zapcore.InfoLevel {
		level = zapcore.DebugLevel
	}
	entry := b.logger.Check(level, record.Message)
	if entry == nil {
		return nil
	}
	if !record.Time.IsZero() {
		entry.Time = record.Time
	}
	fields := make([]zap.Field, 0, record.NumAttrs())
	record.Attrs(func(attr slog.Attr) bool {
		if ours {
			fields = append(fields, safeField(attr))
		} else {
			fields = append(fields, plainField(attr))
		}
		return true
	})
	entry.Write(fields...)
	return nil
}

// WithAttrs implements slog.Handler. protoactor never calls it on an actor system's logger, so these attributes are a user's.
func (b logBridge) WithAttrs(attrs []slog.Attr) slog.Handler {
	fields := make([]zap.Field, 0, len(attrs))
	for _, attr := range attrs {
		fields = append(fields, plainField(attr))
	}
	return logBridge{b.logger.With(fields...)}
}

// WithGroup implements slog.Handler.
func (b logBridge) WithGroup(name string) slog.Handler {
	if name == "" {
		return b
	}
	return logBridge{b.logger.With(zap.Namespace(name))}
}

// isRuntimeLine tells whether a line was logged by protoactor itself. A line of unknown origin counts as one.
func isRuntimeLine(pc uintptr) bool {
	frame, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	return frame.Function == "" || strings.HasPrefix(frame.Function, runtimePackage)
}

// safeField shows of an attribute what cannot hold a record.
func safeField(attr slog.Attr) zap.Field {
	value := attr.Value.Any()
	switch attr.Key {
	case "message", "reason", "exception":
		return zap.String(attr.Key, fmt.Sprintf("%T", value))
	}
	switch v := value.(type) {
	case *actor.PID:
		return zap.String(attr.Key, v.GetId())
	case actor.Directive:
		return zap.Stringer(attr.Key, v)
	}
	switch attr.Value.Kind() {
	case slog.KindBool, slog.KindDuration, slog.KindFloat64, slog.KindInt64, slog.KindString, slog.KindTime, slog.KindUint64:
		return zap.Any(attr.Key, value)
	case slog.KindAny, slog.KindGroup, slog.KindLogValuer:
	}
	return zap.String(attr.Key, fmt.Sprintf("%T", value))
}

// plainField is the attribute as it is.
func plainField(attr slog.Attr) zap.Field {
	value := attr.Value.Resolve()
	if value.Kind() != slog.KindGroup {
		return zap.Any(attr.Key, value.Any())
	}
	fields := make([]zap.Field, 0, len(value.Group()))
	for _, inner := range value.Group() {
		fields = append(fields, plainField(inner))
	}
	if attr.Key == "" {
		return zap.Inline(zapFields(fields))
	}
	return zap.Dict(attr.Key, fields...)
}

// zapFields is a group without a name: its fields belong to the line itself.
type zapFields []zap.Field

// MarshalLogObject implements zapcore.ObjectMarshaler.
func (f zapFields) MarshalLogObject(encoder zapcore.ObjectEncoder) error {
	for _, field := range f {
		field.AddTo(encoder)
	}
	return nil
}

func bridgeLevel(level slog.Level) zapcore.Level {
	switch {
	case level >= slog.LevelError:
		return zapcore.ErrorLevel
	case level >= slog.LevelWarn:
		return zapcore.WarnLevel
	case level >= slog.LevelInfo:
		return zapcore.InfoLevel
	}
	return zapcore.DebugLevel
}
