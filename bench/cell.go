package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The orders that a consumer can keep.
const (
	orderPartition = "partition"
	orderKey       = "key"
	orderNone      = "unordered"
)

var orders = []string{orderPartition, orderKey, orderNone}

// cell is one question of the key order mode: so many records of so many keys in one partition, handled in an order by so
// many workers.
type cell struct {
	Order   string
	Keys    int
	Workers int
	Records int64
}

// The default cells' figures.
const (
	cellRecords    = 10_000
	bigCellRecords = 100_000
	manyKeys       = 1000
)

// allCells is what -cells all means.
func allCells() []cell {
	workers := []int{16, 64, 256}
	cells := []cell{{orderPartition, manyKeys, workers[0], cellRecords}}
	for _, keys := range []int{2, 10, 20, 100, manyKeys} {
		for _, w := range workers {
			cells = append(cells, cell{orderKey, keys, w, cellRecords})
		}
	}
	for _, w := range workers {
		cells = append(cells, cell{orderNone, manyKeys, w, cellRecords})
	}
	return append(cells, cell{orderKey, manyKeys, 100, bigCellRecords})
}

// parseCells reads a list of ORDER:KEYS:WORKERS[:RECORDS].
func parseCells(list string) ([]cell, error) {
	if list == "all" {
		return allCells(), nil
	}
	var cells []cell
	for spec := range strings.SplitSeq(list, ",") {
		fields := strings.Split(spec, ":")
		numbers := [3]int{2: cellRecords}
		good := slices.Contains(orders, fields[0]) && (len(fields) == 3 || len(fields) == 4)
		for i, field := range fields[1:] {
			if !good {
				break
			}
			n, err := strconv.Atoi(field)
			numbers[i], good = n, err == nil && n >= 1
		}
		if !good {
			return nil, fmt.Errorf("cell %q: want ORDER:KEYS:WORKERS[:RECORDS], with an order of %q", spec, orders)
		}
		cells = append(cells, cell{fields[0], numbers[0], numbers[1], int64(numbers[2])})
	}
	return cells, nil
}

// String says what is asked.
func (c cell) String() string {
	records := ""
	if c.Records != cellRecords {
		records = fmt.Sprintf(", %d records", c.Records)
	}
	switch c.Order {
	case orderPartition:
		return "partition order" + records
	case orderNone:
		return fmt.Sprintf("unordered, %d workers%s", c.Workers, records)
	}
	return fmt.Sprintf("%d keys, %d workers%s", c.Keys, c.Workers, records)
}

// topic is the topic a cell reads: one partition.
func (c cell) topic() topic {
	return topic{
		Name: fmt.Sprintf("bench-keys-%d-%d", c.Keys, c.Records), Partitions: 1, Records: c.Records, Size: 100, Codec: "none", Keys: c.Keys,
	}
}

// What a consumer may take longer than ideal: a part of it or a time, whichever is larger.
const (
	allowedPart    = 0.05
	allowedPartBig = 0.10
	allowedTime    = 0.020 // seconds
)

// allowance is how many seconds over the ideal are within the goal.
func (c cell) allowance(ideal float64) float64 {
	part := allowedPart
	if c.Records >= bigCellRecords {
		part = allowedPartBig
	}
	return max(part*ideal, allowedTime)
}

// longestDelay bounds what a handler sleeps in the key order mode.
const longestDelay = 5 * time.Millisecond

// delay is how long the handler of an offset sleeps: uniform from 0 to longestDelay, always the same. The mixing is that of
// splitmix64, and the Java peer has the same.
func delay(offset int64) time.Duration {
	x := uint64(offset+1) * 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	x ^= x >> 31
	return time.Duration(x % uint64(longestDelay+1))
}
