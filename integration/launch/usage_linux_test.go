package launch

import (
	"os"
	"testing"
	"time"
)

func TestUsageIsReadFromProc(t *testing.T) {
	status := "Name:\tjava (x)\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n"
	stat := "42 (java) (x)) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20"
	got, err := parseUsage(status, stat)
	if want := (Usage{RSS: 1 << 20, PeakRSS: 2 << 20, CPU: 2 * time.Second}); err != nil || got != want {
		t.Errorf("parseUsage = %+v, %v; want %+v", got, err, want)
	}
	if _, err := parseUsage(status, "42 (java) S 1"); err == nil {
		t.Error("no error for a short stat")
	}
	own, err := ProcessUsage(os.Getpid())
	if err != nil || own.RSS <= 0 || own.PeakRSS < own.RSS {
		t.Errorf("usage of this process: %+v, %v", own, err)
	}
	if _, err := ProcessUsage(1 << 30); err == nil {
		t.Error("no error for a process that does not exist")
	}
}
