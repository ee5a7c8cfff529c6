package rebalance

import (
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// LinkInput is one thing that happened to the coordinator link, given to [Link.Step].
//
//sumtype:decl
type LinkInput interface{ linkInput() }

// LinkStart opens the link. Legal in DOWN.
type LinkStart struct{}

// Found answers [Find] of the same Seq: Broker is the group's coordinator. An answer to an older one is ignored.
type Found struct {
	Seq    uint64
	Broker kafka.Broker
}

// NotFound answers [Find] of the same Seq: no coordinator could be had. An answer to an older one is ignored.
type NotFound struct {
	Seq uint64
	Err error
}

// Doubted says that Coordinator answered NOT_COORDINATOR or that the connection to it broke. It is ignored when Coordinator
// is not the current one any more.
type Doubted struct {
	Err         error
	Coordinator kafka.Broker
}

// Need asks for the coordinator on behalf of some work. It ends in exactly one of [Ready] and [Expired], unless it is
// canceled. ID is the asker's and not in use; Deadline is required.
type Need struct {
	ID       uint64
	Deadline time.Time
}

// Cancel takes a [Need] back. One that has ended is ignored.
type Cancel struct{ ID uint64 }

// LinkTick says that the time [Link.Deadline] named has come.
type LinkTick struct{}

// LinkStop closes the link; what waits expires with [ErrLinkDown].
type LinkStop struct{}

func (LinkStart) linkInput() {}
func (Found) linkInput()     {}
func (NotFound) linkInput()  {}
func (Doubted) linkInput()   {}
func (Need) linkInput()      {}
func (Cancel) linkInput()    {}
func (LinkTick) linkInput()  {}
func (LinkStop) linkInput()  {}

// LinkEffect is one thing the shell must do after [Link.Step], in the order given.
//
//sumtype:decl
type LinkEffect interface{ linkEffect() }

// Find: ask any broker for the group's coordinator; answer with [Found] or [NotFound] of the same Seq.
type Find struct{ Seq uint64 }

// Ready: Broker is the coordinator, do the work of the [Need] with that ID.
type Ready struct {
	ID     uint64
	Broker kafka.Broker
}

// Expired: the [Need] with that ID was not met in time. Err wraps [ErrNoCoordinator] and the last failure, or [ErrLinkDown].
type Expired struct {
	ID  uint64
	Err error
}

// LinkMoved reports a change of state, for logs and events.
type LinkMoved struct {
	From, To LinkState
	// Broker is the coordinator found (to STABLE) or doubted (from STABLE), else zero.
	Broker kafka.Broker
	// Err is why the coordinator was doubted, nil otherwise.
	Err error
}

func (Find) linkEffect()      {}
func (Ready) linkEffect()     {}
func (Expired) linkEffect()   {}
func (LinkMoved) linkEffect() {}
