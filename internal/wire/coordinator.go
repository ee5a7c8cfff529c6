package wire

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/pkg/kafka"
)

// coordinatorOfGroup is FindCoordinator's key type for consumer groups.
const coordinatorOfGroup int8 = 0

// FindCoordinator returns the coordinator of a consumer group.
func (c *metadataClient) FindCoordinator(ctx context.Context, groupID string) (kafka.Broker, error) {
	a, err := c.any(ctx, question{
		api:   apiFindCoordinator,
		limit: c.network.cfg.RequestTimeout,
		build: func(version int16) kmsg.Request {
			req := kmsg.NewPtrFindCoordinatorRequest()
			req.CoordinatorType = coordinatorOfGroup
			if version >= findCoordinatorBatch {
				req.CoordinatorKeys = []string{groupID}
			} else {
				req.CoordinatorKey = groupID
			}
			return req
		},
	})
	if err != nil {
		return kafka.Broker{}, err
	}
	resp := a.resp.(*kmsg.FindCoordinatorResponse)
	if a.version < findCoordinatorBatch {
		if err := a.failed(apiFindCoordinator, resp.ErrorCode); err != nil {
			return kafka.Broker{}, err
		}
		return c.coordinatedBy(a, brokerOf(resp.NodeID, resp.Host, resp.Port, nil)), nil
	}
	for i := range resp.Coordinators {
		found := &resp.Coordinators[i]
		if found.Key != groupID {
			continue
		}
		if err := a.failed(apiFindCoordinator, found.ErrorCode); err != nil {
			return kafka.Broker{}, err
		}
		return c.coordinatedBy(a, brokerOf(found.NodeID, found.Host, found.Port, nil)), nil
	}
	return kafka.Broker{}, a.fails(apiFindCoordinator, errNotMentioned)
}

// coordinatedBy notes where the coordinator's address came from.
func (c *metadataClient) coordinatedBy(a answer, coordinator kafka.Broker) kafka.Broker {
	c.network.origins.coordinates(a.broker, coordinator)
	return coordinator
}
