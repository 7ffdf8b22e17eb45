//go:build !linux

package testserver

import (
	"os"
	"syscall"
)

const diesWithParent = false

func childAttr() *syscall.SysProcAttr { return nil }

func leaveIPC() {}

func removerAttr() *syscall.SysProcAttr { return nil }

// childrenOf returns nothing: there is no /proc.
func childrenOf(int) []*os.Process { return nil }

func awaitStopped(int) {}
