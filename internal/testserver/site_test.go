package testserver

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func newSite(t *testing.T) *Site {
	s := new(Site)
	t.Cleanup(s.Close)
	return s
}

func TestSiteReportsWhatFailed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	if err := s.Try(func() { require(s, "no-such-server", "its-package") }); !errors.Is(err, ErrNotInstalled) || !strings.Contains(err.Error(), "no-such-server is not installed: install the package its-package") {
		t.Errorf("a server that is not installed: %v", err)
	}
	if err := s.Try(func() { s.Skipf("no room") }); err == nil || err.Error() != "no room" {
		t.Errorf("what would skip a test: %v", err)
	}
	if err := s.Try(func() {}); err != nil {
		t.Errorf("nothing failed: %v", err)
	}
	defer func() {
		if x := recover(); x != "of another" {
			t.Errorf("a panic of others was swallowed: %v", x)
		}
	}()
	s.Try(func() { panic("of another") })
}

// Each server has a clock and a disk of its own, and keeps them when it is
// started again.
func TestSiteGivesEachServerAMachine(t *testing.T) {
	t.Parallel()
	NeedRedis(t)
	NewClock(t) // or there is nothing to see
	s := newSite(t)
	s.Clocks = true
	var a, b *RedisServer
	if err := s.Try(func() { a, b = Redis(s), Redis(s) }); err != nil {
		t.Fatal(err)
	}
	ahead := func(r *RedisServer) time.Duration {
		t.Helper()
		answer, err := r.Do("TIME")
		if err != nil {
			t.Fatal(err)
		}
		seconds, _, _ := strings.Cut(answer, "\n")
		n, err := strconv.ParseInt(seconds, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return time.Duration(math.Round(time.Until(time.Unix(n, 0)).Minutes())) * time.Minute
	}
	if err := a.Machine().SetClock(time.Hour); err != nil {
		t.Fatal(err)
	}
	if x, y := ahead(a), ahead(b); x != time.Hour || y != 0 {
		t.Errorf("the clocks are %v and %v ahead, want 1h and 0", x, y)
	}
	if err := s.Try(a.Restart); err != nil {
		t.Fatal(err)
	}
	if x := ahead(a); x != time.Hour {
		t.Errorf("after the restart the clock is %v ahead, want 1h", x)
	}
}

// The program of a Site is started in directories of which others may write to one above.
func TestSiteTakesNoEtcdOfOthers(t *testing.T) {
	dir, bin := t.TempDir(), t.TempDir()
	t.Chdir(dir)
	t.Setenv("PATH", bin)
	s := newSite(t)
	find := func() (path string, err error) {
		err = s.Try(func() { path = etcdBinary(s) })
		return path, err
	}
	if path, err := find(); !errors.Is(err, ErrNotInstalled) || !strings.Contains(err.Error(), "install the package etcd-server") {
		t.Errorf("without one: %q, %v", path, err)
	}
	write := func(path string) string {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	ours := write(filepath.Join(bin, "etcd"))
	if path, err := find(); err != nil || path != ours {
		t.Errorf("in PATH: %q, %v", path, err)
	}
	planted := write(filepath.Join(dir, ".servers", "etcd"))
	if path, err := find(); err != nil || path != planted {
		t.Errorf("that of the user: %q, %v", path, err)
	}
	if err := os.Chown(planted, 65534, -1); err != nil {
		t.Skip(err) // only root gives files away
	}
	if path, err := find(); err != nil || path != ours {
		t.Errorf("that of another user: %q, %v", path, err)
	}
}

// A folder goes with its site, and is no disk of its own: what is measured there is the
// common disk.
func TestSiteHasFolders(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	folder := s.Folder()
	if s.machine(folder) != nil || s.Folder() == folder {
		t.Error("a folder is no machine, and is fresh")
	}
	s.Close()
	if _, err := os.Stat(folder); !os.IsNotExist(err) {
		t.Errorf("the folder is still there: %v", err)
	}
}

func TestSiteFillsADisk(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.FreshDir()
	file := filepath.Join(m.Dir(), "f")
	write := func() error { return os.WriteFile(file, make([]byte, 1<<20), 0o600) }
	free, err := m.FillDisk()
	if err != nil {
		t.Skip(err)
	}
	if err := write(); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a write to the full disk: %v", err)
	}
	for range 2 {
		if err := free(); err != nil {
			t.Error(err)
		}
	}
	if err := write(); err != nil {
		t.Error(err)
	}
	s.Close()
	if _, err := os.Stat(m.Dir()); !os.IsNotExist(err) {
		t.Errorf("the directory is still there: %v", err)
	}
}
