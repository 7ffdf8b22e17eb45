package sqlitestore

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
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
		t.Skip("only root can make a directory of another user")
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

func link(t *testing.T, to, from string) {
	t.Helper()
	if err := os.Symlink(to, from); err != nil {
		t.Fatal(err)
	}
}

func mkdir(t *testing.T, path string, mode os.FileMode) string {
	t.Helper()
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// Root opens no file that another user could lead it away from, makes nothing there, and
// says as which user to run.
func TestRootOpensOnlyItsOwn(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(t *testing.T, home, own string) (db string){
		"a file in their directory": func(t *testing.T, home, own string) string {
			db := filepath.Join(home, "locks.db")
			put(t, db, 0o600)
			give(t, db)
			return db
		},
		"a new file in their directory":  func(t *testing.T, home, own string) string { return filepath.Join(home, "locks.db") },
		"a new directory in theirs":      func(t *testing.T, home, own string) string { return filepath.Join(home, "a", "b", "locks.db") },
		"root's file in their directory": func(t *testing.T, home, own string) string { put(t, home+"/x.db", 0o600); return home + "/x.db" },
		"root's directory in theirs":     func(t *testing.T, home, own string) string { return mkdir(t, home+"/roots", 0o700) + "/locks.db" },
		"their file in root's directory": func(t *testing.T, home, own string) string {
			put(t, own+"/x.db", 0o600)
			give(t, own+"/x.db")
			return own + "/x.db"
		},
		"root's link to their directory": func(t *testing.T, home, own string) string { link(t, home, own+"/link"); return own + "/link/locks.db" },
		"their link in root's directory": func(t *testing.T, home, own string) string {
			link(t, own, own+"/link")
			give(t, own+"/link")
			return own + "/link/locks.db"
		},
		"their link instead of the file": func(t *testing.T, home, own string) string {
			link(t, own+"/x.db", own+"/link")
			give(t, own+"/link")
			return own + "/link"
		},
		"a link that leads back from theirs": func(t *testing.T, home, own string) string {
			link(t, home+"/../root", own+"/link")
			return own + "/link/locks.db"
		},
		"their directory among temporary files": func(t *testing.T, home, own string) string {
			dir := mkdir(t, mkdir(t, own+"/tmp", 0o777|os.ModeSticky)+"/theirs", 0o777)
			give(t, dir)
			return dir + "/locks.db"
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home, own := theirs(t)
			db := prepare(t, home, own)
			homeWas, ownWas := state(t, home), state(t, own)
			refused(t, db, ErrForeign)
			_, err := Open(t.Context(), db)
			if !strings.Contains(fmt.Sprint(err), "run this as that user, sudo -u nobody") {
				t.Errorf("it does not say what to do: %v", err)
			}
			if home, own := state(t, home), state(t, own); home != homeWas || own != ownWas {
				t.Errorf("their directory was %+v and is %+v, root's was %+v and is %+v", homeWas, home, ownWas, own)
			}
		})
	}
}

// What is root's it opens: among temporary files, through its own links, and by a path that
// begins where it is.
func TestRootOpensItsOwn(t *testing.T) {
	t.Parallel()
	_, own := theirs(t)
	tmp := mkdir(t, filepath.Join(own, "tmp"), 0o777|os.ModeSticky)
	link(t, "tmp/../tmp", filepath.Join(own, "link"))
	for _, path := range []string{filepath.Join(own, "a", "b", "locks.db"), filepath.Join(tmp, "locks.db"), filepath.Join(own, "link", "locks.db")} {
		s := openAt(t, path)
		writer(t, s, path).hold(time.Minute)
	}
}

// A user of another directory than root's opens the file there; so does a root who is that
// user elsewhere, and to whom / belongs to no user, as in a container without a daemon.
func TestTheOwnerOpensIt(t *testing.T) {
	t.Parallel()
	for name, attr := range map[string]*syscall.SysProcAttr{
		"user": {Credential: &syscall.Credential{Uid: nobody, Gid: nobody}},
		"root of a user namespace": {
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: nobody, Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: nobody, Size: 1}},
			Credential:  &syscall.Credential{NoSetGroups: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home, _ := theirs(t)
			for dir := filepath.Dir(home); dir != os.TempDir(); dir = filepath.Dir(dir) {
				if err := os.Chmod(dir, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			db := filepath.Join(home, "locks.db")
			cmd := child(t, "open", db)
			cmd.Path, cmd.Dir, cmd.SysProcAttr = "/proc/self/exe", home, attr
			if err := cmd.Run(); err != nil {
				if errors.Is(err, syscall.EPERM) && attr.Cloneflags != 0 {
					t.Skip("this machine allows no user namespace")
				}
				t.Fatal(err)
			}
			if is := state(t, db); is.UID != nobody || is.Mode != 0o600 {
				t.Errorf("the file is %+v", is)
			}
		})
	}
}

// A user who may write to a directory, but not the database, puts something beside it:
// what it leads to is not changed.
func TestNothingBesideLeadsElsewhere(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		prepare func(t *testing.T, db, dir, file string)
		want    error
	}{
		{"directory", func(t *testing.T, db, dir, file string) { link(t, dir, db+"-wake") }, ErrForeign},
		{"file for a directory", func(t *testing.T, db, dir, file string) { put(t, db+"-wake", 0o600) }, ErrForeign},
		{"directory of a third", func(t *testing.T, db, dir, file string) { give(t, mkdir(t, db+"-wake", 0o700)) }, ErrForeign},
		{"gate", func(t *testing.T, db, dir, file string) { link(t, file, mkdir(t, db+"-wake", 0o700)+"/gate") }, ErrReadOnly},
		{"new turn", func(t *testing.T, db, dir, file string) { link(t, dir+"/new", mkdir(t, db+"-wake", 0o700)+"/turn") }, ErrReadOnly},
		{"pipe", func(t *testing.T, db, dir, file string) {
			if err := unix.Mkfifo(mkdir(t, db+"-wake", 0o700)+"/gate", 0o666); err != nil {
				t.Fatal(err)
			}
		}, ErrReadOnly},
		{"log", func(t *testing.T, db, dir, file string) { link(t, file, db+"-wal") }, ErrForeign},
		{"log of a third", func(t *testing.T, db, dir, file string) { put(t, db+"-wal", 0o666); give(t, db+"-wal") }, ErrForeign},
		{"memory", func(t *testing.T, db, dir, file string) { link(t, file, db+"-shm") }, ErrForeign},
		{"journal", func(t *testing.T, db, dir, file string) { link(t, file, db+"-journal") }, ErrForeign},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, own := theirs(t)
			db := filepath.Join(mkdir(t, own+"/tmp", 0o777|os.ModeSticky), "locks.db")
			dir, file := mkdir(t, own+"/cron.daily", 0o755), filepath.Join(own, "file")
			put(t, db, 0o600)
			put(t, file, 0o600)
			c.prepare(t, db, dir, file)
			dirWas, fileWas := state(t, dir), state(t, file)
			refused(t, db, c.want)
			if dir, file := state(t, dir), state(t, file); dir != dirWas || file != fileWas {
				t.Errorf("%+v became %+v, %+v became %+v", dirWas, dir, fileWas, file)
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
