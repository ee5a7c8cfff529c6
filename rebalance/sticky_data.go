package rebalance

import (
	"fmt"

	"github.com/troupego/troupe/pkg/kafka"
)

// encodeStickyData writes the Java client's StickyAssignorUserData version 1: the previous assignment by topic, and the
// generation it was given in. The format carries no version; version 0 ends before the generation.
func encodeStickyData(partitions []kafka.TopicPartition, generation kafka.Generation) ([]byte, error) {
	out, err := appendPartitions(nil, partitions)
	if err != nil {
		return nil, err
	}
	return appendInt32(out, int32(generation)), nil
}

// decodeStickyData reads version 1 or 0; bytes after the last known field are ignored.
func decodeStickyData(data []byte) (claim, error) {
	d := decoder{rest: data}
	c := claim{partitions: d.partitions("previous assignment"), generation: kafka.NoGeneration}
	if len(d.rest) >= 4 {
		c.generation = kafka.Generation(d.int32("generation"))
	}
	if d.err != nil {
		return claim{generation: kafka.NoGeneration}, fmt.Errorf("rebalance: sticky user data: %w", d.err)
	}
	return c, nil
}
