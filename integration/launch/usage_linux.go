package launch

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of CPU times in /proc; it is 10 ms on every architecture Go runs on.
const clockTick = 10 * time.Millisecond

// ProcessUsage reads what a process uses now. It works for any process of this machine, not only for nodes.
func ProcessUsage(pid int) (Usage, error) {
	usage, err := readUsage(pid)
	if err != nil {
		return Usage{}, fmt.Errorf("usage of process %d: %w", pid, err)
	}
	return usage, nil
}

func readUsage(pid int) (Usage, error) {
	dir := "/proc/" + strconv.Itoa(pid)
	status, err := os.ReadFile(dir + "/status")
	if err != nil {
		return Usage{}, err
	}
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return Usage{}, err
	}
	return parseUsage(string(status), string(stat))
}

// parseUsage reads the texts of /proc/PID/status and /proc/PID/stat.
func parseUsage(status, stat string) (Usage, error) {
	var usage Usage
	for line := range strings.Lines(status) {
		name, rest, _ := strings.Cut(line, ":")
		field := map[string]*int64{"VmRSS": &usage.RSS, "VmHWM": &usage.PeakRSS}[name]
		if field == nil {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		if err != nil {
			return Usage{}, fmt.Errorf("%s: %w", name, err)
		}
		*field = kib << 10
	}
	// After the name in parentheses, which may hold anything, come the fields from the third on; 14 and 15 are the
	// times in user and kernel mode.
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return Usage{}, errors.New("short stat")
	}
	for _, text := range fields[11:13] {
		ticks, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return Usage{}, fmt.Errorf("CPU time: %w", err)
		}
		usage.CPU += time.Duration(ticks) * clockTick
	}
	return usage, nil
}
