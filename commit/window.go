package commit

import "fmt"

// Window bounds how many records of one partition are in transit, with hysteresis: it closes when MaxInTransit is
// reached and opens again only when fewer than ResumeBelow are left, so that it does not toggle with each record.
//
// Invariant: 0 <= ResumeBelow < MaxInTransit.
type Window struct {
	maxInTransit int
	resumeBelow  int
	paused       bool
}

// WindowError says that the two thresholds of a window do not fit together.
type WindowError struct {
	// MaxInTransit and ResumeBelow are the values given, in records.
	MaxInTransit, ResumeBelow int
}

// Error names both values and the bound.
func (e *WindowError) Error() string {
	return fmt.Sprintf("commit: MaxInTransit %d must be above ResumeBelow %d, which must not be negative",
		e.MaxInTransit, e.ResumeBelow)
}

// NewWindow returns an open window. maxInTransit, in records, is at least 1; resumeBelow is from 0 to maxInTransit - 1. A
// window with nothing in transit always opens, so with resumeBelow 0 it opens when all is finished. Otherwise the error
// is a *WindowError.
func NewWindow(maxInTransit, resumeBelow int) (*Window, error) {
	if resumeBelow < 0 || resumeBelow >= maxInTransit {
		return nil, &WindowError{MaxInTransit: maxInTransit, ResumeBelow: resumeBelow}
	}
	return &Window{maxInTransit: maxInTransit, resumeBelow: resumeBelow}, nil
}

// Room returns how many more records may be delivered: 0 while paused.
func (w *Window) Room(inTransit int) int {
	if w.paused {
		return 0
	}
	return max(0, w.maxInTransit-inTransit)
}

// Update tells how many records are in transit now. It returns whether the window is paused and whether that is new.
func (w *Window) Update(inTransit int) (paused, changed bool) {
	before := w.paused
	switch {
	case inTransit >= w.maxInTransit:
		w.paused = true
	case inTransit < w.resumeBelow || inTransit <= 0:
		w.paused = false
	}
	return w.paused, w.paused != before
}

// Paused reports whether the window is closed, as of the last Update.
func (w *Window) Paused() bool { return w.paused }

// MaxInTransit returns the upper threshold in records.
func (w *Window) MaxInTransit() int { return w.maxInTransit }

// ResumeBelow returns the lower threshold in records.
func (w *Window) ResumeBelow() int { return w.resumeBelow }
