package verify

import (
	"context"
	"errors"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/lab/verify/history"
	"github.com/batonhq/baton/store/memstore"
)

// quick is a run of a few seconds that a busy machine does not make invalid: E, F and B do
// not depend on speed, and L has enough time.
func quick(url string, faults ...string) Config {
	return Config{
		URL: url, Faults: faults, For: 2 * time.Second, TTL: time.Second, Seed: 1, Clients: 3,
		Bound: 30 * time.Second, Stall: time.Minute,
	}
}

func run(t *testing.T, cfg Config) *Report {
	t.Helper()
	r, err := Run(t.Context(), cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Trials) != len(cfg.Faults) {
		t.Fatalf("%d trials of %d faults", len(r.Trials), len(cfg.Faults))
	}
	return r
}

// proves is Run for trials that must prove something. It repeats invalid ones, which a busy
// machine causes.
func proves(t *testing.T, cfg Config) (all []*Trial) {
	t.Helper()
	for attempt := 1; len(cfg.Faults) > 0; attempt++ {
		trials := run(t, cfg).Trials
		cfg.Faults = nil
		for _, x := range trials {
			if x.Verdict == Invalid && attempt < 3 {
				cfg.Faults = append(cfg.Faults, x.Fault)
				t.Logf("%s: again, because %v", x.Fault, x.Why)
				continue
			}
			all = append(all, x)
		}
	}
	return all
}

// holds demands that there is no violation and that much was checked.
func holds(t *testing.T, cfg Config) {
	t.Helper()
	for _, x := range proves(t, cfg) {
		t.Logf("%s: %d rounds, %+v", x.Fault, x.Rounds, x.Looked)
		if x.Verdict != Held {
			t.Errorf("%s: %s %v", x.Fault, x.Verdict, x.Why)
			for _, v := range x.Violations {
				t.Errorf("%s: %+v", x.Fault, v)
			}
		}
		l := x.Looked
		if x.Rounds == 0 || l.Granted == 0 || l.Pairs == 0 || l.Tokens == 0 || l.Writes == 0 || l.Counted != 2 || l.Admits == 0 || l.Replayed == 0 {
			t.Errorf("%s: hardly anything was looked at: %+v", x.Fault, l)
		}
	}
}

// Several faults set in at the same time, and are over at the end of the clients' work.
func TestTogetherHolds(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	testserver.NeedRedis(t)
	cfg := quick("", "server-kill+f04+f07")
	cfg.Local = "redis"
	x := proves(t, cfg)[0]
	if x.Fault != "f04+f07+f10" || x.Name != "long-stop+reply-cut+server-kill" || x.Claim != "+++" || !strings.Contains(x.Repeat, " --fault f04+f07+f10 ") {
		t.Errorf("%s %s, %s: %s", x.Fault, x.Name, x.Claim, x.Repeat)
	}
	if x.Verdict != Held || x.Rounds == 0 {
		t.Errorf("%s %v %+v, %d rounds", x.Verdict, x.Why, x.Violations, x.Rounds)
	}
	all := history.Episodes(x.History.Marks)
	if len(all) != 3*x.Rounds {
		t.Errorf("%d faults in %d rounds", len(all), x.Rounds)
	}
	for _, e := range all {
		if !slices.ContainsFunc(all, func(o history.Episode) bool { return o != e && o.From < e.To && e.From < o.To }) {
			t.Errorf("nothing else was broken while %s", e.Text)
		}
		if healed := x.History.Mark(history.Healed); e.To > healed {
			t.Errorf("%s until after all was healed", e.Text)
		}
	}
}

// A store in the memory of one process has one client.
func TestMemoryHolds(t *testing.T) {
	t.Parallel()
	cfg := quick("", "f01")
	cfg.Local, cfg.Clients = "memory", 0
	holds(t, cfg)
}

