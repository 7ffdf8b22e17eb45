//go:build unix && !linux

package supervise

import "syscall"

// dieWithParent does nothing here: a command survives a supervisor that is killed.
func dieWithParent(attr *syscall.SysProcAttr) *syscall.SysProcAttr { return attr }

func adoptOrphans() {}
