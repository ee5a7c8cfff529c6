//go:build !unix

package launch

import (
	"context"
	"errors"
	"os"
	"os/exec"
)

func killGroup(process *os.Process) error { return process.Kill() }

func endsProcess(signal os.Signal) bool { return signal == os.Interrupt || signal == os.Kill }

func isolate(*exec.Cmd) {}

// lockFile has no portable form without a dependency; preparing the caches is refused rather than done unlocked.
func lockFile(context.Context, string) (func(), error) {
	return nil, errors.New("starting Kafka needs file locks, which this launcher has on Unix only; set TROUPE_KAFKA_BROKERS")
}

// terminate asks a node for a clean stop.
var terminate = os.Interrupt

var errNoFreeze = errors.New("freezing a process needs Unix")

// Freeze is not possible here.
func (n *Node) Freeze() error { return errNoFreeze }

// Thaw is not possible here.
func (n *Node) Thaw() error { return errNoFreeze }
