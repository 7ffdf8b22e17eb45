//go:build unix

package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/batonhq/baton/internal/ownfile"
)

// maxPath is the longest path of a socket, in bytes, on the strictest system.
const maxPath = 103

// Listen makes a Unix socket at path. Only users who may write it by mode can connect. The
// socket has the mode from the beginning.
//
// A running agent keeps the file PATH.lock locked, so that no agent takes another's socket
// away. Listen refuses a path at which another agent or program listens, and replaces the
// socket of a dead one.
//
// Listen refuses a directory in which other users could put a socket, now or while the
// agent is down: clients would trust theirs. So it refuses /tmp, and accepts the user's
// own directory in /tmp.
//
// Closing the listener removes the socket. The lock file stays: if it was removed, two
// agents could lock one each.
func Listen(path string, mode fs.FileMode) (net.Listener, error) {
	// The net package would make an abstract socket, which has no mode and no directory.
	if path == "" || path[0] == '@' || path[0] == 0 {
		return nil, fmt.Errorf("agent: the socket %q would be abstract, and every user of this machine could connect: name a file, such as ./%s", path, strings.Trim(path, "\x00"))
	}
	if len(path) > maxPath {
		return nil, fmt.Errorf("agent: the path %q has %d bytes, and that of a socket at most %d: choose a shorter one", path, len(path), maxPath)
	}
	if err := checkDirectory(filepath.Dir(path)); err != nil {
		return nil, err
	}
	lock, err := lockFile(path + ".lock")
	if err != nil {
		return nil, err
	}
	l, err := listen(path, mode)
	if err != nil {
		_ = lock.Close()
		return nil, err
	}
	return &socket{UnixListener: l, lock: lock}, nil
}

// backlog is how many connections may wait for Accept. A kernel may allow fewer.
const backlog = 4096

// A socket is a listener with the lock on its path.
type socket struct {
	*net.UnixListener
	lock *os.File
	once sync.Once
}

// Close removes the socket, and then unlocks its path.
func (s *socket) Close() error {
	err := s.UnixListener.Close()
	s.once.Do(func() {
		_ = syscall.Flock(int(s.lock.Fd()), syscall.LOCK_UN) // a child that is just being started may have the file open, too
		_ = s.lock.Close()
	})
	return err
}

// checkDirectory refuses a directory that other users can write to or replace. In a sticky
// directory, such as /tmp, they cannot remove our files, but can take a name that is free
// for a moment. So a sticky directory may be on the way, but not have the socket in it.
func checkDirectory(dir string) error {
	given, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("agent: the directory of the socket: %w", err)
	}
	found, err := filepath.EvalSymlinks(given)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("agent: the directory of the socket: %q does not exist: create it", given)
	}
	if err != nil {
		return fmt.Errorf("agent: the directory of the socket: %w", err)
	}
	for at := given; at != found && at != filepath.Dir(at); at = filepath.Dir(at) { // symbolic links on the way
		info, err := os.Lstat(at)
		if err != nil {
			return fmt.Errorf("agent: the directory of the socket: %w", err)
		}
		if uid, ok := ownfile.Foreign(info); ok {
			return fmt.Errorf("agent: %q, on the way to the socket, belongs to user %d, who could put another one there: choose one of your own", at, uid)
		}
	}
	for at := found; ; at = filepath.Dir(at) {
		info, err := os.Stat(at)
		if err != nil {
			return fmt.Errorf("agent: the directory of the socket: %w", err)
		}
		uid, others := ownfile.Foreign(info)
		switch {
		case !info.IsDir():
			return fmt.Errorf("agent: %q is no directory", at)
		case others:
			return fmt.Errorf("agent: the directory %q belongs to user %d, who could put another socket there: choose one of your own", at, uid)
		case info.Mode()&0o022 != 0 && (at == found || info.Mode()&fs.ModeSticky == 0):
			return fmt.Errorf("agent: other users can write to the directory %q, and could put another socket there: chmod go-w, or choose one of your own", at)
		case at == filepath.Dir(at):
			return nil
		}
	}
}

// lockFile locks the file that says that an agent runs. The kernel unlocks it at any end
// of the process.
func lockFile(path string) (*os.File, error) {
	f, err := ownfile.Open(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("agent: the lock file of the socket: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return f, nil
	}
	_ = f.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, fmt.Errorf("agent: another agent or server lives at this socket: it has locked %q", path)
	}
	return nil, fmt.Errorf("agent: locking %q: %w", path, err)
}

// listen replaces the socket of a dead agent. The caller has locked the lock file.
func listen(path string, mode fs.FileMode) (*net.UnixListener, error) {
	if info, err := os.Lstat(path); err == nil {
		if info.Mode().Type() != fs.ModeSocket {
			return nil, fmt.Errorf("agent: there is a file %q already, and it is no socket", path)
		}
		conn, err := net.DialTimeout("unix", path, time.Second)
		if err == nil {
			_ = conn.Close()
			return nil, fmt.Errorf("agent: another program listens at %q", path)
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return nil, fmt.Errorf("agent: it cannot be known whether another program listens at %q: %w", path, err)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("agent: the socket of an agent that has died: %w", err)
		}
	}
	l, err := listenWithMode(path, mode)
	if err != nil {
		return nil, fmt.Errorf("agent: listening at %q: %w", path, err)
	}
	return l, nil
}

// listenWithMode sets the mode between bind and listen, before a client can connect. A
// umask would affect all files of the process.
func listenWithMode(path string, mode fs.FileMode) (*net.UnixListener, error) {
	syscall.ForkLock.RLock()
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close() // the listener has a copy
	if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}); err != nil {
		return nil, err
	}
	l, err := func() (net.Listener, error) {
		if err := os.Chmod(path, mode.Perm()); err != nil {
			return nil, err
		}
		if err := syscall.Listen(fd, backlog); err != nil {
			return nil, err
		}
		return net.FileListener(f)
	}()
	if err != nil {
		_ = os.Remove(path)
		return nil, err
	}
	unix := l.(*net.UnixListener)
	unix.SetUnlinkOnClose(true)
	return unix, nil
}
