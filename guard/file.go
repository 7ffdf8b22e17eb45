package guard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// WriteFile replaces the file at path by one with this content, unless a higher token has
// written it. Readers see the old file or the new one, never a part. After a nil error
// both the content and the mark are on disk. perm is the mode of the file, before umask,
// even if there was one before.
//
// It keeps two files beside the file: PATH.fence, the mark, and PATH.fence.lock, with
// which writers exclude each other (flock) from the check until the new file is in place.
// A writer that is stopped in between delays the others, for as long as their ctx lasts;
// if it dies they continue at once. Do not remove these files while a program may still
// write.
//
// It guards against writers that use it with the same path, not through another link to
// the file. It replaces a symbolic link; one in place of the lock file is an error. On a
// network file system it is as good as the locks there: NFS 4, and Linux clients of NFS 3
// with a lock service, send them to the server, and lose them after an outage without an
// error; SMB and FUSE may keep them on this machine only. Check the token where the file
// is, or write it conditionally (docs/fencing.md).
//
// Errors: *StaleError; *PassError; ctx's; ErrUnsupported on systems without flock;
// those of the file system, after which the mark may have been raised and the file
// is the old one or, if only the last fsync failed, the new one.
func WriteFile(ctx context.Context, path string, data []byte, perm fs.FileMode, p Pass) error {
	if err := p.check(); err != nil {
		return err
	}
	switch last, ok, err := writeFile(ctx, path, data, perm, p); {
	case err != nil:
		return err
	case !ok: // other writers need not wait for the observers
		return refuse(ctx, "file", path, p, last.Token)
	}
	return nil
}

// writeFile reports whether the mark admits p.
func writeFile(ctx context.Context, path string, data []byte, perm fs.FileMode, p Pass) (last Pass, ok bool, err error) {
	// A program that may write to the directory may put a link there; noFollow refuses
	// it.
	lock, err := os.OpenFile(path+".fence.lock", os.O_RDWR|os.O_CREATE|noFollow, 0o666)
	if err != nil {
		return last, false, fmt.Errorf("guard: %w", err)
	}
	defer lock.Close() // Close also unlocks
	if err := flock(ctx, lock); err != nil {
		return last, false, fmt.Errorf("guard: lock %s: %w", lock.Name(), err)
	}
	if last, err = readMark(path + ".fence"); err != nil || !last.admits(p) {
		return last, false, err
	}
	// The mark comes first: after a crash in between the old file is still there, and no
	// holder with a lower token can replace it.
	if last != p {
		err = replace(path+".fence", []byte(p.mark()), 0o666)
	} else { // its writer may have died before it was on disk
		err = syncDir(filepath.Dir(path))
	}
	if err == nil {
		err = replace(path, data, perm)
	}
	if err != nil {
		return last, false, fmt.Errorf("guard: %w", err)
	}
	return last, true, nil
}

func (p Pass) mark() string { return strconv.FormatInt(p.Token, 10) + " " + p.Holder + "\n" }

// readMark parses a mark. A missing file is no mark; other content is an error, because
// the last token is unknown then.
func readMark(name string) (p Pass, err error) {
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err != nil {
		return p, fmt.Errorf("guard: %w", err)
	}
	token, holder, _ := strings.Cut(strings.TrimSuffix(string(text), "\n"), " ")
	p.Holder = holder
	if p.Token, err = strconv.ParseInt(token, 10, 64); err != nil || p.mark() != string(text) || p.check() != nil {
		return p, fmt.Errorf("guard: %s holds something else than a mark: write the highest token ever used and a space into it, in one line", name)
	}
	return p, nil
}

// replace writes a file beside the old one and renames it to path. The caller excludes
// other calls.
func replace(path string, data []byte, perm fs.FileMode) error {
	dir := filepath.Dir(path)
	temp := filepath.Join(dir, "."+filepath.Base(path)+".new")
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) { // left by a crash
		return err
	}
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		os.Remove(temp)
		return err
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// flock waits by polling: no system call for it obeys a context.
func flock(ctx context.Context, f *os.File) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if ok, err := tryFlock(f); ok || err != nil {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}
