package sqlitestore

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
)

// wellPlaced is a place where nothing is wrong.
func wellPlaced(string) surroundings { return surroundings{free: 1 << 40, links: 1} }

func at(a surroundings) option {
	return func(o *options) { o.around = func(string) surroundings { return a } }
}

func examine(t *testing.T, s *Store) map[string]driver.Finding {
	t.Helper()
	found, err := s.Examine(t.Context())
	if err != nil {
		t.Fatalf("examine: %v", err)
	}
	m := map[string]driver.Finding{}
	for _, f := range found {
		if f.What == "" || f.Mend == "" {
			t.Errorf("a finding without words: %+v", f)
		}
		m[f.Name] = f
	}
	return m
}

func TestExamineSoundFile(t *testing.T) {
	t.Parallel()
	s := openNew(t, func(o *options) { o.around = wellPlaced })
	if found := examine(t, s); len(found) != 0 {
		t.Errorf("found in a sound file: %v", found)
	}
}

// TestExamineFindsPlantedFaults plants each fault alone and demands that it,
// and nothing else, is found.
func TestExamineFindsPlantedFaults(t *testing.T) {
	t.Parallel()
	run := func(queries ...string) func(*testing.T, *Store) {
		return func(t *testing.T, s *Store) {
			for _, q := range queries {
				if err := s.do(t.Context(), func(*tx) error {
					_, err := s.conn.ExecContext(context.Background(), q)
					return err
				}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	// Pragmas take effect outside of transactions only.
	pragma := func(q string) func(*testing.T, *Store) {
		return func(t *testing.T, s *Store) {
			if _, err := s.conn.ExecContext(t.Context(), q); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		name     string
		severity driver.Severity
		opt      option
		plant    func(*testing.T, *Store)
	}{
		{"tmpfs", driver.Unsafe, at(surroundings{fs: "tmpfs", free: -1}), nil},
		{"container-layer", driver.Note, at(surroundings{fs: "overlay", free: -1}), nil},
		{"disk-space", driver.Unsafe, at(surroundings{free: 5 << 20}), nil},
		{"suspended", driver.Note, at(surroundings{free: -1, slept: time.Hour}), nil},
		{"hard-links", driver.Unsafe, func(o *options) {
			o.around = func(path string) surroundings { return surroundings{free: -1, links: lookAround(path).links} }
		}, func(t *testing.T, s *Store) {
			if err := os.Link(s.path, filepath.Join(t.TempDir(), "other.db")); err != nil {
				t.Fatal(err)
			}
		}},
		{"permissions", driver.Unsafe, nil, func(t *testing.T, s *Store) { chmod(t, s.path, 0o666) }},
		{"permissions-group", driver.Note, nil, func(t *testing.T, s *Store) { chmod(t, s.path, 0o660) }},
		{"directory", driver.Unsafe, nil, func(t *testing.T, s *Store) { chmod(t, filepath.Dir(s.path), 0o777) }},
		{"directory", driver.Note, nil, func(t *testing.T, s *Store) { chmod(t, filepath.Dir(s.path), 0o777|os.ModeSticky) }},
		{"log-size", driver.Slow, nil, func(t *testing.T, s *Store) {
			if err := os.Truncate(s.path+"-wal", longLog+1); err != nil {
				t.Fatal(err)
			}
		}},
		{"sockets", driver.Slow, func(o *options) { o.deaf = true }, nil},
		{"journal-mode", driver.Unsafe, nil, pragma("PRAGMA journal_mode = DELETE")},
		{"synchronous", driver.Unsafe, nil, pragma("PRAGMA synchronous = NORMAL")},
		{"shared-database", driver.Slow, nil, run("CREATE TABLE invoice (id INTEGER)", "CREATE TABLE batonx (id INTEGER)")},
		{"replaced", driver.Unsafe, nil, func(t *testing.T, s *Store) {
			if err := os.Rename(s.path, s.path+".old"); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			opts := []option{func(o *options) { o.around = wellPlaced }}
			if c.opt != nil {
				opts = append(opts, c.opt)
			}
			s := openNew(t, opts...)
			if c.plant != nil {
				c.plant(t, s)
			}
			found := examine(t, s)
			f, ok := found[c.name]
			if !ok || f.Severity != c.severity || len(found) != 1 {
				t.Errorf("found %v, want %s (%v) alone", found, c.name, c.severity)
			}
		})
	}
}

// A command that mends is one that a shell takes as it is, whatever the file is called.
func TestMendsAreQuoted(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "it's $(a) b.db")
	s, err := openWith(t.Context(), path, func(o *options) { o.around = wellPlaced })
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	chmod(t, path, 0o666)
	mend := examine(t, s)["permissions"].Mend
	if out, err := exec.CommandContext(t.Context(), "sh", "-c", mend).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", mend, err, out)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o664 {
		t.Errorf("%s left %v, %v", mend, info.Mode(), err)
	}
}

func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// What Open refuses as unsafe says so.
func TestRefusalsAreFindings(t *testing.T) {
	t.Parallel()
	for name, opt := range map[string]option{
		"network-filesystem": func(o *options) { o.remote = func(string) (string, error) { return "nfs", nil } },
		"time-namespace":     func(o *options) { o.shifted = func() bool { return true } },
	} {
		_, err := openWith(t.Context(), filepath.Join(t.TempDir(), "locks.db"), opt)
		refused, ok := errors.AsType[driver.Refusal](err)
		if !ok {
			t.Errorf("%s: %v is no refusal", name, err)
			continue
		}
		if f, ok := refused.Finding(); !ok || f.Name != name || f.Severity != driver.Unsafe || f.Mend == "" {
			t.Errorf("%s: %+v", name, f)
		}
	}
	_, err := Open(t.Context(), t.TempDir())
	if refused, ok := errors.AsType[driver.Refusal](err); ok {
		if f, ok := refused.Finding(); ok {
			t.Errorf("a wrong path is taken for an unsafe one: %+v", f)
		}
	}
}

// The system's own answers are those that the findings are made of.
func TestLookAround(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if a := lookAround(path); a.links != 1 || a.free < 0 || a.slept < 0 {
		t.Errorf("around a file: %+v", a)
	}
	if _, err := os.Stat("/dev/shm"); err == nil { // every Linux has it in memory
		if a := lookAround("/dev/shm"); a.fs != "tmpfs" {
			t.Errorf("/dev/shm: %+v", a)
		}
	}
}
