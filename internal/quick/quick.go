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

// Conn returns conn so that its system calls are not announced to Go's scheduler.
//
// The scheduler is told of a system call because the call may take long. Its monitor,
// which sleeps while the whole program waits, is woken for that: with one call at a time
// that happens with each, and takes a tenth of a call. What is done here never waits in
// the kernel, so the scheduler need not know. Waiting is done by the runtime's poller,
// as ever.
func Conn(conn net.Conn) net.Conn {
	switch conn.(type) {
	case *net.TCPConn, *net.UnixConn:
	default: // TLS, where enciphering takes longer
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

// transfer is one direction of a socket. Its parts are kept, because a new function for
// each call would cost what the call saves.
type transfer struct {
	mu   sync.Mutex
	once func(fd uintptr) bool // false: it would have to wait
	b    []byte
	n    int
	err  error
}

func (s *socket) SyscallConn() (syscall.RawConn, error) { return s.raw, nil }

// CloseWrite tells the other side that nothing more comes.
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

// run transfers b, and words errors as net does.
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
// wait, whatever the mode of the socket.
func transmit(call, fd uintptr, b []byte) (int, syscall.Errno) {
	for {
		n, _, errno := syscall.RawSyscall6(call, fd, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)),
			syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL, 0, 0)
		if errno != syscall.EINTR {
			return int(n), errno
		}
	}
}
