//go:build race

package stacksim

// defaultHistories is how many histories run under the race detector, where one takes ten times as long.
const defaultHistories = 20
