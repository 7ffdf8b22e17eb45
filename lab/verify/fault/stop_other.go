//go:build !unix

package fault

import (
	"errors"
	"syscall"
)

// No process can be stopped on this system: Process.Signal fails with these.
const (
	Stop     = syscall.Signal(0x13)
	Continue = syscall.Signal(0x12)
)

// StopHere fails.
func StopHere() error { return errors.ErrUnsupported }
