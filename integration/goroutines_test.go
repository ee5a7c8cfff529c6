package integration

import (
	"runtime"
	"strings"
	"testing"
	"time"
)

// consumerFrames are the packages whose goroutines a consumer is made of. The broker's are other ones.
var consumerFrames = []string{
	"github.com/troupego/troupe/actors.", "github.com/troupego/troupe/internal/", "github.com/troupego/troupe/supervisor.",
	"github.com/troupego/troupe/pkg/api.", "github.com/asynkron/protoactor-go/", "github.com/IBM/sarama.",
}

// consumerGoroutines returns the stacks of the goroutines of consumers in this process.
func consumerGoroutines() []string {
	buf := make([]byte, 4<<20)
	buf = buf[:runtime.Stack(buf, true)]
	var found []string
	for stack := range strings.SplitSeq(string(buf), "\n\n") {
		if strings.Contains(stack, "integration.consumerGoroutines") {
			continue
		}
		for _, frame := range consumerFrames {
			if strings.Contains(stack, frame) {
				found = append(found, stack)
				break
			}
		}
	}
	return found
}

// noConsumerIsLeft demands that every goroutine of every consumer ends in time. It is for tests that run alone.
func noConsumerIsLeft(t *testing.T) {
	t.Helper()
	const most = 5 * time.Second
	var left []string
	if !waitFor(most, func() bool {
		left = consumerGoroutines()
		return len(left) == 0
	}) {
		t.Errorf("%d goroutines are left %v after the end:\n%s", len(left), most, strings.Join(left, "\n\n"))
	}
}
