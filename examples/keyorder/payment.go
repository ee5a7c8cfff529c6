package main

import (
	"encoding/json"
	"math/rand/v2"
	"strconv"
)

// payment is one record's value. The record's key is the account, so payments of one account share a partition.
type payment struct {
	// Run tells the payments of this run from older ones on the same topic, Number them from each other.
	Run     string `json:"run"`
	Number  int    `json:"number"`
	Account int    `json:"account"`
	// Sequence counts the account's payments, from 1. Cents is what comes in, or goes out, and Balance what is there after it.
	Sequence int   `json:"sequence"`
	Cents    int64 `json:"cents"`
	Balance  int64 `json:"balance"`
}

// till is where the payments are made: it knows each account's true balance.
type till struct {
	run      string
	sequence []int
	balance  []int64
}

func newTill(s settings) *till {
	return &till{run: s.run, sequence: make([]int, s.accounts), balance: make([]int64, s.accounts)}
}

// payment makes one payment's record, of any account. It is called with rising numbers.
func (t *till) payment(number int) (key string, value []byte) {
	account := rand.IntN(len(t.balance))
	cents := rand.Int64N(20_000) - 10_000
	t.sequence[account]++
	t.balance[account] += cents
	value, err := json.Marshal(payment{
		Run: t.run, Number: number, Account: account, Sequence: t.sequence[account], Cents: cents, Balance: t.balance[account],
	})
	if err != nil {
		panic(err) // a payment has nothing that JSON cannot say
	}
	return "account-" + strconv.Itoa(account), value
}
