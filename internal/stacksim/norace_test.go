//go:build !race

package stacksim

// defaultHistories is how many histories run where nothing else is said.
const defaultHistories = 200
