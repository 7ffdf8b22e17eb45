package verify

import "syscall"

// apart gives a client its own process group: Ctrl-C must reach only this process.
func apart() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}
