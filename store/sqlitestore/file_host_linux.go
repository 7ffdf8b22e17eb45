package sqlitestore

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// bootClock is the store's clock: microseconds since the machine was booted, with
// suspensions. It is the same for all processes of one boot.
func bootClock() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("clock_gettime(CLOCK_BOOTTIME): " + err.Error()) // Linux has it since 2.6.39
	}
	return ts.Nano() / 1000
}

// bootID identifies the present boot of this machine.
func bootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}

// shiftedClock reports whether a time namespace shifts this process's CLOCK_BOOTTIME.
func shiftedClock() bool {
	offsets, err := os.ReadFile("/proc/self/timens_offsets")
	if err != nil {
		return false // a kernel without time namespaces
	}
	for line := range bytes.Lines(offsets) {
		f := bytes.Fields(line)
		if len(f) == 3 && string(f[0]) == "boottime" && (string(f[1]) != "0" || string(f[2]) != "0") {
			return true
		}
	}
	return false
}

// remoteFS is the name of dir's file system if other machines may use it or a program
// serves it, else "".
func remoteFS(dir string) (string, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return "", err
	}
	return remoteMagic[uint32(st.Type)], nil
}

var remoteMagic = map[uint32]string{
	0x00006969: "nfs",
	0x0000517b: "smb",
	0xff534d42: "cifs",
	0xfe534d42: "smb2",
	0x65735546: "fuse", // sshfs, s3fs, virtiofs, …
	0x01021997: "9p",
	0x00c36400: "ceph",
	0x5346414f: "afs",
	0x6b414653: "kafs",
	0x73757245: "coda",
	0x0000564c: "ncp",
	0x47504653: "gpfs",
	0x0bd00bd0: "lustre",
	0x01161970: "gfs2",
	0x7461636f: "ocfs2",
	0x20030528: "orangefs",
	0x786f4256: "vboxsf",
	0xbacbacbc: "vmhgfs",
	0x013661e0: "glusterfs",
	0x19830326: "beegfs",
	0x0000aad7: "panfs",
}

// socketPath is a path of the socket that fits into the 107 bytes of an address, for any
// depth of dir.
func socketPath(dir *os.File, name string) string {
	return "/proc/self/fd/" + strconv.Itoa(int(dir.Fd())) + "/" + name
}

// reach returns a path to the socket called name in dir; it does not follow a link of
// that name. The path is valid until done is called.
func reach(dir *os.File, name string) (at string, done func(), err error) {
	fd, _, err := pin(dir, name)
	if err != nil {
		return "", nil, err
	}
	return pinned(fd), func() { unix.Close(fd) }, nil
}

// pin opens the socket called name in dir, so that its path through the descriptor cannot
// change.
func pin(dir *os.File, name string) (fd int, st unix.Stat_t, err error) {
	if fd, err = unix.Openat(int(dir.Fd()), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err != nil {
		return fd, st, err
	}
	if err = unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		err = unix.ENOTSOCK
	}
	if err != nil {
		unix.Close(fd)
	}
	return fd, st, err
}

func pinned(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// shareSocket gives the users who may write the database access to the new socket called
// name in dir.
func shareSocket(dir *os.File, name string, db os.FileInfo) error {
	fd, st, err := pin(dir, name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if st.Nlink != 1 || int(st.Uid) != os.Geteuid() {
		return unix.EPERM // another file has replaced it
	}
	return unix.Chmod(pinned(fd), uint32(db.Mode().Perm()&0o666))
}

var localMagic = map[uint32]string{
	0x01021994: "tmpfs",
	0x858458f6: "tmpfs", // ramfs
	0x794c7630: "overlay",
}

// lookAround asks the system about a file. Values that it does not tell stay unknown.
func lookAround(path string) surroundings {
	p := surroundings{free: -1}
	var fs unix.Statfs_t
	if unix.Statfs(path, &fs) == nil {
		p.fs = localMagic[uint32(fs.Type)]
		p.free = int64(fs.Bavail) * int64(fs.Bsize)
	}
	var st unix.Stat_t
	if unix.Stat(path, &st) == nil {
		p.links = int(st.Nlink)
	}
	var boot, monotonic unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &monotonic) == nil && unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) == nil {
		p.slept = time.Duration(boot.Nano() - monotonic.Nano())
	}
	return p
}

// sendTo sends a datagram to the socket at a path, or fails at once.
func sendTo(at string, text []byte) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Sendto(fd, text, unix.MSG_NOSIGNAL, &unix.SockaddrUnix{Name: at})
}
