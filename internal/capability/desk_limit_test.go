package capability

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/pkg/kafka"
)

// grantedIn returns the key that was granted to an asker.
func grantedIn(effects []DeskEffect, id uint64) *Key {
	for _, effect := range effects {
		if granted, ok := effect.(Granted); ok && granted.ID == id {
			return granted.Key
		}
	}
	return nil
}

func TestDesk_TheTimeOfWhoWaitedCountsFromTheGrant(t *testing.T) {
	d, now := NewDesk(), time.Unix(1000, 0)
	tp := kafka.TopicPartition{Topic: "orders"}
	d.Step(now, Owned{Partitions: []kafka.TopicPartition{tp}})
	require.NotNil(t, grantedIn(d.Step(now, Asked{ID: 1, All: true, For: time.Minute}), 1))
	d.Step(now, Asked{ID: 2, How: Wait, All: true, For: time.Minute})
	now = now.Add(time.Minute)
	require.NotNil(t, grantedIn(d.Step(now, DeskTick{}), 2))
	at, ok := d.Deadline()
	assert.True(t, ok)
	assert.Equal(t, now.Add(time.Minute), at)
	d.Step(now, Ended{ID: 2})
	d.Step(now, Asked{ID: 3, All: true, For: time.Minute, Until: now.Add(time.Second)})
	at, _ = d.Deadline()
	assert.Equal(t, now.Add(time.Second), at, "the earlier of both")
}

func TestDesk_ATokenThatWasReturnedIsNotInTheLedgerBesideTheNextOne(t *testing.T) {
	d, now := NewDesk(), time.Unix(1000, 0)
	tp := kafka.TopicPartition{Topic: "orders"}
	d.Step(now, Owned{Partitions: []kafka.TopicPartition{tp}})
	key := grantedIn(d.Step(now, Asked{ID: 1, Holder: "a", All: true}), 1)
	require.NoError(t, key.Return("a"))
	require.NotNil(t, grantedIn(d.Step(now, Asked{ID: 2, Holder: "b", All: true}), 2), "before the desk has heard of the return")
	ledger := d.Ledger()
	require.Len(t, ledger, 1)
	assert.Equal(t, Holder("b"), ledger[0].Holder)
	assert.NoError(t, d.Valid())
}
