//go:build unix

package testserver

import (
	"os"
	"syscall"
)

// freeze returns when the process stands still, which takes a while on a busy machine.
func freeze(p *os.Process) error {
	err := p.Signal(syscall.SIGSTOP)
	if err == nil {
		awaitStopped(p.Pid)
	}
	return err
}

func thaw(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
