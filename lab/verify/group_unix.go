//go:build unix

package verify

import "syscall"

// apart gives a client its own process group: Ctrl-C must reach only this process.
func apart() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
