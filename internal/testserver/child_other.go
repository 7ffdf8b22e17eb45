//go:build !linux

package testserver

import "syscall"

const diesWithParent = false

func childAttr() *syscall.SysProcAttr { return nil }

func leaveIPC() {}

func removerAttr() *syscall.SysProcAttr { return nil }
