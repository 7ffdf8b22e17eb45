package open

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
)

func TestStoreRefuses(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"":                        "no scheme",
		"locks.db":                "sqlite:PATH",
		"localhost:6379":          "scheme is not known",
		"reds://h":                "did you mean redis?",
		"redis+sentinal://h/m":    "did you mean redis+sentinel?",
		"sqlit:x":                 "scheme is not known",
		"sqlit://x":               "did you mean sqlite?",
		"valkey://h":              "write redis://",
		"file:locks.db":           "write sqlite:PATH",
		"gopher://h":              ", memory, ",
		"memory:x":                "memory has no parts",
		"memory://h":              "memory has no parts",
		"memory:?size=3":          "unknown parameter size: there are none here",
		"sqlite:":                 "path is missing",
		"sqlite://locks.db":       "a file has no host",
		"sqlite:x.db?mode=memory": "unknown parameter mode",
		"sqlite:a%00b":            "control character",
		"sqlite:a#b":              "%23",
	} {
		store, err := Store(t.Context(), url)
		if err == nil {
			store.Close()
			t.Errorf("%q: accepted", url)
			continue
		}
		if _, ok := errors.AsType[*URLError](err); !ok {
			t.Errorf("%q: %T, want *URLError", url, err)
		}
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %q, want it to contain %q", url, err, want)
		}
	}
}

func TestLocalStores(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, c := range []struct{ url, file string }{
		{"memory:", ""},
		{"memory://", ""},
		{"sqlite:" + dir + "/a.db", "a.db"},
		{"sqlite://" + dir + "/sub/b%20%3F.db", "sub/b ?.db"},
		{"sqlite:" + dir + "/c@d:e.db", "c@d:e.db"},
	} {
		store, err := Store(t.Context(), c.url)
		if err != nil {
			t.Errorf("%s: %v", c.url, err)
			continue
		}
		claim := driver.Claim{Key: "k", ID: driver.NewID(), Weight: driver.Whole, Capacity: driver.Whole}
		if _, err := store.Acquire(t.Context(), driver.Request{Claim: claim, TTL: driver.ClaimTTL}); err != nil {
			t.Errorf("%s: %v", c.url, err)
		}
		if err := store.Close(); err != nil {
			t.Errorf("%s: close: %v", c.url, err)
		}
		if c.file != "" {
			if _, err := os.Stat(filepath.Join(dir, c.file)); err != nil {
				t.Errorf("%s: %v", c.url, err)
			}
		}
	}
}

func TestDefault(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_STATE_HOME", filepath.Join(dir, "st%te?#"))
	url, err := Default()
	if err != nil {
		t.Fatal(err)
	}
	store, err := Store(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	store.Close()
	if _, err := os.Stat(filepath.Join(dir, "st%te?#", "baton", "locks.db")); err != nil {
		t.Error(err)
	}

	t.Setenv("XDG_STATE_HOME", "relative")
	t.Setenv("HOME", dir)
	if url, err := Default(); err != nil || url != "sqlite:"+dir+"/.local/state/baton/locks.db" {
		t.Errorf("Default() = %q, %v", url, err)
	}
	t.Setenv("HOME", "")
	if url, err := Default(); err == nil {
		t.Errorf("without a home: %q", url)
	}
}

func TestErrorsOfClientsAreScrubbed(t *testing.T) {
	t.Parallel()
	a, err := parse("redis://u:hunter2@h?password-file=s3cret")
	if err != nil {
		t.Fatal(err)
	}
	cause := errors.New("cannot AUTH with hunter2 from s3cret")
	shown := &openError{a.String(), a.secrets(), cause}
	if text := shown.Error(); text != "open redis://***@h?password-file=***: cannot AUTH with *** from ***" {
		t.Errorf("error %q", text)
	}
	if !errors.Is(shown, cause) {
		t.Error("the cause is hidden from errors.Is")
	}
}

// The file of a URL is the one that Store opens.
func TestFile(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"sqlite:locks.db":     "locks.db",
		"sqlite:///var/l.db":  "/var/l.db",
		"sqlite:a%20b.db":     "a b.db",
		"sqlite:":             "",
		"sqlite:x.db?mode=ro": "",
		"memory:":             "",
		"redis://h/sqlite.db": "",
		"locks.db":            "",
	} {
		if got, ok := File(url); got != want && ok || ok != (want != "") {
			t.Errorf("%s: %q, %v, want %q", url, got, ok, want)
		}
	}
}

// A command that waits for a store waits as long as the store would to connect.
func TestConnectTimeout(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]time.Duration{
		"redis://h":                    5 * time.Second,
		"zk://h/a":                     10 * time.Second,
		"zk://h/a?connect-timeout=1s":  time.Second,
		"etcd://h?connect-timeout=90s": 90 * time.Second,
		"sqlite:x.db":                  5 * time.Second,
		"no url":                       5 * time.Second,
	} {
		if got := ConnectTimeout(url); got != want {
			t.Errorf("%s: %v, want %v", url, got, want)
		}
	}
}
