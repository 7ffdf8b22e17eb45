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

// leaveIPC has the children of this thread keep their System V shared memory
// apart, where that is permitted. It goes with the last of them. That of a
// PostgreSQL that was killed stays for ever otherwise, and after four thousand of
// them there is none left on the machine.
func leaveIPC() { _ = syscall.Unshare(syscall.CLONE_NEWIPC) }

// removerAttr keeps Ctrl-C from what has to outlive us.
func removerAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
