// Package archtest holds the import arrows of the repository and what a pure package may not do, as code that fails the
// build. It is used by its own tests only.
//
// Two questions are asked of every package:
//
//   - CheckImports: does it import only what its row of Table allows? Direct imports of non-test files count, those
//     behind build tags included, so that an arrow cannot hide in a file for another system or for the race detector.
//   - CheckPure: does a pure package keep to values? A pure machine gets the time as an argument and answers with
//     effects; it starts nothing, waits for nothing and looks at no clock. The check uses types, so a method of
//     time.Time is told from a method of the same name on something else.
//
// The tests plant violations through an overlay of the go command and expect to be told.
package archtest
