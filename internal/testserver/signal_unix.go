//go:build unix

package testserver

import (
	"os"
	"syscall"
)

// Freeze stops a process (SIGSTOP), and returns when the process stands still, which takes a while on a busy machine.
func Freeze(p *os.Process) error {
	err := p.Signal(syscall.SIGSTOP)
	if err == nil {
		awaitStopped(p.Pid)
	}
	return err
}

// Thaw lets a frozen process go on.
func Thaw(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
