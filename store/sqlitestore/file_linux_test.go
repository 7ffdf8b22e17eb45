package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"golang.org/x/sys/unix"
	"modernc.org/sqlite"
)

// refused opens a file that must be refused with the given error.
func refused(t *testing.T, path string, want error, opts ...option) {
	t.Helper()
	s, err := openWith(t.Context(), path, opts...)
	if err == nil {
		s.Close()
	}
	file, ok := errors.AsType[*FileError](err)
	if !ok || !errors.Is(err, want) || file.Path == "" {
		t.Errorf("open: %v, want a *FileError about %q", err, want)
	}
}

func TestOpenMakesPrivateFiles(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state", "baton", "odd ?#%41 name.db")
	s := openAt(t, path)
	writer(t, s, "k").hold(time.Minute)
	writer(t, s, "k").join(time.Minute)
	for p, want := range map[string]os.FileMode{
		path:                                   0o600,
		path + "-wal":                          0o600,
		path + "-wake":                         0o700,
		path + "-wake/turn":                    0o600,
		filepath.Join(path, "..", ".."):        0o700,
		filepath.Join(path, ".."):              0o700,
		path + "-wake/" + s.mail.address(true): 0o600,
	} {
		info, err := os.Stat(p)
		if err != nil {
			t.Error(err)
		} else if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has mode %v, want %v", p, got, want)
		}
	}
}

