package launch

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// ACL is one right of one user, from any host.
type ACL struct {
	User      string
	Type      kmsg.ACLResourceType
	Name      string // "*" means every resource of the type
	Prefixed  bool   // Name is only the beginning
	Operation kmsg.ACLOperation
}

// TopicACL is about a topic; "*" is every topic.
func TopicACL(user, topic string, operation kmsg.ACLOperation) ACL {
	return ACL{User: user, Type: kmsg.ACLResourceTypeTopic, Name: topic, Operation: operation}
}

// GroupACL is about a group; "*" is every group.
func GroupACL(user, group string, operation kmsg.ACLOperation) ACL {
	return ACL{User: user, Type: kmsg.ACLResourceTypeGroup, Name: group, Operation: operation}
}

// ConsumerACLs are what a member of a group needs for a topic.
func ConsumerACLs(user, group, topic string) []ACL {
	return []ACL{
		GroupACL(user, group, kmsg.ACLOperationRead),
		TopicACL(user, topic, kmsg.ACLOperationRead), // implies Describe
	}
}

// String says it in words.
func (a ACL) String() string {
	name := a.Name
	if a.Prefixed {
		name += "…"
	}
	return fmt.Sprintf("%s %s %s %s", a.User, a.Operation, a.Type, name)
}

func (a ACL) pattern() kmsg.ACLResourcePatternType {
	if a.Prefixed {
		return kmsg.ACLResourcePatternTypePrefixed
	}
	return kmsg.ACLResourcePatternTypeLiteral
}

const anyHost = "*"

func (a ACL) principal() string { return "User:" + a.User }

// Allow grants rights and returns when every node that can answer applies them.
func (c *Cluster) Allow(ctx context.Context, acls ...ACL) error {
	return c.addACLs(ctx, kmsg.ACLPermissionTypeAllow, acls)
}

// Deny takes rights away whatever Allow says, and returns when every node that can answer applies it. Remove ends it. To
// allow Read implies Describe, to deny it does not: a topic that is denied Read alone is still described.
func (c *Cluster) Deny(ctx context.Context, acls ...ACL) error {
	return c.addACLs(ctx, kmsg.ACLPermissionTypeDeny, acls)
}

// Remove takes back what Allow and Deny said, and returns when every node that can answer has forgotten it.
func (c *Cluster) Remove(ctx context.Context, acls ...ACL) error {
	request := kmsg.NewPtrDeleteACLsRequest()
	request.Version = versionACLs
	for _, acl := range acls {
		name, principal, host := acl.Name, acl.principal(), anyHost
		filter := kmsg.NewDeleteACLsRequestFilter()
		filter.ResourceType, filter.ResourceName, filter.ResourcePatternType = acl.Type, &name, acl.pattern()
		filter.Principal, filter.Host = &principal, &host
		filter.Operation, filter.PermissionType = acl.Operation, kmsg.ACLPermissionTypeAny
		request.Filters = append(request.Filters, filter)
	}
	return c.changeACLs(ctx, request, acls, kmsg.ACLPermissionTypeAny, false)
}

func (c *Cluster) addACLs(ctx context.Context, permission kmsg.ACLPermissionType, acls []ACL) error {
	request := kmsg.NewPtrCreateACLsRequest()
	request.Version = versionACLs
	for _, acl := range acls {
		creation := kmsg.NewCreateACLsRequestCreation()
		creation.ResourceType, creation.ResourceName, creation.ResourcePatternType = acl.Type, acl.Name, acl.pattern()
		creation.Principal, creation.Host = acl.principal(), anyHost
		creation.Operation, creation.PermissionType = acl.Operation, permission
		request.Creations = append(request.Creations, creation)
	}
	return c.changeACLs(ctx, request, acls, permission, true)
}

// changeACLs sends a change, which may be sent twice without harm, and waits until it is seen everywhere.
func (c *Cluster) changeACLs(ctx context.Context, request kmsg.Request, acls []ACL, permission kmsg.ACLPermissionType, present bool) error {
	if len(acls) == 0 {
		return nil
	}
	err := poll(ctx, func() error {
		answer, err := c.askAny(ctx, request)
		if err != nil {
			return err
		}
		return resultOfACLs(answer)
	})
	if err != nil {
		return fmt.Errorf("launch: change ACLs %v: %w", acls, err)
	}
	for _, acl := range acls {
		err := c.awaitEverywhere(ctx, describeACL(acl, permission), func(answer kmsg.Response) error {
			described := answer.(*kmsg.DescribeACLsResponse)
			if err := answered(described.ErrorCode, described.ErrorMessage); err != nil {
				return err
			}
			if (len(described.Resources) > 0) != present {
				return errors.New("not applied yet")
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("launch: await ACL %v: %w", acl, err)
		}
	}
	return nil
}

func resultOfACLs(answer kmsg.Response) error {
	var errs []error
	add := func(code int16, message *string) {
		if err := answered(code, message); err != nil {
			errs = append(errs, err)
		}
	}
	switch changed := answer.(type) {
	case *kmsg.CreateACLsResponse:
		for _, result := range changed.Results {
			add(result.ErrorCode, result.ErrorMessage)
		}
	case *kmsg.DeleteACLsResponse:
		for _, result := range changed.Results {
			add(result.ErrorCode, result.ErrorMessage)
		}
	}
	err := errors.Join(errs...)
	if len(errs) > 0 && !kerr.IsRetriable(errs[0]) {
		return finalError{err}
	}
	return err
}

func describeACL(acl ACL, permission kmsg.ACLPermissionType) kmsg.Request {
	name, principal, host := acl.Name, acl.principal(), anyHost
	request := kmsg.NewPtrDescribeACLsRequest()
	request.Version = versionACLs
	request.ResourceType, request.ResourceName, request.ResourcePatternType = acl.Type, &name, acl.pattern()
	request.Principal, request.Host = &principal, &host
	request.Operation, request.PermissionType = acl.Operation, permission
	return request
}
