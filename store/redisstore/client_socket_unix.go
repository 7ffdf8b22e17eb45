//go:build unix

package redisstore

import "syscall"

// quietSocket reports whether nothing can be read from a socket, not even its end.
func quietSocket(fd uintptr) bool {
	var b [1]byte
	_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	return err == syscall.EAGAIN || err == syscall.EINTR
}
