package api

import (
	"runtime"
	"slices"
	"testing"
	"testing/synctest"

	"go.uber.org/zap"
	zapobserver "go.uber.org/zap/zaptest/observer"

	"github.com/troupego/troupe/pkg/event"
)

func numbered(n int) event.Event { return event.TopicChanged{NewCount: int32(n)} }

func TestB51_AnObserverThatNeverReturnsBlocksNobodyAndDropsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := make(chan struct{})
		o := newObserver(func(event.Event) { <-stuck }, 16, zap.NewNop())
		const errors = 10_000
		o.offer(numbered(0))
		synctest.Wait() // the observer hangs in the first one
		for i := 1; i < errors; i++ {
			o.offer(numbered(i))
		}
		if got, want := o.drops(), uint64(errors-1-16); got != want {
			t.Errorf("%d events dropped, want %d", got, want)
		}
		close(stuck)
		o.offer(event.Closed{})
		<-o.ended
	})
}

func TestTheOldestEventsAreDroppedAndTheOthersComeInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		var told []int
		closed := false
		o := newObserver(func(e event.Event) {
			<-gate
			switch e := e.(type) {
			case event.TopicChanged:
				told = append(told, int(e.NewCount))
			case event.Closed:
				closed = true
			}
		}, 3, zap.NewNop())
		o.offer(numbered(0))
		synctest.Wait()
		for i := 1; i <= 5; i++ {
			o.offer(numbered(i))
		}
		o.offer(event.Closed{})
		o.offer(numbered(6)) // after the end
		close(gate)
		<-o.ended
		if want := []int{0, 4, 5}; !slices.Equal(told, want) || !closed {
			t.Errorf("told %v, closed %v, want %v and the last event", told, closed, want)
		}
		if got := o.drops(); got != 4 {
			t.Errorf("%d drops, want 4: three of the oldest and the one after the end", got)
		}
	})
}

func TestAnObserverThatPanicsOrEndsItsGoroutineIsToldTheNextEvent(t *testing.T) {
	for name, fail := range map[string]func(){"panic": func() { panic("no") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			core, logs := zapobserver.New(zap.ErrorLevel)
			told := 0
			o := newObserver(func(e event.Event) {
				if told++; told == 1 {
					fail()
				}
			}, 8, zap.New(core))
			o.offer(numbered(1))
			o.offer(numbered(2))
			o.offer(event.Closed{})
			<-o.ended
			if told != 3 {
				t.Errorf("told %d events, want 3", told)
			}
			if logs.Len() != 1 {
				t.Errorf("%d log lines, want one about the observer", logs.Len())
			}
		})
	}
}
