//go:build !unix

package main

import "errors"

// usage has no way to tell here.
func usage() (cpu float64, peak int64, err error) {
	return 0, 0, errors.New("CPU time is measured on Unix systems only")
}
