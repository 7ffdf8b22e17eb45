//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"
)

const canStop = true

// stopHere stops this whole process until it gets SIGCONT.
func stopHere() error {
	again := make(chan os.Signal, 1)
	signal.Notify(again, syscall.SIGCONT)
	defer signal.Stop(again)
	if err := syscall.Kill(os.Getpid(), syscall.SIGSTOP); err != nil {
		return err
	}
	<-again
	return nil
}

func goOn(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
