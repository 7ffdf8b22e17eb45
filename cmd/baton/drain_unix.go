//go:build unix

package main

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// drain takes what is in a pipe already, and reports whether a process can still write to
// it. A read that times out cannot tell that.
func drain(from *os.File, take func([]byte)) (open bool) {
	conn, err := from.SyscallConn()
	if err == nil {
		err = from.SetReadDeadline(time.Time{})
	}
	if err != nil {
		return true
	}
	buf := make([]byte, mostInPipe)
	n := 0
	for n < len(buf) {
		var m int
		err = os.ErrClosed // in case Read does not call
		_ = conn.Read(func(fd uintptr) bool {
			m, err = unix.Read(int(fd), buf[n:])
			return true // do not wait: the pipe may be empty
		})
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || m <= 0 {
			break
		}
		n += m
	}
	take(buf[:n])
	return n == len(buf) || err != nil
}
