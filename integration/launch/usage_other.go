//go:build !linux

package launch

import "errors"

// ProcessUsage is known on Linux only.
func ProcessUsage(int) (Usage, error) {
	return Usage{}, errors.New("the usage of another process is known on Linux only")
}
