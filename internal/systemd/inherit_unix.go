//go:build unix

package systemd

import "syscall"

// closeOnExec keeps what systemd has passed on from children.
func closeOnExec(fd int) { syscall.CloseOnExec(fd) }
