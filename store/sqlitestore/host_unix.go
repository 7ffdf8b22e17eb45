//go:build linux || darwin

package sqlitestore

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// flock waits for an exclusive lock on the open file f.
func flock(f *os.File) error {
	for {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != unix.EINTR {
			return err
		}
	}
}

func funlock(f *os.File) { unix.Flock(int(f.Fd()), unix.LOCK_UN) }

// giveTo makes a file that root created in somebody's directory theirs, as
// SQLite does with its own.
func giveTo(path string, owner os.FileInfo) {
	if st, ok := owner.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
		os.Lchown(path, int(st.Uid), int(st.Gid))
	}
}
