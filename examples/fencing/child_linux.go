package main

import (
	"os/exec"
	"syscall"
)

// endWithParent makes the kernel kill the command when this process ends, in whatever
// way: otherwise a stopped process would stay for ever.
func endWithParent(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
