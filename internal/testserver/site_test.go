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
