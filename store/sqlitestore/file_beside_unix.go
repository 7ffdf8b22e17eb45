//go:build linux || darwin

package sqlitestore

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/batonhq/baton/internal/shellword"
)

// maxLinks is the greatest number of symbolic links in a path, as on Linux.
const maxLinks = 40

func sysOf(info os.FileInfo) *syscall.Stat_t { return info.Sys().(*syscall.Stat_t) }

// checkRoot refuses, for root, a path through a directory or a symbolic link of another
// user, and another user's file. The owner of a directory can put a link there at any
// moment, and lead root to another file. The owner of / counts as root: in a user
// namespace, / may belong to a user that the namespace does not know.
func checkRoot(path string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	var root uint32
	at, rest := "/", strings.Split(path, "/")
	for links := 0; len(rest) > 0; {
		here := filepath.Join(at, rest[0])
		rest = rest[1:]
		info, err := os.Lstat(here)
		if err != nil {
			return nil // opening it will tell why, or make it
		}
		by := sysOf(info).Uid
		if here == "/" {
			root = by
		}
		if by != 0 && by != root {
			id := strconv.Itoa(int(by))
			name := "#" + id
			if u, err := user.LookupId(id); err == nil {
				name = u.Username
			}
			return fmt.Errorf("%s belongs to user %s, and root opens only its own: run this as that user, sudo -u %s", here, name, shellword.Quote(name))
		}
		if info.Mode()&os.ModeSymlink == 0 {
			at = here
			continue
		}
		target, err := os.Readlink(here)
		if links++; err != nil || links > maxLinks {
			return nil
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return nil
}

// mayWrite reports whether a file's owner may write the database db, and so may change
// its locks anyway.
func mayWrite(db os.FileInfo, uid, gid uint32) bool {
	owner := sysOf(db)
	return uid == 0 || uid == owner.Uid || int(uid) == os.Geteuid() ||
		owner.Mode&0o002 != 0 || owner.Mode&0o020 != 0 && gid == owner.Gid
}

// openBeside opens the directory beside the database, and makes it if it is missing.
func openBeside(path string, db os.FileInfo) (*os.File, error) {
	full := path + "-wake"
	err := os.Mkdir(full, 0o700)
	if err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	made := err == nil
	f, err := os.OpenFile(full, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		return nil, &FileError{Path: path, Problem: ErrForeign, Err: fmt.Errorf("%s is not a directory", full)}
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	if st := sysOf(info); !mayWrite(db, st.Uid, st.Gid) {
		f.Close()
		return nil, &FileError{Path: path, Problem: ErrForeign, Err: fmt.Errorf("%s belongs to user %d", full, st.Uid)}
	}
	if !made {
		return f, nil
	}
	// Only an empty one: another directory may have replaced it.
	if _, err := f.Readdirnames(1); err == io.EOF {
		mode := db.Mode().Perm()
		f.Chmod(mode | (mode&0o444)>>2) // despite the umask
	}
	_, err = f.Seek(0, io.SeekStart)
	return f, err
}

// openLock opens a file for flock, and makes it if it is missing.
func openLock(dir *os.File, name string, db os.FileInfo) (*os.File, error) {
	full, mode := filepath.Join(dir.Name(), name), db.Mode().Perm()&0o666
	const flags = unix.O_RDWR | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK
	fd, err := unix.Openat(int(dir.Fd()), name, flags|unix.O_CREAT|unix.O_EXCL, uint32(mode))
	if err == nil {
		f := os.NewFile(uintptr(fd), full)
		f.Chmod(mode) // despite the umask
		return f, nil
	}
	if err == unix.EEXIST {
		fd, err = unix.Openat(int(dir.Fd()), name, flags, 0)
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: full, Err: err}
	}
	f := os.NewFile(uintptr(fd), full)
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		f.Close()
		return nil, &os.PathError{Op: "open", Path: full, Err: errors.New("it is not a regular file")}
	}
	return f, nil
}

// checkLog refuses a log, to which SQLite writes, that is a link, or whose owner may not
// write the database.
func checkLog(path string, db os.FileInfo) error {
	for _, ending := range []string{"-wal", "-shm", "-journal"} {
		info, err := os.Lstat(path + ending)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if st := sysOf(info); !info.Mode().IsRegular() || !mayWrite(db, st.Uid, st.Gid) {
			return &FileError{Path: path, Problem: ErrForeign, Err: fmt.Errorf("%s is not a file of a user who may write the database", path+ending)}
		}
	}
	return nil
}

func removeFrom(dir *os.File, name string) { unix.Unlinkat(int(dir.Fd()), name, 0) }
