package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/troupego/troupe/examples/internal/cluster"
)

// stepLimit is how long the consumer may take for what a check waits for.
const stepLimit = 30 * time.Second

// play is the script: it asks the HTTP API as a person would with curl, and looks whether the consumer did it.
type play struct {
	base    string
	events  *cluster.Cluster
	ledger  *ledger
	records int
	group   string

	failed, checks int
}

// check runs one part of the script and prints what it proved.
func (p *play) check(name string, run func() (proof string, err error)) {
	p.checks++
	proof, err := run()
	if err != nil {
		p.failed++
		fmt.Printf("%-7s FAILED: %v\n", name, err)
		return
	}
	fmt.Printf("%-7s %s\n", name, proof)
}

// call asks the API, and expects a status.
func (p *play) call(ctx context.Context, method, path string, want int) (string, error) {
	request, err := http.NewRequestWithContext(ctx, method, p.base+path, http.NoBody)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return "", err
	}
	if response.StatusCode != want {
		return "", fmt.Errorf("%s %s: status %d, want %d: %s", method, path, response.StatusCode, want, body)
	}
	return string(body), nil
}

// until waits for something to become true.
func (p *play) until(ctx context.Context, what string, done func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	for !done() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, context.Cause(ctx))
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

// handled waits until every record of all partitions between two ends was handled, so often at least.
func (p *play) handled(ctx context.Context, from, to map[int32]int64, times int) error {
	return p.until(ctx, "handling everything", func() bool {
		for partition, end := range to {
			if least, _ := p.ledger.times(partition, from[partition], end); least < times && from[partition] < end {
				return false
			}
		}
		return true
	})
}

// produce writes records and returns where the partitions ended before and after.
func (p *play) produce(ctx context.Context, record func(int) (string, []byte)) (before, after map[int32]int64, err error) {
	if before, err = p.events.EndOffsets(); err != nil {
		return nil, nil, err
	}
	if _, err = p.events.Produce(ctx, p.records, record); err != nil {
		return nil, nil, err
	}
	after, err = p.events.EndOffsets()
	return before, after, err
}

// run plays it all.
func (p *play) run(ctx context.Context) {
	start, old, err := p.produce(ctx, event)
	if err == nil {
		err = p.handled(ctx, start, old, 1)
	}
	p.check("flow", func() (string, error) { return fmt.Sprintf("%d events handled", p.records), err })
	time.Sleep(5 * time.Millisecond) // records have their time in milliseconds
	since := time.Now()
	p.check("pause", func() (string, error) { return p.pause(ctx) })
	p.check("seek", func() (string, error) { return p.seek(ctx, since, start, old) })
	p.check("skip", func() (string, error) { return p.skip(ctx) })
	p.check("refuse", func() (string, error) { return p.refuse(ctx) })
}

// pause: nothing of partition 0 is handled until it is resumed, and then all of it once.
func (p *play) pause(ctx context.Context) (string, error) {
	if _, err := p.call(ctx, http.MethodPost, "/pause?partition=0", http.StatusOK); err != nil {
		return "", err
	}
	before, after, err := p.produce(ctx, event)
	if err != nil {
		return "", err
	}
	paused := after[0] - before[0]
	others := map[int32]int64{}
	for partition, end := range after {
		if partition != 0 {
			others[partition] = end
		}
	}
	if err := p.handled(ctx, before, others, 1); err != nil {
		return "", err
	}
	if _, most := p.ledger.times(0, before[0], after[0]); most > 0 {
		return "", fmt.Errorf("partition 0 was paused, and a record of it was handled")
	}
	body, err := p.call(ctx, http.MethodGet, "/partitions", http.StatusOK)
	if err != nil {
		return "", err
	}
	var views []partitionView
	if err := json.Unmarshal([]byte(body), &views); err != nil || len(views) == 0 || views[0].Condition != "user_paused" {
		return "", fmt.Errorf("the pause does not show: %s (%w)", body, err)
	}
	if _, err := p.call(ctx, http.MethodPost, "/resume?partition=0", http.StatusOK); err != nil {
		return "", err
	}
	if err := p.handled(ctx, before, after, 1); err != nil {
		return "", err
	}
	if _, most := p.ledger.times(0, before[0], after[0]); most > 1 {
		return "", fmt.Errorf("a record of partition 0 was handled %d times", most)
	}
	return fmt.Sprintf("%d records of partition 0 waited, the others went on; each was handled once after the resume", paused), nil
}

// seek: what was written since a time is handled again, and nothing of what is older.
func (p *play) seek(ctx context.Context, since time.Time, start, old map[int32]int64) (string, error) {
	if _, err := p.call(ctx, http.MethodPost, "/seek?time="+since.UTC().Format(time.RFC3339Nano), http.StatusOK); err != nil {
		return "", err
	}
	ends, err := p.events.EndOffsets()
	if err != nil {
		return "", err
	}
	if err := p.handled(ctx, old, ends, 2); err != nil {
		return "", err
	}
	again := int64(0)
	for partition, end := range ends {
		again += end - old[partition]
		if _, most := p.ledger.times(partition, start[partition], old[partition]); most > 1 {
			return "", fmt.Errorf("an older record of partition %d was handled again", partition)
		}
	}
	return fmt.Sprintf("the %d records since %s were handled again, none that is older", again, since.Format(time.TimeOnly)), nil
}

// skip: one record that can never be handled holds its partition up, until it is skipped, with a reason.
func (p *play) skip(ctx context.Context) (string, error) {
	_, after, err := p.produce(ctx, func(number int) (string, []byte) {
		key, value := event(number)
		if number == p.records/2 {
			value = poison
		}
		return key, value
	})
	if err != nil {
		return "", err
	}
	var partition int32
	var offset int64
	if err := p.until(ctx, "failing", func() (failing bool) {
		for n := range after {
			if offset, failing = p.ledger.stuckAt(n); failing {
				partition = n
				return true
			}
		}
		return false
	}); err != nil {
		return "", err
	}
	path := fmt.Sprintf("/skip?partition=%d&offset=%d&reason=cannot+be+handled", partition, offset)
	if _, err := p.call(ctx, http.MethodPost, path, http.StatusOK); err != nil {
		return "", err
	}
	behind := map[int32]int64{partition: offset + 1}
	if err := p.handled(ctx, behind, map[int32]int64{partition: after[partition]}, 1); err != nil {
		return "", err
	}
	if least, _ := p.ledger.times(partition, offset, offset+1); least > 0 {
		return "", fmt.Errorf("the skipped record was handled")
	}
	if err := p.until(ctx, "committing", func() bool {
		_, lag, err := p.events.Consumed(p.group)
		return err == nil && lag == 0
	}); err != nil {
		return "", err
	}
	return fmt.Sprintf("record %d of partition %d held it up; skipped, the %d behind it were handled and everything is committed",
		offset, partition, after[partition]-offset-1), nil
}

// refuse: what cannot be done is said, with a status of its own.
func (p *play) refuse(ctx context.Context) (string, error) {
	for path, want := range map[string]int{
		"/seek?partition=99&offset=1":           http.StatusNotFound,
		"/pause?partition=99":                   http.StatusNotFound,
		"/seek?partition=0":                     http.StatusBadRequest,
		"/skip?partition=0&offset=0&reason=old": http.StatusUnprocessableEntity,
	} {
		if _, err := p.call(ctx, http.MethodPost, path, want); err != nil {
			return "", err
		}
	}
	return "a partition that is not owned, a seek to nowhere and the skip of a finished record were refused", nil
}
