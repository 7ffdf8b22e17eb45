package sqlitestore

import (
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// bootClock is the store's clock: on this system CLOCK_MONOTONIC_RAW goes on while the
// machine sleeps and starts at the same time for all processes.
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
// a program serves it.
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

// socketPath is a name of the socket. One that is too long cannot be bound, and the
// store polls instead.
func socketPath(dir *os.File, name string) string { return filepath.Join(dir.Name(), name) }

// reach names the socket called name in dir.
func reach(dir *os.File, name string) (at string, done func(), err error) {
	var st unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return "", nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return "", nil, unix.ENOTSOCK
	}
	return socketPath(dir, name), func() {}, nil
}

// shareSocket lets all users who may write the database use the new socket called name in dir.
// No descriptor can keep hold of a socket here, so shareSocket does not do it in another
// user's directory, and the store polls instead.
func shareSocket(dir *os.File, name string, db os.FileInfo) error {
	info, err := dir.Stat()
	if err != nil {
		return err
	}
	if int(sysOf(info).Uid) != os.Geteuid() {
		return unix.EPERM
	}
	return unix.Fchmodat(int(dir.Fd()), name, uint32(db.Mode().Perm()&0o666), unix.AT_SYMLINK_NOFOLLOW)
}

func lookAround(string) surroundings { return surroundings{free: -1} }

// sendTo sends a datagram to the socket at a path, or fails at once.
func sendTo(at string, text []byte) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	unix.CloseOnExec(fd)
	if err := unix.SetNonblock(fd, true); err != nil {
		return err
	}
	return unix.Sendto(fd, text, 0, &unix.SockaddrUnix{Name: at})
}
