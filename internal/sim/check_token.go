package sim

import (
	"fmt"
	"slices"

	"github.com/troupego/troupe/internal/capability"
	"github.com/troupego/troupe/pkg/kafka"
)

// tokens checks every key that was ever made in a process, by its identity: each partition is under at most one usable one, a
// dead one stays dead, and none allows more than the state of its partitions does. It is called after all that could change it.
func (c *checker) tokens(g *groupShell) {
	holders := make([]capability.Holder, c.w.script.Partitions)
	for _, known := range g.tokens.keys {
		holder := known.key.Holder()
		switch {
		case known.dead && known.key.Valid():
			c.w.violate("TOKEN", fmt.Sprintf("a dead key came to life, held by %q", holder))
		case holder == "":
			known.dead = true
		}
		if !known.key.Valid() {
			continue
		}
		for _, tp := range known.key.Partitions() {
			part := tp.Partition
			if other := holders[part]; other != "" {
				c.w.violate("TOKEN", fmt.Sprintf("%s is under the keys of %q and %q", tp, other, holder))
			}
			holders[part] = holder
			c.allowed(g, known, int(part))
		}
	}
}

// allowed checks the rights that a usable key has over a partition.
func (c *checker) allowed(g *groupShell, known *knownKey, part int) {
	v, rights := g.parts[part], known.key.Rights()
	what := ""
	switch {
	case rights == capability.RightsGone:
	case v == nil:
		what = "gone"
	case v.lost:
		what = "lost"
	case v.epoch != known.epochs[part]:
		what = fmt.Sprintf("there again under epoch %d", v.epoch)
	case v.revoking && rights != capability.RightsRevoking:
		what = "REVOKING"
	}
	if what != "" {
		c.w.violate("TOKEN", fmt.Sprintf("%q has the token over %s (%s), which is %s", known.key.Holder(), tpOf(part), rights, what))
	}
}

// served checks that nobody overtakes who asked before for one of the same partitions.
func (c *checker) served(g *groupShell, u *tokenUser, key *capability.Key) {
	covers := key.Partitions()
	for _, other := range g.tokens.asked {
		if other.asked.How != capability.Wait || other.number > u.number {
			continue
		}
		if i := slices.IndexFunc(g.wants(other), func(tp kafka.TopicPartition) bool { return slices.Contains(covers, tp) }); i >= 0 {
			c.w.violate("TOKEN", fmt.Sprintf("%q was served before %q, who asked first for %s", u.holder, other.holder, g.wants(other)[i]))
		}
	}
}

// operates checks that a control call is carried out for who may: the holder of a usable key, or anybody where there is none.
func (c *checker) operates(g *groupShell, o *operation, parts []int) {
	for _, part := range parts {
		if o.key != nil {
			if !o.key.Valid() || !slices.Contains(o.key.Partitions(), tpOf(part)) || o.right&^o.key.Rights() != 0 {
				c.w.violate("TOKEN", fmt.Sprintf("%q operates on %s without authority", o.user.holder, tpOf(part)))
			}
			continue
		}
		for _, known := range g.tokens.keys {
			if known.key.Valid() && slices.Contains(known.key.Partitions(), tpOf(part)) {
				c.w.violate("TOKEN", fmt.Sprintf("somebody operates on %s, which %q has", tpOf(part), known.key.Holder()))
			}
		}
	}
}

// tokensSettled reports whether nobody waits for a token, and no callback runs.
func (p *process) tokensSettled() bool {
	return len(p.group.tokens.asked) == 0 && len(p.group.tokens.queue) == 0
}
