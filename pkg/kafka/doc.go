// Package kafka holds the values of Troupe in Kafka's own words: records, topic partitions, generations, epochs and the
// protocol's error codes.
//
// It imports nothing of the project, so every other package may speak in its types.
//
// # Record lifetime
//
// A [Record] that a handler was given belongs to the handler, for ever: it may be kept and changed. Nothing is
// overwritten by default. Records come in slabs (one []Record for many records) whose keys, values and headers alias one
// buffer, so a record that is kept keeps its slab and that buffer alive and nothing else; [Record.Clone] makes a copy
// that keeps only itself alive.
package kafka