// Every commit reaches the disk before it is answered, but one that releases a lock
// and does nothing else.
func TestCommitsAreDurable(t *testing.T) {
	t.Parallel()
	s := openNew(t)
	const full, normal = 2, 1
	level := func(lazy, alone bool) (level int) {
		t.Helper()
		look := func(*tx) error {
			return s.conn.QueryRowContext(context.Background(), "PRAGMA synchronous").Scan(&level)
		}
		o := &op{lazy: lazy, run: look}
		if alone {
			o.fast = func(t *tx) (bool, error) { return true, look(t) }
		}
		if err := s.ask(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		return level
	}
	for range 2 {
		if got := level(false, false); got != full {
			t.Errorf("a transaction has the level %d", got)
		}
		if got := level(true, true); got != normal {
			t.Errorf("a release that is alone has the level %d", got)
		}
		if got := level(false, true); got != full {
			t.Errorf("an acquire that is alone has the level %d", got)
		}
		if got := level(true, true); got != normal {
			t.Errorf("the next release has the level %d", got)
		}
	}
	h := writer(t, s, "k")
	h.hold(time.Minute)
	if s.lazy { // not looked at until the next request
		t.Error("an acquire did not wait for the disk")
	}
	h.release()
	if !s.lazy {
		t.Error("a release waited for the disk")
	}
	h = writer(t, s, "k")
	h.hold(time.Minute)
	writer(t, s, "k").join(time.Minute)
	h.release()
	if s.lazy {
		t.Error("a release that grants the next did not wait for the disk")
	}
	if err := s.do(t.Context(), func(*tx) error {
		for pragma, want := range map[string]string{"journal_mode": "wal", "busy_timeout": "0"} {
			var got string
			if err := s.conn.QueryRowContext(context.Background(), "PRAGMA "+pragma).Scan(&got); err != nil {
				return err
			}
			if got != want {
				t.Errorf("%s is %s, want %s", pragma, got, want)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// What is beside the database is open to users who may use it.
func TestOpenFollowsTheMode(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "shared.db")
	if err := os.WriteFile(path, nil, 0o660); err != nil {
		t.Fatal(err)
	}
	os.Chmod(path, 0o660)
	openAt(t, path)
	for p, want := range map[string]os.FileMode{path + "-wake": 0o770, path + "-wake/gate": 0o660, path + "-wal": 0o660} {
		if info, err := os.Stat(p); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want %v", p, info.Mode(), err, want)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte(strings.Repeat("this is not a database\n", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, text, ErrNotDatabase)
	refused(t, dir, ErrNotDatabase)
	refused(t, "", ErrNotDatabase)
	refused(t, text+"/sub/locks.db", ErrDirectory)
	refused(t, dir+"/remote.db", ErrNetworkFS, func(o *options) { o.remote = func(string) (string, error) { return "nfs", nil } })
	refused(t, dir+"/shifted.db", ErrTimeNamespace, func(o *options) { o.shifted = func() bool { return true } })
	refused(t, dir+"/other.db", ErrPlatform, func(o *options) { o.remote = func(string) (string, error) { return "", ErrPlatform } })

	wide, err := sql.Open("sqlite", dir+"/wide.db")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := wide.Exec("PRAGMA encoding = 'UTF-16'; CREATE TABLE t (x)"); err != nil {
		t.Fatal(err)
	}
	wide.Close()
	refused(t, dir+"/wide.db", ErrEncoding)

	newer := openAt(t, dir+"/newer.db")
	if err := newer.do(t.Context(), func(*tx) error {
		_, err := newer.conn.ExecContext(context.Background(), "UPDATE baton_meta SET value = 99 WHERE name = 'schema'")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	refused(t, dir+"/newer.db", ErrNewerSchema)
}

// A process whose clock is shifted by a time namespace does not join the
// others.
func TestTimeNamespace(t *testing.T) {
	t.Parallel()
	if out, err := exec.Command("unshare", "--time", "--boottime", "1000", "true").CombinedOutput(); err != nil {
		t.Skipf("needs unshare --time and the right to use it: %v %s", err, out)
	}
	s := openNew(t)
	cmd := child(t, "open", s.path)
	cmd.Path, _ = exec.LookPath("unshare")
	cmd.Args = []string{"unshare", "--time", "--boottime", "1000", os.Args[0]}
	cmd.Stderr = nil
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), ErrTimeNamespace.Error()) {
		t.Errorf("in a time namespace: %v, %s", err, out)
	}
}

// The file system of /proc is no place for files, and says so.
func TestOpenWhereNothingCanBeWritten(t *testing.T) {
	t.Parallel()
	s, err := Open(t.Context(), "/proc/baton.db")
	if err == nil {
		s.Close()
	}
	if _, ok := errors.AsType[*FileError](err); !ok {
		t.Errorf("open: %v, want a *FileError", err)
	}
}

func TestOpenObeysItsContext(t *testing.T) {
	t.Parallel()
	s := openNew(t)
	over := make(chan struct{})
	var used atomic.Bool
	given := func(o *options) {
		o.over = func() { close(over) }
		boot := o.boot
		o.boot = func() (string, error) {
			used.Store(true)
			return boot()
		}
	}
	if err := s.turn.enter(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := openWith(ctx, s.path, given); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("open: %v, want the deadline", err)
	}
	s.turn.leave()
	<-over
	if used.Load() {
		t.Error("an opening that was given up went on to use the database when its turn came")
	}
}

// A program that ignores the turnstile keeps the file to itself: an opening that was
// given up does not ask for ever.
func TestOpenGivesUpOnABusyFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec("CREATE TABLE other (x)"); err != nil {
		t.Fatal(err)
	}
	foreign, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Rollback()
	if _, err := foreign.Exec("INSERT INTO other VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = openWith(ctx, path, func(o *options) { o.over = func() { close(over) } })
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("open: %v, want the deadline", err)
	}
	<-over // while the file is still busy
}

// The file is removed, or another is put in its place: a process that comes later uses
// another file, so nothing in this one holds.
func TestReplaced(t *testing.T) {
	t.Parallel()
	for name, act := range map[string]func(path string) error{
		"removed": os.Remove,
		"renamed": func(path string) error { return os.Rename(path, path+".old") },
		"replaced": func(path string) error {
			if err := os.WriteFile(path+".new", nil, 0o600); err != nil {
				return err
			}
			return os.Rename(path+".new", path)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openNew(t)
			h := writer(t, s, "k")
			h.hold(time.Minute)
			woken := make(chan driver.Hint, 4)
			stop := s.Watch(h.Claim, func(h driver.Hint) { woken <- h })
			defer stop()
			if err := act(s.path); err != nil {
				t.Fatal(err)
			}
			if r := h.renew(time.Minute); r.State != driver.Lost || !errors.Is(r.Err, ErrReplaced) {
				t.Errorf("renew: %v, %v, want lost because the file was replaced", r.State, r.Err)
			}
			<-woken
			_, err := writer(t, s, "other").acquire(time.Minute, false)
			if !errors.Is(err, ErrReplaced) || !errors.Is(err, driver.ErrUnavailable) {
				t.Errorf("acquire: %v", err)
			}
			if _, err := s.Inspect(t.Context(), "k"); !errors.Is(err, ErrReplaced) {
				t.Errorf("inspect: %v", err)
			}
		})
	}
}

// Another kernel opens the same file while this one uses it.
func TestOtherMachine(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := openNew(t, w.option)
	h := writer(t, s, "k")
	h.hold(time.Minute)
	openAt(t, s.path, w.option, func(o *options) { o.boot = func() (string, error) { return "elsewhere", nil } })
	w.pass(2 * time.Second)
	if r := h.renew(time.Minute); r.State != driver.Lost || !errors.Is(r.Err, ErrOtherMachine) {
		t.Errorf("renew: %v, %v, want lost to another machine", r.State, r.Err)
	}
}

// The program itself opens and closes the database file, which drops POSIX
// locks: then the next process to leave would take the log away under us.
func TestForeignCloseOfTheFile(t *testing.T) {
	t.Parallel()
	s := openNew(t)
	if !sqlite.OFDLockingEnabled() {
		t.Skip("this kernel or file system has no OFD locks")
	}
	held := writer(t, s, "k")
	held.hold(time.Minute)
	before, err := os.Stat(s.path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan bool)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if f, err := os.Open(s.path); err == nil {
					f.Close()
				}
				p := writer(t, s, "load")
				if _, err := p.acquire(time.Minute, false); err != nil {
					t.Error(err)
				} else {
					p.release()
				}
			}
		}
	})
	for range 3 {
		if err := child(t, "open", s.path).Run(); err != nil {
			t.Errorf("child: %v", err)
		}
	}
	close(stop)
	wg.Wait()
	after, err := os.Stat(s.path + "-wal")
	if err != nil || !os.SameFile(before, after) {
		t.Errorf("the log was replaced under an open database: %v", err)
	}
	if r := held.renew(time.Minute); r.State != driver.Held {
		t.Errorf("renew: %v, %v", r.State, r.Err)
	}
	sound(t, s)
}

