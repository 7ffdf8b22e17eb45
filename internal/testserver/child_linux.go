package testserver

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// diesWithParent reports whether a child ends with its parent, even if the parent is
// killed.
const diesWithParent = true

func childAttr() *syscall.SysProcAttr {
	// Its own process group: Ctrl-C is for the test, which ends its servers afterwards.
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

// leaveIPC gives the children of this thread a separate System V shared memory, where
// that is permitted. It is freed with the last of them. Otherwise the shared memory of a
// killed PostgreSQL stays for ever, and after four thousand of them the machine has none
// left.
func leaveIPC() { _ = syscall.Unshare(syscall.CLONE_NEWIPC) }

// removerAttr keeps Ctrl-C from a process that must outlive this one.
func removerAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// childrenOf returns the children of a process.
func childrenOf(pid int) (children []*os.Process) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is right
	for _, file := range stats {
		if _, parent, ok := readStat(file); !ok || parent != pid {
			continue
		}
		own, _ := strconv.Atoi(filepath.Base(filepath.Dir(file))) // it matched the pattern
		if p, err := os.FindProcess(own); err == nil {
			children = append(children, p)
		}
	}
	return children
}

// awaitStopped returns when all threads of a process stand still or have ended. A thread
// that waits for its disk may take long.
func awaitStopped(pid int) {
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		moves := false
		stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid)) // the pattern is right
		for _, file := range stats {
			state, _, ok := readStat(file)
			moves = moves || ok && !strings.ContainsAny(state, "TtZX")
		}
		if !moves {
			return
		}
	}
}

// readStat returns the state and the parent of a running process or thread.
func readStat(file string) (state string, parent int, ok bool) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", 0, false
	}
	// The name, in parentheses, may contain anything.
	rest := text[bytes.LastIndexByte(text, ')')+1:]
	_, err = fmt.Sscan(string(rest), &state, &parent)
	return state, parent, err == nil
}
