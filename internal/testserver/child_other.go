//go:build !linux

package testserver

import "syscall"

const diesWithParent = false

func childAttr() *syscall.SysProcAttr { return nil }

func removerAttr() *syscall.SysProcAttr { return nil }