// A disk that is full is told, breaks nothing, and heals.
func TestDiskFull(t *testing.T) {
	dir := t.TempDir()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=512k"); err != nil {
		t.Skipf("needs a file system of its own, mount: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	s := openAt(t, filepath.Join(dir, "locks.db"))
	h := writer(t, s, "k")
	h.hold(time.Hour)

	f, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	f.Close()
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	full := false
	for i := 0; i < 2000 && !full; i++ { // what is left in the log's last blocks
		_, err := writer(t, s, fmt.Sprint("k", i)).acquire(time.Hour, false)
		if full = errors.Is(err, ErrFull); err != nil && (!full || !errors.Is(err, driver.ErrUnavailable)) {
			t.Fatalf("acquire: %v, want ErrFull and no effect", err)
		}
	}
	if !full {
		t.Fatal("the disk did not get full")
	}
	if err := os.Remove(f.Name()); err != nil {
		t.Fatal(err)
	}
	if r := h.renew(time.Hour); r.State != driver.Held {
		t.Errorf("renew with space again: %v, %v", r.State, r.Err)
	}
	writer(t, s, "after").hold(time.Hour)
}

// The log does not grow without end.
func TestLogStaysSmall(t *testing.T) {
	t.Parallel()
	s := openNew(t)
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			for range 200 {
				p := writer(t, s, fmt.Sprint("k", i))
				if _, err := p.acquire(time.Minute, false); err != nil {
					t.Error(err)
					return
				}
				p.release()
			}
		})
	}
	wg.Wait()
	info, err := os.Stat(s.path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > 16<<20 {
		t.Errorf("the log has %d bytes", info.Size())
	}
}

// Sockets that killed processes left are removed when the next one is made.
func TestStaleSockets(t *testing.T) {
	t.Parallel()
	all := handles(t, 2)
	a, b := all[0].(*Store), all[1].(*Store)
	writer(t, a, "k").hold(time.Minute)
	writer(t, a, "k").join(time.Minute)
	live := filepath.Join(a.mail.dir.Name(), a.mail.address(true))
	stale := filepath.Join(a.mail.dir.Name(), "gone.sock")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: socketPath(a.mail.dir, "gone.sock")}); err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	writer(t, b, "k").join(time.Minute)
	if _, err := os.Stat(stale); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the stale socket is still there: %v", err)
	}
	if _, err := os.Stat(live); err != nil {
		t.Errorf("the live socket: %v", err)
	}
}

// An operator reads the locks with the sqlite3 shell.
func TestShellShowsLocks(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("sqlite3"); err != nil {
		t.Skip("needs the sqlite3 shell")
	}
	s := openNew(t)
	writer(t, s, "invoice/42").hold(time.Hour)
	writer(t, s, "invoice/42").join(time.Hour)
	reader(t, s, "café").hold(time.Hour)
	out, err := exec.Command("sqlite3", "-readonly", s.path, "SELECT key, state, kind, owner FROM baton_show").CombinedOutput()
	want := "café|held|shared|test\ninvoice/42|held|exclusive|test\ninvoice/42|waiting|exclusive|test\n"
	if err != nil || string(out) != want {
		t.Errorf("%v\n%s\nwant\n%s", err, out, want)
	}
	var begins string
	if err := s.readers.QueryRow("SELECT since FROM baton_show LIMIT 1").Scan(&begins); err != nil {
		t.Fatal(err)
	}
	if at, err := time.ParseInLocation(time.DateTime, begins, time.Local); err != nil || time.Since(at).Abs() > time.Minute {
		t.Errorf("since %q, %v: want about now", begins, err)
	}
}
