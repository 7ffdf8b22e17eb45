//go:build linux || darwin

package sqlitestore

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The owner of the directory of the database may put anything into it, at any moment.
// That must not lead root elsewhere, and must not make root give away what it leads to.
// So what is beside the database is opened from the descriptor of its directory
// down, never through a symbolic link, and its mode and owner are set by its
// descriptor, only where this process has just made it.

// maxLinks is how many symbolic links a path may go through, as on Linux.
const maxLinks = 40

func sysOf(info os.FileInfo) *syscall.Stat_t { return info.Sys().(*syscall.Stat_t) }

// checkLinks refuses, for root, a path that goes through a symbolic link of a
// user to whom the file does not belong.
func checkLinks(path string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	var owner uint32 // of a file that is yet to be made, too
	if info, err := os.Stat(path); err == nil {
		owner = sysOf(info).Uid
	}
	at, rest := "/", strings.Split(path, "/")
	for links := 0; len(rest) > 0; {
		next := rest[0]
		rest = rest[1:]
		here := filepath.Join(at, next)
		info, err := os.Lstat(here)
		if err != nil {
			return nil // opening it will tell why
		}
		if info.Mode()&os.ModeSymlink == 0 {
			at = here
			continue
		}
		if by := sysOf(info).Uid; by != 0 && by != owner {
			return fmt.Errorf("%s is a link of user %d, to what is not theirs", here, by)
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

// mayWrite reports whether a file of uid and gid belongs to a user who may write the
// database db, and so may change its locks at will.
func mayWrite(db *syscall.Stat_t, uid, gid uint32) bool {
	return uid == 0 || uid == db.Uid || int(uid) == os.Geteuid() ||
		db.Mode&0o002 != 0 || db.Mode&0o020 != 0 && gid == db.Gid
}

// foreignDir reports whether root works on another user's database in a directory that
// is not root's.
func foreignDir(path string, db os.FileInfo) bool {
	dir, err := os.Stat(filepath.Dir(path))
	return os.Geteuid() == 0 && sysOf(db).Uid != 0 && err == nil && sysOf(dir).Uid != 0
}

// openBeside opens the directory beside the database, and makes it if needed.
func openBeside(path string, db os.FileInfo) (*os.File, error) {
	owner, full := sysOf(db), path+"-wake"
	bad := func(op string, err error) error { return &os.PathError{Op: op, Path: full, Err: err} }
	parent, err := unix.Open(filepath.Dir(path), openSearch|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, bad("open the directory of", err)
	}
	defer unix.Close(parent)
	var st unix.Stat_t
	if err := unix.Fstatat(parent, filepath.Base(path), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, bad("look beside", err)
	}
	if uint64(st.Dev) != uint64(owner.Dev) || st.Ino != owner.Ino {
		return nil, &FileError{Path: path, Problem: ErrReplaced}
	}

	name := filepath.Base(full)
	err = unix.Mkdirat(parent, name, 0o700)
	if err != nil && err != unix.EEXIST {
		return nil, bad("mkdir", err)
	}
	made := err == nil
	fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == unix.ELOOP || err == unix.ENOTDIR {
		return nil, &FileError{Path: path, Problem: ErrForeign, Err: bad("open", errors.New("it is not a directory"))}
	}
	if err != nil {
		return nil, bad("open", err)
	}
	f := os.NewFile(uintptr(fd), full)
	if err := unix.Fstat(fd, &st); err != nil {
		f.Close()
		return nil, bad("stat", err)
	}
	if !mayWrite(owner, st.Uid, st.Gid) {
		f.Close()
		return nil, &FileError{Path: path, Problem: ErrForeign, Err: fmt.Errorf("%s belongs to user %d", full, st.Uid)}
	}
	if !made {
		return f, nil
	}
	// Only an empty one: if it is not the one that was made, there is nothing in it to
	// give away.
	if _, err := f.Readdirnames(1); err == io.EOF {
		mode := db.Mode().Perm()
		giveTo(f, db)
		f.Chmod(mode | (mode&0o444)>>2) // whatever the umask is
	}
	_, err = f.Seek(0, io.SeekStart)
	return f, err
}

// openLock opens a file to lock, and makes it if needed.
func openLock(dir *os.File, name string, db os.FileInfo) (*os.File, error) {
	full, mode := filepath.Join(dir.Name(), name), db.Mode().Perm()&0o666
	const flags = unix.O_RDWR | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK
	fd, err := unix.Openat(int(dir.Fd()), name, flags|unix.O_CREAT|unix.O_EXCL, uint32(mode))
	if err == nil {
		f := os.NewFile(uintptr(fd), full)
		giveTo(f, db)
		f.Chmod(mode) // whatever the umask is
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

// checkLog refuses, for root, a log of another user's database that SQLite would give
// to that user though it is not theirs. It is called behind the turnstile: SQLite makes
// the log as root's before it gives it away.
func checkLog(path string, db os.FileInfo) error {
	owner := sysOf(db)
	if os.Geteuid() != 0 || owner.Uid == 0 {
		return nil
	}
	for _, ending := range []string{"-wal", "-shm", "-journal"} {
		info, err := os.Lstat(path + ending)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if st := sysOf(info); !info.Mode().IsRegular() || st.Uid != owner.Uid || st.Nlink != 1 {
			return &FileError{Path: path, Problem: ErrForeign, Err: fmt.Errorf("%s is not a file of user %d alone", path+ending, owner.Uid)}
		}
	}
	return nil
}

// giveTo gives what root has just made for another user's database to that user, as
// SQLite does with its own files.
func giveTo(f *os.File, db os.FileInfo) {
	if os.Geteuid() == 0 {
		f.Chown(int(sysOf(db).Uid), int(sysOf(db).Gid))
	}
}

// removeFrom removes a file of dir.
func removeFrom(dir *os.File, name string) { unix.Unlinkat(int(dir.Fd()), name, 0) }
