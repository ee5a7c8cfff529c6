package rebalance

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

func TestEndPositionsSayWhatTheyAre(t *testing.T) {
	for want, p := range map[string]EndPosition{
		"end": EndOfLog(), "offset:42": EndAtOffset(42), "timestamp:1000": EndAt(1000),
	} {
		if p.String() != want || p.Validate(StartPosition{}) != nil {
			t.Errorf("%s is called %s: %v", want, p, p.Validate(StartPosition{}))
		}
		if offset, ok := p.Offset(); ok != (want == "offset:42") || ok && offset != 42 {
			t.Errorf("%s: offset %d %t", p, offset, ok)
		}
	}
	if EndOfLog() != (EndPosition{}) {
		t.Error("the zero value is not the end of the log")
	}
}

func TestAnEndBeforeItsStartIsRefusedWhereItCanBeSeen(t *testing.T) {
	at := func(millis int64) StartPosition { return StartBy(ResetAt(millis)) }
	for name, c := range map[string]struct {
		start StartPosition
		end   EndPosition
		want  string // empty: it is right
	}{
		"offsets":                       {StartAtOffset(5), EndAtOffset(9), ""},
		"an empty range":                {StartAtOffset(5), EndAtOffset(5), ""},
		"offsets the wrong way":         {StartAtOffset(5), EndAtOffset(4), "an offset of at least 5, where the range begins"},
		"times":                         {at(1000), EndAt(2000), ""},
		"an empty time":                 {at(1000), EndAt(1000), ""},
		"times the wrong way":           {at(1000), EndAt(999), "a timestamp of at least 1000 ms, where the range begins"},
		"a negative offset":             {StartPosition{}, EndAtOffset(-1), "an offset of at least 0"},
		"a negative time":               {StartBy(ResetLatest), EndAt(-1), "a timestamp of at least 0 ms"},
		"after a negative offset":       {StartAtOffset(-3), EndAtOffset(0), ""},
		"from an offset to a time":      {StartAtOffset(5), EndAt(1), ""},
		"from a time to an offset":      {at(1000), EndAtOffset(3), ""},
		"from the end to an offset":     {StartBy(ResetLatest), EndAtOffset(3), ""},
		"from a while ago to a time":    {StartBy(ResetByDuration(time.Hour)), EndAt(3), ""},
		"from an offset to the end":     {StartAtOffset(1 << 40), EndOfLog(), ""},
		"from the beginning to a place": {StartPosition{}, EndAtOffset(0), ""},
	} {
		err := c.end.Validate(c.start)
		wrong, ok := errors.AsType[*EndPositionError](err)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want != "" && (!ok || wrong.Want != c.want || !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}

func TestWhereARangeEnds(t *testing.T) {
	const latest, local = TimestampLatest, TimestampEarliestLocal
	type qa struct{ question, answer int64 }
	for name, c := range map[string]struct {
		search *EndSearch
		talk   []qa
		want   int64
	}{
		"the end of the log":                      {EndOfLog().Search(), []qa{{latest, 20}}, 20},
		"an empty log":                            {EndOfLog().Search(), []qa{{latest, 0}}, 0},
		"an end that is not known yet":            {EndOfLog().Search(), []qa{{latest, kafka.NoOffset}, {latest, 7}}, 7},
		"an offset":                               {EndAtOffset(12).Search(), []qa{{latest, 20}}, 12},
		"an offset that is not there yet":         {EndAtOffset(500).Search(), []qa{{latest, 20}}, 20},
		"offset 0":                                {EndAtOffset(0).Search(), []qa{{latest, 20}}, 0},
		"a time":                                  {EndAt(1000).Search(), []qa{{latest, 20}, {1000, 8}}, 8},
		"a time that nothing is as young as":      {EndAt(1000).Search(), []qa{{latest, 20}, {1000, kafka.NoOffset}}, 20},
		"a time that was reached meanwhile":       {EndAt(1000).Search(), []qa{{latest, 20}, {1000, 23}}, 20},
		"time 0":                                  {EndAt(0).Search(), []qa{{latest, 20}, {0, 3}}, 3},
		"again: the log lost its end":             {SearchAgain(20, 12, 12), []qa{{latest, 12}}, 12},
		"again: and has got new records":          {SearchAgain(20, 12, 12), []qa{{latest, 15}}, 15},
		"again: a leader that does not know all":  {SearchAgain(20, 12, 12), []qa{{latest, 20}}, 20},
		"again: an end that fell after the fetch": {SearchAgain(20, 12, 20), []qa{{latest, 14}}, 14},
		"again: nothing is left":                  {SearchAgain(20, 12, 20), []qa{{latest, 25}, {local, 3}}, 12},
		"again: and the log begins there":         {SearchAgain(20, 12, 31), []qa{{latest, 31}, {local, 12}}, 12},
		"again: not a record in the whole log":    {SearchAgain(20, 12, 20), []qa{{latest, 20}, {local, kafka.NoOffset}}, 12},
		"again: it lies in a remote tier":         {SearchAgain(20, 12, 20), []qa{{latest, 25}, {local, 13}}, 20},
	} {
		for i, step := range c.talk {
			if asked := c.search.Timestamp(); asked != step.question {
				t.Errorf("%s: question %d is for %d, want %d", name, i, asked, step.question)
			}
			end, done := c.search.Answered(step.answer)
			if done != (i == len(c.talk)-1) || done && end != c.want {
				t.Errorf("%s: after answer %d the end is %d (%t), want %d", name, i, end, done, c.want)
			}
		}
	}
}
