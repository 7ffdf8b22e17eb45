//go:build unix

package textfile

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/batonhq/baton/adapters/metrics"
)

var (
	store  = metrics.Label{Name: "baton.store"}
	class  = metrics.Label{Name: "baton.class"}
	locks  = metrics.Instrument{Name: "baton.lock.acquired", Kind: metrics.Counter, Unit: "{lock}", Help: "Locks \\ of\nall.", Labels: []metrics.Label{store, class}}
	waits  = metrics.Instrument{Name: "baton.lock.wait", Kind: metrics.Histogram, Unit: "s", Help: "Waits.", Labels: []metrics.Label{store}, Buckets: []float64{0.5, 1}}
	held   = metrics.Instrument{Name: "baton.lock.held", Kind: metrics.Gauge, Unit: "{lock}", Help: "Held.", Labels: []metrics.Label{store}}
	oldest = metrics.Instrument{Name: "baton.lock.waiting.oldest", Kind: metrics.Sampled, Unit: "s", Help: "Oldest.", Labels: []metrics.Label{store}}
	unused = metrics.Instrument{Name: "baton.lock.lost", Kind: metrics.Counter, Unit: "{lock}", Help: "Lost.", Labels: []metrics.Label{store}}
	code   = metrics.Instrument{Name: "baton.command.exit_code", Kind: metrics.Gauge, Help: "Code."}
)

func made(t *testing.T, m *Metrics, i metrics.Instrument) metrics.Vector {
	t.Helper()
	v, err := m.Make(i)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestText(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	m := New("/dir/a \"b\"\\\n\xff.prom")
	wait, lock := made(t, m, waits), made(t, m, locks)
	made(t, m, unused)
	gauge := made(t, m, held)("redis")
	gauge(ctx, 1)
	gauge(ctx, -1)
	lock("redis", "z")(ctx, 1)
	lock("redis", "a\"} 1\nforged 1\\")(ctx, 1)
	lock("redis", "z")(ctx, 2) // made twice, it is one
	lock("redis", "")(ctx, 1)
	for _, v := range []float64{0.25, 0.5, 0.75, 1, 7} {
		wait("redis")(ctx, v)
	}
	if err := m.Sample(oldest, func(series func(float64, ...string)) { series(2.5, "redis"); series(1, "a\"") }); err != nil {
		t.Fatal(err)
	}
	const file = `file="a \"b\"\\\n` + "\ufffd" + `.prom"`
	want := strings.ReplaceAll(`# HELP baton_command_exit_code Code.
# TYPE baton_command_exit_code gauge
baton_command_exit_code{FILE} 7
# HELP baton_lock_acquired_total Locks \\ of\nall.
# TYPE baton_lock_acquired_total counter
baton_lock_acquired_total{store="redis",class="a\"} 1\nforged 1\\",FILE} 1
baton_lock_acquired_total{store="redis",class="z",FILE} 3
baton_lock_acquired_total{store="redis",FILE} 1
# HELP baton_lock_held Held.
# TYPE baton_lock_held gauge
baton_lock_held{store="redis",FILE} 0
# HELP baton_lock_wait_seconds Waits.
# TYPE baton_lock_wait_seconds histogram
baton_lock_wait_seconds_bucket{store="redis",FILE,le="0.5"} 2
baton_lock_wait_seconds_bucket{store="redis",FILE,le="1"} 4
baton_lock_wait_seconds_bucket{store="redis",FILE,le="+Inf"} 5
baton_lock_wait_seconds_sum{store="redis",FILE} 9.5
baton_lock_wait_seconds_count{store="redis",FILE} 5
# HELP baton_lock_waiting_oldest_seconds Oldest.
# TYPE baton_lock_waiting_oldest_seconds gauge
baton_lock_waiting_oldest_seconds{store="a\"",FILE} 1
baton_lock_waiting_oldest_seconds{store="redis",FILE} 2.5
`, "FILE", file)
	for range 10 {
		if got := string(m.Text(Value{code, 3}, Value{code, 7})); got != want {
			t.Fatalf("the text is\n%s\nwant\n%s", got, want)
		}
	}
	if v, ok := Find([]byte(want), code); !ok || v != 7 {
		t.Errorf("found %v, %v in it", v, ok)
	}
	lint(t, []byte(want))
}

// Metrics that are in no file have no label of one.
func TestTextWithoutAFile(t *testing.T) {
	t.Parallel()
	m := New("")
	bare := metrics.Instrument{Name: "baton.bare", Kind: metrics.Histogram, Help: "Bare.", Buckets: []float64{1}}
	made(t, m, bare)()(t.Context(), 0.5)
	made(t, m, locks)("redis", "")(t.Context(), 1)
	const want = `# HELP baton_bare Bare.
# TYPE baton_bare histogram
baton_bare_bucket{le="1"} 1
baton_bare_bucket{le="+Inf"} 1
baton_bare_sum{} 0.5
baton_bare_count{} 1
# HELP baton_lock_acquired_total Locks \\ of\nall.
# TYPE baton_lock_acquired_total counter
baton_lock_acquired_total{store="redis"} 1
`
	if got := string(m.Text()); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// lint asks Prometheus' own tool, if it is there.
func lint(t *testing.T, text []byte) {
	t.Helper()
	tool, err := exec.LookPath("promtool")
	if err != nil {
		t.Log("without promtool")
		return
	}
	cmd := exec.Command(tool, "check", "metrics")
	cmd.Stdin = strings.NewReader(string(text))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s\nabout\n%s", err, out, text)
	}
}

// All of Baton's instruments, each with a value, are as Prometheus wants them.
func TestEveryInstrument(t *testing.T) {
	t.Parallel()
	m := New("a.prom")
	for _, i := range metrics.Instruments() {
		values := make([]string, len(i.Labels))
		for n := range values {
			values[n] = fmt.Sprintf("value %d", n)
		}
		made(t, m, i)(values...)(t.Context(), 1)
	}
	text := m.Text()
	for _, i := range metrics.Instruments() {
		if !strings.Contains(string(text), fmt.Sprintf("\n# TYPE %s %v\n", i.Prometheus(), i.Kind)) {
			t.Errorf("no %s in\n%s", i.Prometheus(), text)
		}
	}
	lint(t, text)
	if _, err := m.Make(metrics.Instruments()[0]); err == nil {
		t.Error("an instrument was made twice")
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		want float64
		ok   bool
	}{
		{"", 0, false},
		{"# TYPE baton_command_exit_code gauge\n", 0, false},
		{"baton_command_exit_code_2{file=\"x\"} 4\nbaton_command_exit_code{file=\"x y\"} 3", 3, true},
		{"baton_command_exit_code{file=\"x\"} 1.5e+09\n", 1.5e9, true},
		{"baton_command_exit_code{file=\"x\"} NaN\n", 0, false},
		{"baton_command_exit_code{file=\"x\"} +Inf\n", 0, false},
		{"baton_command_exit_code{file=\"x\"} \x00\n", 0, false},
		{"baton_command_exit_code{", 0, false},
	} {
		if v, ok := Find([]byte(c.text), code); ok != c.ok || ok && v != c.want {
			t.Errorf("Find(%q) is %v, %v", c.text, v, ok)
		}
	}
}

func TestReplace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "a.prom")
	add := func(more string) func([]byte) []byte {
		return func(old []byte) []byte { return append(old, more...) }
	}
	for _, more := range []string{"one ", "two"} {
		if err := Replace(path, add(more)); err != nil {
			t.Fatal(err)
		}
	}
	look(t, path, "one two")
	if names, err := os.ReadDir(dir); err != nil || len(names) != 1 {
		t.Errorf("the directory has %v, %v", names, err)
	}
	if err := Replace(filepath.Join(dir, "none", "a.prom"), add("x")); err == nil {
		t.Error("no error without a directory")
	}
}

