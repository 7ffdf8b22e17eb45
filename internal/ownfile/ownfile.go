// Package ownfile opens files that a user has named. It refuses other files than regular
// ones. Files with secrets, keys or the roles of callers it also refuses if another user
// can write them, or read a secret.
package ownfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// A ModeError says which users can change, or read, a file that they must not. It does
// not name the file.
type ModeError struct {
	Reason, Next string
}

func (e *ModeError) Error() string { return e.Reason + ": " + e.Next }

// Read reads a regular file of at most limit bytes that belongs to this user or to root,
// and that no other user can write. With secret, users outside of its group must not be
// able to read it, either. Symbolic links are followed: the file at their end counts. The
// error is an *fs.PathError, or a *ModeError. On Windows, access lists are not checked:
// keep such files where other users cannot write.
func Read(path string, limit int64, secret bool) ([]byte, error) {
	f, err := Open(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat() // of the open file: its name may lead elsewhere now
	if err != nil {
		return nil, err
	}
	if err := check(path, info, secret); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	switch {
	case err != nil:
		return nil, err
	case int64(len(text)) > limit:
		return nil, &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("it has more than %d bytes", limit)}
	}
	return text, nil
}

// Open is os.OpenFile for a regular file. It refuses other files: opening a pipe waits
// for its other end, and a device has no end.
func Open(path string, flag int, perm fs.FileMode) (*os.File, error) {
	f, err := os.OpenFile(path, flag|syscall.O_NONBLOCK, perm)
	if errors.Is(err, syscall.ENXIO) { // a pipe without a reader
		err = &fs.PathError{Op: "open", Path: path, Err: errIrregular}
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: path, Err: errIrregular}
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

var errIrregular = errors.New("it is no regular file")

func check(path string, info fs.FileInfo, secret bool) error {
	if !info.Mode().IsRegular() {
		return &fs.PathError{Op: "read", Path: path, Err: errIrregular}
	}
	if uid, foreign := Foreign(info); foreign {
		return &ModeError{fmt.Sprintf("it belongs to user %d, who could change it", uid), "chown it to root, or to the user who runs this command"}
	}
	switch mode := info.Mode().Perm(); {
	case !hasModes: // modes do not tell who may write it
	case mode&0o022 != 0:
		return &ModeError{fmt.Sprintf("it has the mode %04o, and other users could change it", mode), "chmod go-w"}
	case secret && mode&0o004 != 0:
		return &ModeError{fmt.Sprintf("it has the mode %04o, and every user can read it", mode), "chmod o-r"}
	}
	return nil
}
