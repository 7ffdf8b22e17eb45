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

// Conn returns conn with system calls that Go's scheduler does not see. Connections other
// than TCP and Unix sockets are returned as they are.
//
// The scheduler normally sees each system call, because a call may take long. If the rest
// of the program is idle, that wakes the scheduler's monitor, which costs a tenth of the
// call. The system calls here never wait in the kernel, so the scheduler need not see
// them. The runtime's poller does the waiting, as usual.
func Conn(conn net.Conn) net.Conn {
	switch conn.(type) {
	case *net.TCPConn, *net.UnixConn:
	default: // TLS, for example: encryption costs more than the call
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

// transfer is one direction of a socket. Its function is kept: a new one for each call
// would cost as much as this package saves.
type transfer struct {
	mu   sync.Mutex
	once func(fd uintptr) bool // returns false if the call would wait
	b    []byte
	n    int
	err  error
}

func (s *socket) SyscallConn() (syscall.RawConn, error) { return s.raw, nil }

// CloseWrite is that of the connection, which the type net.Conn hides.
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

// run transfers b. Its errors read like those of package net.
func (s *socket) run(op string, t *transfer, wait func(func(uintptr) bool) error, b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b, t.n, t.err = b, 0, nil
	err := wait(t.once)
	t.b = nil
	if e, ok := err.(*net.OpError); ok { // the deadline has passed, or the connection is closed
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

// transmit makes one system call for b, which is not empty. The call does not wait, even
// on a blocking socket.
func transmit(call, fd uintptr, b []byte) (int, syscall.Errno) {
	for {
		n, _, errno := syscall.RawSyscall6(call, fd, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)),
			syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL, 0, 0)
		if errno != syscall.EINTR {
			return int(n), errno
		}
	}
}
