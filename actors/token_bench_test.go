package actors

import (
	"testing"

	"github.com/troupego/troupe/internal/capability"
	"github.com/troupego/troupe/pkg/kafka"
)

// BenchmarkToken_EnterAndLeave is what a token adds to each call that is made with it, beside the message to the group.
func BenchmarkToken_EnterAndLeave(b *testing.B) {
	key, err := capability.NewMint().Grant("bench", kafka.TopicPartition{Topic: "orders"})
	if err != nil {
		b.Fatal(err)
	}
	token := new(Tree).newToken(key, 0)
	b.ReportAllocs()
	for b.Loop() {
		inside, err := token.enter("pause")
		if err != nil {
			b.Fatal(err)
		}
		if err := inside.Return(token.holder); err != nil {
			b.Fatal(err)
		}
	}
}
