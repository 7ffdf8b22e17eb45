//go:build linux || darwin

package sqlitestore

import (
	"os"

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
