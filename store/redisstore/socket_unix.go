//go:build unix

package redisstore

import "syscall"

// quietSocket reports whether nothing can be read from a socket, not even its end.
// From one that is encrypted something may come that is none of the user's data.
func quietSocket(fd uintptr, encrypted bool) bool {
	var b [1]byte
	n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	switch err {
	case nil:
		return n > 0 && encrypted
	case syscall.EAGAIN, syscall.EINTR:
		return true
	}
	return false
}
