package verify

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/batonhq/baton/internal/testserver"
)

// Clients in other languages, with an agent and over HTTP, and those of the library exclude
// each other, while a client, an agent and a server are killed.
func TestOtherLanguagesHold(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	testserver.Python(t)
	testserver.PHP(t)
	redis := testserver.Redis(t)
	for name, url := range map[string]string{
		"redis":  "redis://" + redis.Addr,
		"sqlite": "sqlite:" + filepath.Join(t.TempDir(), "locks.db"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := quick(url, "f02+f34+f36")
			cfg.Ways, cfg.Clients = []string{WayAgent, WayHTTP, WayLibrary}, 6
			for _, x := range proves(t, cfg) {
				t.Logf("%s: %d rounds, %+v", x.Fault, x.Rounds, x.Looked)
				if x.Verdict != Held {
					t.Errorf("%s: %s %v", x.Fault, x.Verdict, x.Why)
				}
				for _, v := range x.Violations {
					t.Errorf("%s: %+v", x.Fault, v)
				}
				if l := x.Looked; l.Pairs == 0 || l.Tokens == 0 || l.Writes == 0 || l.Counted != 2 {
					t.Errorf("%s: hardly anything was looked at: %+v", x.Fault, l)
				}
			}
		})
	}
}

func TestWaysThatCannotBe(t *testing.T) {
	t.Parallel()
	for _, ways := range [][]string{{"carrier-pigeon"}, {WayAgent, WayAgent}} {
		cfg := quick("sqlite:"+filepath.Join(t.TempDir(), "locks.db"), "f01")
		cfg.Ways = ways
		_, err := Run(t.Context(), cfg, nil)
		var wrong *ConfigError
		if !errors.As(err, &wrong) || wrong.Field != "Ways" {
			t.Errorf("%v: %v", ways, err)
		}
	}
}

// A program that is not installed is named, with its package.
func TestInterpreterIsMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	cfg := quick("sqlite:"+filepath.Join(t.TempDir(), "locks.db"), "f01")
	cfg.Ways = []string{WayHTTP}
	_, err := Run(t.Context(), cfg, nil)
	var missing *NotInstalledError
	if !errors.As(err, &missing) || missing.Package != "python3" {
		t.Errorf("%v, want that python3 is missing", err)
	}
}
