package testserver

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A staller answers the fsync and fdatasync of the processes that it starts: at once, or
// when the disk is resumed. All other system calls are unchanged, so a process with a
// stalled disk still reads, answers and writes into the page cache.
//
// A seccomp filter makes the kernel ask the staller. Children of the filter's thread
// inherit it. It works for programs without a C library as well.
type staller struct {
	run chan func() // for that thread

	listener, over int // file descriptors

	mu      sync.Mutex
	stalled bool
	waiting []uint64 // unanswered calls
	closed  bool
}

// newStaller returns an error where the kernel does not permit it.
func newStaller() (*staller, error) {
	s := &staller{run: make(chan func())}
	var err error
	if s.over, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
		return nil, err
	}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		leaveIPC()
		fd, err := askAboutSyncs()
		s.listener = fd
		ready <- err
		if err != nil {
			return
		}
		for f := range s.run {
			f()
		}
	}()
	if err := <-ready; err != nil {
		_ = unix.Close(s.over) // nothing was written
		return nil, fmt.Errorf("stall disks: %w", err)
	}
	go s.serve()
	return s, nil
}

// askAboutSyncs makes the kernel ask before each fsync and fdatasync of this thread and
// its children. The questions come through fd.
func askAboutSyncs() (fd int, err error) {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return 0, err
	}
	const number = 0 // where seccomp_data has the number of the call
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: number},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_FSYNC, Jt: 1},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_FDATASYNC, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	r, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return 0, errno
	}
	return int(r), nil // it is closed on exec
}

// The two structures of linux/seccomp.h.
type (
	notification struct {
		id         uint64
		pid, flags uint32
		data       [64]byte
	}
	answer struct {
		id           uint64
		val          int64
		error, flags int32
	}
)

func (s *staller) serve() {
	defer unix.Close(s.listener)
	defer unix.Close(s.over)
	for {
		fds := []unix.PollFd{{Fd: int32(s.listener), Events: unix.POLLIN}, {Fd: int32(s.over), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		if fds[1].Revents != 0 {
			return
		}
		if fds[0].Revents&unix.POLLIN == 0 {
			continue
		}
		var n notification
		if s.ioctl(unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n)) != nil {
			continue // the process has ended, or was interrupted and asks again
		}
		s.mu.Lock()
		if s.stalled {
			s.waiting = append(s.waiting, n.id)
		} else {
			s.answer(n.id)
		}
		s.mu.Unlock()
	}
}

// answer lets a call return without an error. Nothing was written to the disk, but
// acknowledged changes survive a Kill in the page cache.
func (s *staller) answer(id uint64) {
	// It fails if the process has ended.
	_ = s.ioctl(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&answer{id: id}))
}

func (s *staller) ioctl(request uint, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s.listener), uintptr(request), uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

// start starts a process whose syncs the staller answers.
func (s *staller) start(cmd *exec.Cmd) error {
	started := make(chan error)
	s.run <- func() { started <- cmd.Start() }
	return <-started
}

// set stalls or resumes the disk.
func (s *staller) set(stalled bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stalled = stalled; stalled || s.closed {
		return
	}
	for _, id := range s.waiting {
		s.answer(id)
	}
	s.waiting = nil
}

// syncing returns the number of calls that wait for the disk.
func (s *staller) syncing() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiting)
}

// close must be called after all processes have ended.
func (s *staller) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	close(s.run)
	_, _ = unix.Write(s.over, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // it has room
}
