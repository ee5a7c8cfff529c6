// Package buffer decides what is fetched and what is held, in pure code: no I/O, clock, goroutine, lock or log.
//
//   - [Demand] turns the partitions that want data into fetches of one broker. It lives in that broker's fetcher actor,
//     which keeps no records.
//   - [Budget] hands out the member's bytes, first in, first out.
//   - [Surplus] holds what one partition received and has not delivered (KIP-41). It lives in the partition actor.
//   - [Stall] notices that a partition cannot be read on. It lives in the partition actor.
//   - [Lanes] schedules one partition's records for workers that run at once: in key order, or in no order.
package buffer
