package testserver

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// diesWithParent says that a child ends when its parent does, even if that one
// is killed.
const diesWithParent = true

func childAttr() *syscall.SysProcAttr {
	// A group of its own: Ctrl-C is for the test, which then ends its
	// servers when it is done with them.
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

// leaveIPC has the children of this thread keep their System V shared memory
// apart, where that is permitted. It goes with the last of them. That of a
// PostgreSQL that was killed stays for ever otherwise, and after four thousand of
// them there is none left on the machine.
func leaveIPC() { _ = syscall.Unshare(syscall.CLONE_NEWIPC) }

// removerAttr keeps Ctrl-C from what has to outlive us.
func removerAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// childrenOf returns the processes that a process has started.
func childrenOf(pid int) (children []*os.Process) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is right
	for _, file := range stats {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		// The name, in parentheses, may contain anything.
		_, rest, _ := strings.Cut(string(text[strings.LastIndexByte(string(text), ')')+1:]), " ")
		var state string
		var parent int
		if _, err := fmt.Sscan(rest, &state, &parent); err != nil || parent != pid {
			continue
		}
		own, _ := strconv.Atoi(filepath.Base(filepath.Dir(file))) // it matched the pattern
		if p, err := os.FindProcess(own); err == nil {
			children = append(children, p)
		}
	}
	return children
}
