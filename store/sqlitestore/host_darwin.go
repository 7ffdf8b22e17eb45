package sqlitestore

import (
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// bootClock is the store's clock: on this system CLOCK_MONOTONIC_RAW goes on
// while the machine sleeps and starts at no other time for another process.
func bootClock() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_RAW, &ts); err != nil {
		panic("clock_gettime(CLOCK_MONOTONIC_RAW): " + err.Error())
	}
	return ts.Nano() / 1000
}

// bootID names the present boot of this machine.
func bootID() (string, error) { return unix.Sysctl("kern.bootsessionuuid") }

func shiftedClock() bool { return false }

// remoteFS names the file system of dir if other machines may be using it or
// a program stands behind it.
func remoteFS(dir string) (string, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return "", err
	}
	name := unix.ByteSliceToString(st.Fstypename[:])
	if st.Flags&unix.MNT_LOCAL == 0 || strings.Contains(name, "fuse") {
		return name, nil
	}
	return "", nil
}

// socketPath is a name of the socket. One that is too long cannot be bound,
// and polling has to do.
func socketPath(dir *os.File, name string) string { return filepath.Join(dir.Name(), name) }

// sendTo sends a datagram to a socket in dir, or fails at once.
func sendTo(dir *os.File, name string, text []byte) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	unix.CloseOnExec(fd)
	if err := unix.SetNonblock(fd, true); err != nil {
		return err
	}
	return unix.Sendto(fd, text, 0, &unix.SockaddrUnix{Name: socketPath(dir, name)})
}
