//go:build unix

package fault

import (
	"os"
	"syscall"
)

// The signals that stop a process, and let it continue.
const (
	Stop     = syscall.SIGSTOP
	Continue = syscall.SIGCONT
)

// StopHere stops this process until it gets Continue.
func StopHere() error { return syscall.Kill(os.Getpid(), Stop) }
