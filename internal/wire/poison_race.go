//go:build race

package wire

// poisonAlways makes every pool overwrite what it gets back: whoever runs tests under the race detector looks for misuse.
const poisonAlways = true
