package api

import (
	"context"
	"errors"
	"testing"
)

func TestNothingIsStartedByAWrongConfiguration(t *testing.T) {
	// goleak in TestMain sees to it that no goroutine, the observer's included, was started.
	consumer, err := Spawn(t.Context(), Config{}, WithObserverBuffer(1))
	if consumer != nil || err == nil {
		t.Fatalf("consumer %v and error %v, want only an error", consumer, err)
	}
	if err := Run(t.Context(), Config{}); !errors.As(err, new(*ConfigError)) {
		t.Errorf("Run returned %v, want a *ConfigError", err)
	}
}

func TestRunReturnsNilWhenItsContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Run(ctx, validConfig(), Handle("orders", nothing)); err != nil {
		t.Errorf("Run returned %v, want nil", err)
	}
}
