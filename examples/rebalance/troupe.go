package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/troupego/troupe/pkg/api"
)

// troupe is the members of the group, all in this process; each would do the same in one of its own.
type troupe struct {
	settings
	ledger     *ledger
	members    []*member
	rebalances int
}

type member struct {
	*api.Consumer
	name string
}

// comeAndGo has the members come one after the other, then each go and come again in turn.
func (t *troupe) comeAndGo(ctx context.Context) error {
	for i := range t.settings.members {
		if err := t.come(ctx, fmt.Sprint("member-", i+1)); err != nil {
			return err
		}
		t.pass(ctx)
	}
	t.say(t.members[0].name + " asks for a rebalance")
	if err := t.members[0].Rejoin(ctx, "to show that nobody notices"); err != nil {
		return err
	}
	t.pass(ctx)
	for range t.settings.members {
		leaving := t.members[0]
		if err := t.leave(leaving); err != nil {
			return err
		}
		t.pass(ctx)
		if err := t.come(ctx, leaving.name); err != nil {
			return err
		}
		t.pass(ctx)
	}
	return ctx.Err()
}

func (t *troupe) come(ctx context.Context, name string) error {
	consumer, err := api.Spawn(ctx, api.Config{
		Brokers: t.brokers, GroupID: t.group, ClientID: name,
		HeartbeatInterval: 500 * time.Millisecond, // members that join are noticed soon
	}, api.Handle(t.topic, t.ledger.handler(name)))
	if err != nil {
		return err
	}
	t.members = append(t.members, &member{consumer, name})
	t.say(name + " comes")
	return nil
}

func (t *troupe) leave(m *member) error {
	t.say(m.name + " goes")
	t.members = slices.DeleteFunc(t.members, func(other *member) bool { return other == m })
	t.rebalances = max(t.rebalances, int(m.Stats().Generation))
	return m.Close(context.Background())
}

func (t *troupe) closeAll() error {
	var errs []error
	for _, m := range slices.Clone(t.members) {
		errs = append(errs, t.leave(m))
	}
	return errors.Join(errs...)
}

// pass lets some time pass, and shows who owns what.
func (t *troupe) pass(ctx context.Context) {
	const looks = 4
	for range looks {
		select {
		case <-ctx.Done():
			return
		case <-time.After(t.every / looks):
		}
		t.show()
	}
}

// show prints one line: each partition's owner, and what of it is not simply running.
func (t *troupe) show() {
	if !t.table {
		return
	}
	owners := slices.Repeat([]string{"."}, t.partitions)
	for _, m := range t.members {
		for _, p := range m.Stats().Partitions {
			if n := int(p.TopicPartition.Partition); n < len(owners) {
				owners[n] = strings.TrimPrefix(m.name, "member-")
				if p.State != "ASSIGNED" {
					owners[n] += "(" + p.State + ")"
				}
			}
		}
	}
	fmt.Fprintf(os.Stderr, "%s  %s\n", time.Now().Format("15:04:05.000"), strings.Join(owners, " "))
}

func (t *troupe) say(what string) {
	if t.table {
		fmt.Fprintln(os.Stderr, what)
	}
}
