package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// output is the files that the job writes. Each line is appended in one write, so that several processes may share a file
// and none leaves half a line behind.
type output struct {
	out   *os.File
	trace *os.File // nil without one
}

func openOutput(out, trace string) (*output, error) {
	o := new(output)
	var err error
	if o.out, err = open(out); err != nil {
		return nil, err
	}
	if trace == "" {
		return o, nil
	}
	if o.trace, err = open(trace); err != nil {
		return nil, errors.Join(err, o.out.Close())
	}
	return o, nil
}

func open(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
}

// handled writes down that the record is finished.
func (o *output) handled(record *kafka.Record, epoch kafka.AssignmentEpoch) error {
	if _, err := fmt.Fprintf(o.out, "%d %d\n", record.Partition, record.Offset); err != nil {
		return err
	}
	return o.note("done", record, epoch)
}

// note writes a line of the trace: what happens to the record, under which ownership, and when.
func (o *output) note(what string, record *kafka.Record, epoch kafka.AssignmentEpoch) error {
	if o.trace == nil {
		return nil
	}
	_, err := fmt.Fprintf(o.trace, "%s %d %d %d %d\n", what, record.Partition, record.Offset, epoch, time.Now().UnixNano())
	return err
}

// Close gives the files back.
func (o *output) Close() error {
	if o.trace == nil {
		return o.out.Close()
	}
	return errors.Join(o.out.Close(), o.trace.Close())
}
