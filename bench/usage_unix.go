//go:build unix

package main

import (
	"runtime"
	"syscall"
)

// usage returns the CPU seconds of this process, user and system, and the most bytes of memory it had.
func usage() (cpu float64, peak int64, err error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, 0, err
	}
	unit := int64(1024)
	if runtime.GOOS == "darwin" || runtime.GOOS == "ios" {
		unit = 1
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9, int64(u.Maxrss) * unit, nil
}
