package sqlitestore

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/batonhq/baton/internal/sqlstore"
	"golang.org/x/sys/unix"
)

const nobody = 65534

// theirs is a directory of user nobody, and own one that only root may use.
func theirs(t *testing.T) (dir, own string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can work in another user's directory")
	}
	base := t.TempDir()
	dir, own = filepath.Join(base, "home"), filepath.Join(base, "root")
	for _, d := range []string{dir, own} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	give(t, dir)
	return dir, own
}

func give(t *testing.T, paths ...string) {
	t.Helper()
	for _, p := range paths {
		if err := os.Lchown(p, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
}

func put(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, nil, mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// state is all that a user could have done to a file.
func state(t *testing.T, path string) (s struct {
	Mode          os.FileMode
	UID, GID      uint32
	Size          int64
	Inside, Links int
},
) {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	st := sysOf(info)
	s.Mode, s.UID, s.GID = info.Mode(), st.Uid, st.Gid
	if s.Mode.IsRegular() {
		s.Size = info.Size()
	}
	if s.Mode.IsDir() {
		entries, err := os.ReadDir(path)
		if err != nil {
			t.Fatal(err)
		}
		s.Inside = len(entries)
	}
	return s
}

// A user prepares what root will find beside the user's database: nothing of root's
// is changed, moved into, or given to the user.
func TestRootIsNotLedElsewhere(t *testing.T) {
	t.Parallel()
	link := func(t *testing.T, to, from string) {
		t.Helper()
		if err := os.Symlink(to, from); err != nil {
			t.Fatal(err)
		}
		give(t, from)
	}
	hard := func(t *testing.T, to, from string) {
		t.Helper()
		if err := os.Link(to, from); err != nil {
			t.Fatal(err)
		}
	}
	wake := func(t *testing.T, db string, owner int) string {
		t.Helper()
		if err := os.Mkdir(db+"-wake", 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Lchown(db+"-wake", owner, owner); err != nil {
			t.Fatal(err)
		}
		return db + "-wake"
	}
	for _, c := range []struct {
		name    string
		prepare func(t *testing.T, db, dir, file string) // dir and file are root's
		want    error
	}{
		{"directory", func(t *testing.T, db, dir, file string) { link(t, dir, db+"-wake") }, ErrForeign},
		{"file for a directory", func(t *testing.T, db, dir, file string) { hard(t, file, db+"-wake") }, ErrForeign},
		{"directory of a third", func(t *testing.T, db, dir, file string) {
			os.Chmod(db, 0o600)
			wake(t, db, 1234)
		}, ErrForeign},
		{"gate", func(t *testing.T, db, dir, file string) { link(t, file, wake(t, db, nobody)+"/gate") }, ErrReadOnly},
		{"turn", func(t *testing.T, db, dir, file string) { link(t, file, wake(t, db, nobody)+"/turn") }, ErrReadOnly},
		{"new gate", func(t *testing.T, db, dir, file string) { link(t, dir+"/new", wake(t, db, nobody)+"/gate") }, ErrReadOnly},
		{"hard gate", func(t *testing.T, db, dir, file string) { hard(t, file, wake(t, db, nobody)+"/gate") }, ErrReadOnly},
		{"pipe", func(t *testing.T, db, dir, file string) {
			if err := unix.Mkfifo(wake(t, db, nobody)+"/gate", 0o666); err != nil {
				t.Fatal(err)
			}
			give(t, db+"-wake/gate")
		}, ErrReadOnly},
		{"log", func(t *testing.T, db, dir, file string) { link(t, file, db+"-wal") }, ErrForeign},
		{"hard log", func(t *testing.T, db, dir, file string) { hard(t, file, db+"-wal") }, ErrForeign},
		{"moved log", func(t *testing.T, db, dir, file string) { put(t, db+"-wal", 0o600) }, ErrForeign},
		{"hard memory", func(t *testing.T, db, dir, file string) { hard(t, file, db+"-shm") }, ErrForeign},
		{"hard journal", func(t *testing.T, db, dir, file string) { hard(t, file, db+"-journal") }, ErrForeign},
		{"database", func(t *testing.T, db, dir, file string) {
			os.Remove(db)
			link(t, file, db)
		}, ErrForeign},
		{"directory of the database", func(t *testing.T, db, dir, file string) {
			home := filepath.Dir(db)
			os.RemoveAll(home)
			link(t, dir, home)
		}, ErrForeign},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			home, own := theirs(t)
			db, dir, file := filepath.Join(home, "locks.db"), filepath.Join(own, "cron.daily"), filepath.Join(own, "file")
			put(t, db, 0o777)
			give(t, db)
			put(t, file, 0o600)
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			c.prepare(t, db, dir, file)
			dirWas, fileWas := state(t, dir), state(t, file)
			refused(t, db, c.want)
			if is := state(t, dir); is != dirWas {
				t.Errorf("root's directory was %+v and is %+v", dirWas, is)
			}
			if is := state(t, file); is != fileWas {
				t.Errorf("root's file was %+v and is %+v", fileWas, is)
			}
			if c.name == "moved log" {
				if is := state(t, db+"-wal"); is.UID != 0 {
					t.Errorf("root's file was given to user %d", is.UID)
				}
			}
		})
	}
}

// The user changes what root finds while root works there.
func TestRootIsNotLedElsewhereMeanwhile(t *testing.T) {
	t.Parallel()
	home, own := theirs(t)
	db, dir := filepath.Join(home, "locks.db"), filepath.Join(own, "cron.daily")
	secret := filepath.Join(home, "of root") // which the user may move about
	put(t, secret, 0o600)
	put(t, db, 0o777)
	give(t, db)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, db+"-link"); err != nil {
		t.Fatal(err)
	}
	give(t, db+"-link")
	was := state(t, dir)
	held, err := os.Open(secret) // wherever it is moved to
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				os.Rename(db+"-wake", db+"-away")
				os.Rename(db+"-link", db+"-wake")
				os.Rename(db+"-wake", db+"-link")
				os.RemoveAll(db + "-away")
				os.Rename(secret, db+"-wal")
				os.Rename(db+"-wal", secret)
			}
		}
	})
	opened := 0
	for range 200 {
		s, err := Open(context.Background(), db)
		if err != nil {
			continue
		}
		opened++
		s.mail.address(true)
		s.Close()
	}
	close(stop)
	wg.Wait()
	t.Logf("opened %d times", opened)
	if is := state(t, dir); is != was {
		t.Errorf("root's directory was %+v and is %+v", was, is)
	}
	if info, err := held.Stat(); err != nil || sysOf(info).Uid != 0 || info.Mode() != 0o600 || info.Size() != 0 {
		t.Errorf("root's file is %v of user %d with %d bytes, %v", info.Mode(), sysOf(info).Uid, info.Size(), err)
	}
}

