package supervise

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// dieWithParent makes the kernel kill the command when this process ends, in whatever
// way. It does not reach processes that the command started, nor a command that changes
// its user (a set-user-ID file).
func dieWithParent(attr *syscall.SysProcAttr) *syscall.SysProcAttr {
	attr.Pdeathsig = syscall.SIGKILL
	return attr
}

// adoptOrphans makes orphans our children. They are then collected here even where
// process 1 does not do it: a zombie would keep its group alive.
func adoptOrphans() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }
