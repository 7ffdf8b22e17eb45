package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// monotonic reads a clock that all processes of the machine share.
func monotonic() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // every Linux has it
	}
	return t.Nano()
}

// lastCPU returns the highest CPU that this process may run on: the lowest one usually
// serves the interrupts.
func lastCPU() (int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return 0, fmt.Errorf("read the CPU affinity: %w", err)
	}
	last := -1
	for cpu := range 8 * int(len(set)) * 8 {
		if set.IsSet(cpu) {
			last = cpu
		}
	}
	if last < 0 {
		return 0, fmt.Errorf("no CPU in the affinity mask")
	}
	return last, nil
}

// withChildren returns a process and its children.
func withChildren(pid int) []int {
	all := []int{pid}
	for _, file := range threadFiles(pid, "children") {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		for _, field := range strings.Fields(string(text)) {
			if child, err := strconv.Atoi(field); err == nil {
				all = append(all, child)
			}
		}
	}
	return all
}

func threadFiles(pid int, name string) []string {
	files, _ := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task", "*", name)) // the pattern is right
	return files
}

// processCPU is how much CPU time the living and the ended threads of a process have
// used.
func processCPU(pid int) (time.Duration, error) {
	var t unix.Timespec
	const scheduled = 2                                 // as clock_getcpuclockid(3) has it
	clock := int32(^uint32(pid)<<3 | uint32(scheduled)) // of a process
	if err := unix.ClockGettime(clock, &t); err != nil {
		return 0, err
	}
	return time.Duration(t.Nano()), nil
}

// pinProcesses puts all threads of processes, and of their present and future children,
// on one CPU, until undo is called.
func pinProcesses(pids []int, cpu int) (undo func(), err error) {
	var one unix.CPUSet
	one.Set(cpu)
	masks := make(map[int]unix.CPUSet)
	undo = func() {
		for pid, mask := range masks {
			_ = setAffinity(pid, &mask) // it may be gone
		}
	}
	for _, pid := range pids {
		var was unix.CPUSet
		if err := unix.SchedGetaffinity(pid, &was); err != nil {
			undo()
			return nil, fmt.Errorf("pin process %d: %w", pid, err)
		}
		masks[pid] = was
		if err := setAffinity(pid, &one); err != nil {
			undo()
			return nil, fmt.Errorf("pin process %d to CPU %d: %w", pid, cpu, err)
		}
	}
	return undo, nil
}

// setAffinity sets the CPUs of all threads of a process and of its children. A thread
// or child inherits them from the thread that makes it: one that was made during the
// first round is found in the second.
func setAffinity(pid int, mask *unix.CPUSet) (err error) {
	for range 2 {
		for _, p := range withChildren(pid) {
			for _, file := range threadFiles(p, "stat") {
				tid, e := strconv.Atoi(filepath.Base(filepath.Dir(file)))
				if e != nil {
					continue
				}
				if e := unix.SchedSetaffinity(tid, mask); e != nil && e != unix.ESRCH {
					err = e
				}
			}
		}
	}
	return err
}

// startPinned starts cmd so that it and all its threads run on one CPU.
func startPinned(cmd *exec.Cmd, cpu int) error {
	// A child inherits the mask of the thread that forks.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var was, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &was); err != nil {
		return fmt.Errorf("read the CPU affinity: %w", err)
	}
	one.Set(cpu)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return fmt.Errorf("pin to CPU %d: %w", cpu, err)
	}
	defer func() { _ = unix.SchedSetaffinity(0, &was) }() // it was legal before
	return cmd.Start()
}

// sharedMemory maps a file of size bytes that other processes can map, too.
func sharedMemory(path string, size int) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Truncate(int64(size)); err != nil {
		return nil, err
	}
	return unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

func unmap(b []byte) { _ = unix.Munmap(b) } // the process ends soon in any case

// cpuTime is how much CPU this process has used.
func cpuTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "Linux"
	}
	return "Linux " + unix.ByteSliceToString(u.Release[:])
}
