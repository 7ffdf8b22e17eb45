package sqlitestore

import (
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// bootClock is the store's clock. On this system CLOCK_MONOTONIC_RAW counts while the
// machine sleeps and is the same for all processes.
func bootClock() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_RAW, &ts); err != nil {
		panic("clock_gettime(CLOCK_MONOTONIC_RAW): " + err.Error())
	}
	return ts.Nano() / 1000
}

// bootID identifies the present boot of this machine.
func bootID() (string, error) { return unix.Sysctl("kern.bootsessionuuid") }

func shiftedClock() bool { return false }

// remoteFS is the name of dir's file system if other machines may use it or a program
// serves it, else "".
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

// socketPath is the path of the socket. If it is too long it cannot be bound, and the
// store polls instead.
func socketPath(dir *os.File, name string) string { return filepath.Join(dir.Name(), name) }

// reach returns the path of the socket called name in dir.
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

// shareSocket gives the users who may write the database access to the new socket called
// name in dir. On this system no descriptor can pin a socket, so in another user's
// directory shareSocket fails, and the store polls instead.
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
