package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
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

// lastCPU returns the highest CPU that this process may run on: the lowest
// one usually serves the interrupts.
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

// pinProcess puts all threads of a process on one CPU, until undo is called.
func pinProcess(pid, cpu int) (undo func(), err error) {
	old := make(map[int]unix.CPUSet)
	undo = func() {
		for tid, set := range old {
			_ = unix.SchedSetaffinity(tid, &set) // the thread may be gone
		}
	}
	tasks, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "task"))
	if err != nil {
		return nil, fmt.Errorf("pin process %d: %w", pid, err)
	}
	var one unix.CPUSet
	one.Set(cpu)
	for _, task := range tasks {
		tid, err := strconv.Atoi(task.Name())
		if err != nil {
			continue
		}
		var was unix.CPUSet
		if err := unix.SchedGetaffinity(tid, &was); err != nil {
			continue // it has ended
		}
		if err := unix.SchedSetaffinity(tid, &one); err != nil {
			undo()
			return nil, fmt.Errorf("pin process %d to CPU %d: %w", pid, cpu, err)
		}
		old[tid] = was
	}
	return undo, nil
}

// startPinned starts cmd so that it and every thread that it will ever make
// run on one CPU.
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

// sharedMemory maps a file of size bytes that other processes can map too.
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