// An end of the context ends the run, and leaves no processes and files.
func TestRunEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	cfg := quick("sqlite:"+filepath.Join(t.TempDir(), "locks.db"), "f04")
	cfg.For = time.Hour
	r, err := Run(ctx, cfg, func(s Step) {
		if strings.HasPrefix(s.Doing, "long-stop") {
			cancel(enough)
		}
	})
	if !errors.Is(err, enough) || r == nil || len(r.Trials) != 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestBadConfig(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		change func(*Config)
		field  string
	}{
		{func(c *Config) { c.Local = "redis" }, "URL"},
		{func(c *Config) { c.URL = "" }, "URL"},
		{func(c *Config) { c.URL, c.Local = "", "postgers" }, "Local"},
		{func(c *Config) { c.Faults = []string{"f02", "f99"} }, "Faults"},
		{func(c *Config) { c.Faults = []string{"f02+f99"} }, "Faults"},
		{func(c *Config) { c.Faults = []string{"f02+kill"} }, "Faults"},
		{func(c *Config) { c.Faults = []string{"f10+f11"} }, "Faults"},
		{func(c *Config) { c.For = -1 }, "For"},
		{func(c *Config) { c.TTL = -1 }, "TTL"},
		{func(c *Config) { c.TTL = time.Hour }, "TTL"},
		{func(c *Config) { c.Clients = MaxClients + 1 }, "Clients"},
		{func(c *Config) { c.URL = "memory:" }, "Clients"},
	} {
		cfg := quick("sqlite:"+filepath.Join(t.TempDir(), "locks.db"), "f01")
		c.change(&cfg)
		_, err := Run(t.Context(), cfg, nil)
		var wrong *ConfigError
		if !errors.As(err, &wrong) || wrong.Field != c.field {
			t.Errorf("%v, want one about %s", err, c.field)
		}
	}
}

func TestAddress(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"redis://h":                         "redis://|h:6379|",
		"redis://u:p@h:1/2?prefix=x":        "redis://u:p@|h:1|/2?prefix=x",
		"postgres://[::1]/db":               "postgres://|[::1]:5432|/db",
		"mysql://u@h?connect-timeout=1s":    "mysql://u@|h:3306|?connect-timeout=1s",
		"postgres://h1,h2/db":               "",
		"postgres:///db?host=/run":          "",
		"postgres://h/db?sslmode=require":   "postgres://|h:5432|/db?sslmode=require",
		"postgres://h/db?sslmode=verify-ca": "",
		"mysql://h/db?tls=true":             "",
		"rediss://h":                        "",
		"redis+sentinel://h/m":              "",
		"sqlite:x.db":                       "",
	} {
		before, at, after, ok := address(url)
		if got := before + "|" + at + "|" + after; ok != (want != "") || ok && got != want {
			t.Errorf("%s: %s, %v", url, got, ok)
		}
	}
}

func TestSecrets(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"redis://user:hunter%2F22@h/1": "hunter%2F22 hunter/22",
		"redis://user@h":               "",
		"redis://h":                    "",
		"sqlite:a:bcdefghi@x":          "",
	} {
		if got := strings.Join(secretsOf(url), " "); got != want {
			t.Errorf("%s: %q", url, got)
		}
	}
}

// By the tokens, the checks know which leases were handed on inside a process.
func TestTokensOfHandOvers(t *testing.T) {
	t.Parallel()
	l, err := baton.New(memstore.New(), baton.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var tokens []int64 // in the order of the grants: the lock guards them
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for range 100 {
				err := l.Do(t.Context(), "k", func(_ context.Context, lease *baton.Lease) error {
					tokens = append(tokens, lease.Token())
					runtime.Gosched()
					return nil
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	workers.Wait()
	handed, last := 0, int64(0)
	for _, token := range tokens {
		switch {
		case token == last+1 && token%tokensPerGrant != 0:
			handed++
		case token <= last || token%tokensPerGrant != 0:
			t.Fatalf("token %d after %d is neither the store's nor that of a hand-over", token, last)
		}
		last = token
	}
	if handed == 0 {
		t.Errorf("nothing was handed on among %d leases", len(tokens))
	}
}

// A report names the store, not the proxy through which a client reached it.
func TestReportNamesTheStore(t *testing.T) {
	t.Parallel()
	const url = "redis://127.0.0.1:1"
	p, err := visit(url, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	r := &runner{cfg: Config{URL: url}, place: p}
	if p.url(0) == url || r.newReport().URL != url {
		t.Errorf("a client has %s, the report %s", p.url(0), r.newReport().URL)
	}
}
