package scale

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func thisMachine() machine {
	m := machine{CPUs: runtime.NumCPU(), Go: strings.TrimPrefix(runtime.Version(), "go"), LoadBefore: loadAverage()}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	text, _ := os.ReadFile("/proc/cpuinfo") // without it the name is empty
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			m.CPU = strings.Join(strings.Fields(value), " ")
		}
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		m.MemoryGiB = float64(info.Totalram) * float64(info.Unit) / (1 << 30)
	}
	return m
}

// loadAverage is the mean number of runnable processes in the last minute.
func loadAverage() float64 {
	text, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(text), " ")
	v, _ := strconv.ParseFloat(first, 64)
	return v
}

// withChildren returns processes and their children.
func withChildren(pids []int) (all []int) {
	for _, pid := range pids {
		all = append(all, pid)
		files, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children") // the pattern is right
		for _, file := range files {
			text, _ := os.ReadFile(file) // the thread may have ended
			for field := range strings.FieldsSeq(string(text)) {
				if child, err := strconv.Atoi(field); err == nil {
					all = append(all, child)
				}
			}
		}
	}
	return all
}

// processCPU is the CPU time of processes and their children, including children that have
// ended.
func processCPU(pids []int) (sum time.Duration) {
	for _, pid := range withChildren(pids) {
		var t unix.Timespec
		const scheduled = 2 // as clock_getcpuclockid(3) has it
		if unix.ClockGettime(int32(^uint32(pid)<<3|scheduled), &t) == nil {
			sum += time.Duration(t.Nano())
		}
	}
	for _, pid := range pids {
		text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat") // it may have ended
		_, rest, _ := strings.Cut(string(text), ") ")
		if fields := strings.Fields(rest); len(fields) > 14 {
			for _, field := range fields[13:15] { // of ended children, in user and in system mode
				ticks, _ := strconv.Atoi(field)
				sum += time.Duration(ticks) * (time.Second / 100)
			}
		}
	}
	return sum
}

// processMemory is the memory of processes and their children. Shared memory counts once.
func processMemory(pids []int) (bytes float64) {
	for _, pid := range withChildren(pids) {
		text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/smaps_rollup") // it may have ended
		if fields := strings.Fields(textAfterSpaces(string(text), "Pss:")); len(fields) > 0 {
			if kib, err := strconv.ParseFloat(fields[0], 64); err == nil {
				bytes += kib * 1024
			}
		}
	}
	return bytes
}

func textAfterSpaces(text, label string) string {
	_, rest, _ := strings.Cut(text, "\n"+label)
	line, _, _ := strings.Cut(rest, "\n")
	return line
}
