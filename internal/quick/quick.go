//go:build linux && (amd64 || arm64)

package quick

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"unsafe"
)

// Conn returns conn with system calls that Go's scheduler does not know of.
//
// The scheduler is told of a system call because the call may take long. If the whole
// program waits otherwise, this wakes the scheduler's monitor at each call, which takes a
// tenth of a call. These system calls never wait in the kernel, so the scheduler need not
// know of them. The runtime's poller does the waiting, as usual.
func Conn(conn net.Conn) net.Conn {
	switch conn.(type) {
	case *net.TCPConn, *net.UnixConn:
	default: // TLS: encryption takes longer than the call
		return conn
	}
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return conn
	}
	s := &socket{Conn: conn, raw: raw}
	s.in.once, s.out.once = s.receive, s.send
	return s
}

type socket struct {
	net.Conn
	raw     syscall.RawConn
	in, out transfer
}

// transfer is one direction of a socket. Its functions are kept: a new one for each call
// would cost as much as this package saves.
type transfer struct {
	mu   sync.Mutex
	once func(fd uintptr) bool // false: the call would wait
	b    []byte
	n    int
	err  error
}

func (s *socket) SyscallConn() (syscall.RawConn, error) { return s.raw, nil }

// CloseWrite ends the stream to the peer.
func (s *socket) CloseWrite() error { return s.Conn.(interface{ CloseWrite() error }).CloseWrite() }

func (s *socket) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	return s.run("read", &s.in, s.raw.Read, b)
}

func (s *socket) Write(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	return s.run("write", &s.out, s.raw.Write, b)
}

// run transfers b. Its errors have the words of package net.
func (s *socket) run(op string, t *transfer, wait func(func(uintptr) bool) error, b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b, t.n, t.err = b, 0, nil
	err := wait(t.once)
	t.b = nil
	if e, ok := err.(*net.OpError); ok { // a deadline has passed, or the connection is closed
		err = e.Err
	}
	if err == nil {
		err = t.err
	}
	if err != nil && err != io.EOF {
		err = &net.OpError{Op: op, Net: s.LocalAddr().Network(), Source: s.LocalAddr(), Addr: s.RemoteAddr(), Err: err}
	}
	return t.n, err
}

func (s *socket) receive(fd uintptr) bool {
	t := &s.in
	n, errno := transmit(syscall.SYS_RECVFROM, fd, t.b)
	switch errno {
	case 0:
		t.n = n
		if n == 0 {
			t.err = io.EOF
		}
	case syscall.EAGAIN:
		return false
	default:
		t.err = os.NewSyscallError("read", errno)
	}
	return true
}

func (s *socket) send(fd uintptr) bool {
	t := &s.out
	for t.n < len(t.b) {
		n, errno := transmit(syscall.SYS_SENDTO, fd, t.b[t.n:])
		switch errno {
		case 0:
			t.n += n
		case syscall.EAGAIN:
			return false
		default:
			t.err = os.NewSyscallError("write", errno)
			return true
		}
	}
	return true
}

// transmit makes one system call that moves bytes of b, which is not empty. It does not
// wait, even on a blocking socket.
func transmit(call, fd uintptr, b []byte) (int, syscall.Errno) {
	for {
		n, _, errno := syscall.RawSyscall6(call, fd, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)),
			syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL, 0, 0)
		if errno != syscall.EINTR {
			return int(n), errno
		}
	}
}