func look(t *testing.T, path, want string) {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != 0o644 {
		t.Errorf("%s has the mode %v", path, info.Mode())
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != want {
		t.Errorf("%s has %q, %v; want %q", path, text, err, want)
	}
}

// What others have put in the place of the file is neither written to nor waited for.
func TestReplaceFollowsNothing(t *testing.T) {
	t.Parallel()
	for name, put := range map[string]func(path, victim string) error{
		"a link":             func(path, victim string) error { return os.Symlink(victim, path) },
		"a link to nothing":  func(path, victim string) error { return os.Symlink(victim+".none", path) },
		"a link in the same": func(path, _ string) error { return os.Symlink(filepath.Base(path), path) },
		"another name":       func(path, victim string) error { return os.Link(victim, path) },
		"a pipe":             func(path, _ string) error { return syscall.Mkfifo(path, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path, victim := filepath.Join(dir, "a.prom"), filepath.Join(dir, "victim")
			if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := put(path, victim); err != nil {
				t.Fatal(err)
			}
			if err := Replace(path, func([]byte) []byte { return []byte("new") }); err != nil {
				t.Fatal(err)
			}
			look(t, path, "new")
			if text, err := os.ReadFile(victim); err != nil || string(text) != "precious" {
				t.Errorf("the victim has %q, %v", text, err)
			}
			if _, err := os.Lstat(victim + ".none"); err == nil {
				t.Error("what a link names was made")
			}
		})
	}
}

// A directory cannot be replaced, and nothing is left beside it.
func TestReplaceCleansUp(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "a.prom")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Replace(path, func([]byte) []byte { return []byte("new") }); err == nil {
		t.Error("a directory was replaced")
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 1 {
		t.Errorf("the directory has %v, %v", names, err)
	}
}

// Of several writers one wins, with all that it wrote.
func TestReplaceTogether(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.prom")
	text := func(n int) string { return strings.Repeat(fmt.Sprintf("line of %d\n", n), 1000) }
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			for range 20 {
				if err := Replace(path, func(old []byte) []byte {
					if first, _, _ := strings.Cut(string(old), "\n"); strings.Count(string(old), first+"\n") != 1000 && old != nil {
						t.Errorf("a mixture: %.100q", old)
					}
					return []byte(text(n))
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

func TestCountsTogether(t *testing.T) {
	t.Parallel()
	m := New("a.prom")
	lock := made(t, m, locks)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 100 {
				lock("redis", "a")(context.Background(), 1)
				m.Text()
			}
		})
	}
	all.Wait()
	if text := string(m.Text()); !strings.Contains(text, "} 800\n") {
		t.Errorf("of 800 locks there are\n%s", text)
	}
}
