package testserver

import "syscall"

// diesWithParent says that a child ends when its parent does, even if that one
// is killed.
const diesWithParent = true

func childAttr() *syscall.SysProcAttr {
	// A group of its own: Ctrl-C is for the test, which then ends its
	// servers when it is done with them.
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

// removerAttr keeps Ctrl-C from what has to outlive us.
func removerAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
