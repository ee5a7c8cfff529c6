package actors

import "time"

// praiseAfter is how long the tree's own actors must have been well for their backoff to start over.
const praiseAfter = 30 * time.Second

// praise tells the supervisor, now and then, that the children that are there do their work: their next failure is a first
// one again. The budget over the window stays.
func (g *group) praise(now time.Time) {
	if now.Sub(g.praised) < praiseAfter {
		return
	}
	g.praised = now
	for _, key := range g.Keys() {
		if g.Lookup(key) != nil {
			g.Succeed(key, now)
		}
	}
}
