//go:build !race

package wire

// poisonAlways leaves it to the configuration whether recycled memory is overwritten.
const poisonAlways = false
