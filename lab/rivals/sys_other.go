//go:build !linux

package main

import (
	"errors"
	"os/exec"
	"runtime"
	"time"
)

var errLinux = errors.New("this workload needs Linux")

var started = time.Now()

func monotonic() int64 { return int64(time.Since(started)) }

func lastCPU() (int, error)                    { return 0, errLinux }
func pinProcesses([]int, int) (func(), error)  { return nil, errLinux }
func withChildren(pid int) []int               { return []int{pid} }
func processCPU(int) (time.Duration, error)    { return 0, nil }
func startPinned(*exec.Cmd, int) error         { return errLinux }
func sharedMemory(string, int) ([]byte, error) { return nil, errLinux }
func unmap([]byte)                             {}
func cpuTime() time.Duration                   { return 0 }
func kernel() string                           { return runtime.GOOS }
