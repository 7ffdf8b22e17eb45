//go:build unix

package testserver

import (
	"os"
	"syscall"
)

// Freeze stops a process (SIGSTOP) and returns when it stands still, which may take a
// while on a busy machine.
func Freeze(p *os.Process) error {
	err := p.Signal(syscall.SIGSTOP)
	if err == nil {
		awaitStopped(p.Pid)
	}
	return err
}

// Thaw resumes a frozen process.
func Thaw(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
