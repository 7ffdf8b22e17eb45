//go:build unix

package verify

import "syscall"

// apart puts a client into a process group of its own: Ctrl-C is for this process.
func apart() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