// What root makes for another user's database belongs to that user, and both share the
// locks.
func TestRootWorksInADirectoryOfTheirs(t *testing.T) {
	t.Parallel()
	for _, directory := range []string{"theirs", "root's"} {
		t.Run(directory, func(t *testing.T) {
			t.Parallel()
			home, own := theirs(t)
			if directory == "root's" {
				home = own
			}
			db := filepath.Join(home, "locks.db")
			put(t, db, 0o640)
			give(t, db)
			s := openAt(t, db)
			writer(t, s, "k").hold(time.Minute)
			writer(t, s, "k").join(time.Minute)
			if _, err := s.Inspect(t.Context(), "k"); err != nil {
				t.Fatal(err)
			}
			for p, mode := range map[string]os.FileMode{
				db: 0o640, db + "-wal": 0o640, db + "-shm": 0o640,
				db + "-wake": os.ModeDir | 0o750, db + "-wake/gate": 0o640, db + "-wake/turn": 0o640,
				db + "-wake/" + s.mail.address(true): os.ModeSocket | 0o640,
			} {
				if is := state(t, p); is.UID != nobody || is.GID != nobody || is.Mode != mode {
					t.Errorf("%s: %+v, want it to be user %d's, of mode %v", p, is, nobody, mode)
				}
			}
			var rights [2]unix.CapUserData
			head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			if err := s.asOwner(func() error { return unix.Capget(&head, &rights[0]) }); err != nil {
				t.Fatal(err)
			}
			const strong = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER
			if got := rights[0].Effective&strong != 0; got != (directory == "root's") {
				t.Errorf("root works there with its rights to all files: %v", got)
			}
			if err := s.asOwner(func() error { return os.WriteFile(own+"/file", nil, 0o600) }); (err == nil) != (directory == "root's") {
				t.Errorf("a file of root's is written: %v", err)
			}
			if uid, err := unix.SetfsuidRetUid(-1); err != nil || uid != 0 {
				t.Errorf("afterwards this thread works as user %d, %v", uid, err)
			}
		})
	}
}

// A link is put where the socket of a waiter is looked for: what is meant for the
// waiter is not sent where the link leads.
func TestHintsFollowNoLink(t *testing.T) {
	t.Parallel()
	s := openNew(t)
	elsewhere := filepath.Join(t.TempDir(), "log")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: elsewhere})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := os.Symlink(elsewhere, filepath.Join(s.beside.Name(), "led.sock")); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(elsewhere, filepath.Join(s.beside.Name(), "real.sock")); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{"led.sock", "real.sock"} {
		s.tell(sqlstore.Effects{Broken: []sqlstore.Broken{{Key: to, ID: "x", Node: to}}})
	}
	buf := make([]byte, 4096)
	n, err := conn.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(buf[:n]), `{"key":"real.sock","id":"x"}`; got != want {
		t.Errorf("the first datagram is %s, want %s", got, want)
	}
}

// Only the socket that was just made is opened to other users.
func TestShareOnlyTheSocket(t *testing.T) {
	t.Parallel()
	s := openNew(t)
	os.Chmod(s.path, 0o666)
	db, err := os.Stat(s.path)
	if err != nil {
		t.Fatal(err)
	}
	dir := s.beside.Name()
	put(t, filepath.Join(dir, "file"), 0o600)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: socketPath(s.beside, "other")}); err != nil {
		t.Fatal(err)
	}
	os.Chmod(filepath.Join(dir, "other"), 0o600)
	if err := os.Symlink("other", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(dir, "other"), filepath.Join(dir, "second")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]error{"file": syscall.ENOTSOCK, "link": syscall.ENOTSOCK, "second": syscall.EPERM} {
		if err := shareSocket(s.beside, name, db); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	for _, name := range []string{"file", "other"} {
		if is := state(t, filepath.Join(dir, name)); is.Mode.Perm() != 0o600 {
			t.Errorf("%s has mode %v", name, is.Mode)
		}
	}
	os.Remove(filepath.Join(dir, "second"))
	if err := shareSocket(s.beside, "other", db); err != nil || state(t, filepath.Join(dir, "other")).Mode.Perm() != 0o666 {
		t.Errorf("%v", err)
	}
}
