package main

import (
	"context"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/kafka"
)

// pauseOrResume is the call that all consumers have. The peers' sets a mark; Troupe's returns when the partition has stopped,
// or goes on.
const pauseOrResume = "Pause or Resume"

// alternate makes one call out of two that undo each other.
func alternate(do, undo func(ctx context.Context) error) func(context.Context, int) error {
	return func(ctx context.Context, number int) error {
		if number%2 == 0 {
			return do(ctx)
		}
		return undo(ctx)
	}
}

// troupeControls are those of one partition.
func troupeControls(c *api.Consumer, topic string) []control {
	partition := kafka.TopicPartition{Topic: topic}
	withReturn := func(take func(context.Context, string, ...kafka.TopicPartition) (*api.Token, error)) func(context.Context, int) error {
		return func(ctx context.Context, _ int) error {
			token, err := take(ctx, "bench", partition)
			if err != nil {
				return err
			}
			return token.Return()
		}
	}
	var token *api.Token
	return []control{
		{pauseOrResume, alternate(
			func(ctx context.Context) error { return c.Pause(ctx, partition) },
			func(ctx context.Context) error { return c.Resume(ctx, partition) })},
		{"Token and Return", withReturn(c.Token)},
		{"TryToken and Return", withReturn(c.TryToken)},
		{"Pause or Resume with a token", alternate(
			func(ctx context.Context) (err error) {
				if token == nil {
					if token, err = c.Token(ctx, "bench", partition); err != nil {
						return err
					}
				}
				return token.Pause(ctx)
			},
			func(ctx context.Context) error { return token.Resume(ctx) })},
	}
}

func saramaControls(group sarama.ConsumerGroup, topic string) []control {
	partition := map[string][]int32{topic: {0}}
	return []control{{pauseOrResume, alternate(
		func(context.Context) error { group.Pause(partition); return nil },
		func(context.Context) error { group.Resume(partition); return nil })}}
}

func franzControls(client *kgo.Client, topic string) []control {
	partition := map[string][]int32{topic: {0}}
	return []control{{pauseOrResume, alternate(
		func(context.Context) error { client.PauseFetchPartitions(partition); return nil },
		func(context.Context) error { client.ResumeFetchPartitions(partition); return nil })}}
}
