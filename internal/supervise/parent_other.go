//go:build unix && !linux

package supervise

import "syscall"

// dieWithParent has no equivalent here: a command survives a supervisor that
// is killed.
func dieWithParent(attr *syscall.SysProcAttr) *syscall.SysProcAttr { return attr }

func adoptOrphans() {}
