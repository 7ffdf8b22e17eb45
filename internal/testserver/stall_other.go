//go:build !linux

package testserver

import (
	"errors"
	"os/exec"
)

// A staller needs Linux.
type staller struct{}

func newStaller() (*staller, error)    { return nil, errors.New("stall disks: that takes Linux") }
func (*staller) start(*exec.Cmd) error { return nil }
func (*staller) set(bool)              {}
func (*staller) syncing() int          { return 0 }
func (*staller) close()                {}
