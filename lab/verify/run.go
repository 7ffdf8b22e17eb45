// Package verify tries to break Baton. It starts processes that use locks, read locks,
// permits and limits through the public API and log what they see. It breaks those processes,
// their connections to the servers, and the servers, and then checks the logs for events that
// must never happen.
//
// A verdict is no proof: it says only that a promise held in that many operations.
package verify

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/lab/verify/deploy"
	"github.com/batonhq/baton/lab/verify/fault"
)

// Config says what to verify, and how.
type Config struct {
	// URL is the store's. The store may be in use: Run does not break its servers, and uses
	// only keys of its own.
	URL string

	// Local is a kind of store (deploy.Kinds) whose servers Run starts and breaks. It
	// replaces URL.
	Local string

	// Faults are the IDs or names of the faults to try, one after another; faults that are
	// joined by a plus set in together. Defaults to all that can be tried.
	Faults []string

	// For is how long the clients work under one fault. Preparation and checks take some
	// seconds more. Defaults to 30s.
	For time.Duration

	// Seed decides all random choices, but not the timing, which depends on the system.
	// Defaults to a random one.
	Seed uint64

	// Clients is the number of processes: 1 to 64. Defaults to 4 to 8, by the
	// seed; to 1 for a store that processes do not share.
	Clients int

	// Ways are the ways in which clients reach the store (see the variable Ways), in
	// turn: the first client in the first way, and so on. Defaults to WayLibrary only.
	Ways []string

	// TTL is that of the locks. Defaults to 2s, or more if a fault needs a longer one.
	TTL time.Duration

	// Brief bounds every hold to some milliseconds, so that there are many acquisitions.
	Brief bool

	// Bound is how long, beyond the TTL, a waiter may wait after the last fault. Defaults to
	// a bound that suits the store.
	Bound time.Duration

	// Stall bounds how late the machine may let a process run, outside of the fault. A
	// longer stall makes the run invalid. Defaults to 200ms.
	Stall time.Duration

	// Keep is a folder for all files of the run. Run makes it; if it exists, it must be
	// empty. Defaults to a temporary folder, which Run removes.
	Keep string

	defect string // planted by tests
	keys   int    // of locks; drawn if it is 0
	keeps  bool   // no lease may be lost under the fault
}

// MaxClients bounds Config.Clients.
const MaxClients = 64

// roundTrips bounds the round trips until a waiter has a free lock: a hint, a renewal, and
// the same again after a waiter that has gone.
const roundTrips = 5

const defaultTTL = 2 * time.Second

const defaultStall = 200 * time.Millisecond

// maxTTL bounds the duration of a run.
const maxTTL = time.Minute

// A ConfigError is an invalid field of Config.
type ConfigError struct{ Field, Reason string }

func (e *ConfigError) Error() string { return "verify: config: " + e.Field + " " + e.Reason }

// complete sets the defaults and checks the fields.
func (c *Config) complete() error {
	if c.For == 0 {
		c.For = 30 * time.Second
	}
	if c.Stall == 0 {
		c.Stall = defaultStall
	}
	if c.Seed == 0 {
		c.Seed = rand.Uint64N(1_000_000) + 1
	}
	switch {
	case (c.URL == "") == (c.Local == ""):
		return &ConfigError{"URL", "or Local is to be given, and not both"}
	case c.For < 0:
		return &ConfigError{"For", fmt.Sprintf("is %v, negative", c.For)}
	case c.TTL < 0:
		return &ConfigError{"TTL", fmt.Sprintf("is %v, negative", c.TTL)}
	case c.TTL > maxTTL:
		return &ConfigError{"TTL", fmt.Sprintf("is %v: a fault lasts for twice of it and more, so it is at most %v", c.TTL, maxTTL)}
	case c.Clients < 0 || c.Clients > MaxClients:
		return &ConfigError{"Clients", fmt.Sprintf("is %d: 1 to %d are possible", c.Clients, MaxClients)}
	}
	for i, way := range c.Ways {
		switch {
		case !slices.Contains(Ways, way):
			return &ConfigError{"Ways", fmt.Sprintf("has %q: there are %s", way, strings.Join(Ways, ", "))}
		case slices.Contains(c.Ways[:i], way):
			return &ConfigError{"Ways", "has " + way + " twice"}
		}
	}
	return nil
}

// faults finds the faults with the configured names. Without names it returns all.
func (r *runner) faults() ([]fault.Fault, error) {
	names := r.cfg.Faults
	if len(names) == 0 && r.fronted() {
		return fault.WithFronts(), nil
	}
	if len(names) == 0 {
		return fault.All(), nil
	}
	var found []fault.Fault
	for _, name := range names {
		f, err := fault.Find(name)
		if err != nil {
			return nil, &ConfigError{"Faults", "has " + err.Error()}
		}
		if !slices.ContainsFunc(found, func(g fault.Fault) bool { return g.ID == f.ID }) {
			found = append(found, f)
		}
	}
	return found, nil
}

// A Step is the progress of Run.
type Step struct {
	Fault string // its ID
	N, Of int    // of the faults
	Doing string
}

// A runner is one Run.
type runner struct {
	cfg      Config
	dir      string
	asked    time.Duration // the configured TTL; cfg has the trial's
	options  deploy.Options
	place    *place
	store    driver.Store // of the conductor
	traits   driver.Traits
	bound    time.Duration
	secrets  []string
	step     Step
	show     func(Step)
	told     []string // keys on the started servers that were already reported
	cleanups []func()
}

func (r *runner) cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

func (r *runner) progress(format string, args ...any) {
	r.step.Doing = fmt.Sprintf(format, args...)
	r.show(r.step)
}

// Run tries all faults of the configuration and reports the verdicts. It starts this program
// again for its clients: Main must be the first function that the program calls. progress may
// be nil.
//
// An error without a report means that there is no result. With a report it means that ctx
// ended early; the report then has the finished faults. When Run returns, its processes have
// ended, and its locks are released if the store can be reached. Other locks expire within
// the TTL.
func Run(ctx context.Context, cfg Config, progress func(Step)) (*Report, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	r := &runner{cfg: cfg, asked: cfg.TTL, show: progress}
	if progress == nil {
		r.show = func(Step) {}
	}
	defer func() {
		for i := len(r.cleanups) - 1; i >= 0; i-- {
			r.cleanups[i]()
		}
	}()
	all, err := r.faults()
	if err != nil {
		return nil, err
	}
	r.prepare(all)
	if err := r.open(ctx); err != nil {
		return nil, err
	}
	report, bound := r.newReport(), r.bound
	for i, f := range all {
		r.step = Step{Fault: f.ID, N: i + 1, Of: len(all)}
		r.cfg.TTL, r.bound = ttlOf(r.asked, f), bound+roundTrips*f.RoundTrip
		began := time.Now()
		t := r.newTrial(f)
		err := t.open()
		if err == nil {
			if lacks := f.Needs(t.scene()); lacks != "" {
				t.register.close()
				t.closeFronts()
				t.result.skip(r.cfg.Local, lacks)
				report.Trials = append(report.Trials, t.result)
				continue
			}
			err = t.run(ctx)
		}
		if ctx.Err() != nil {
			return report, context.Cause(ctx)
		}
		if err != nil {
			t.result.invalid("%v", err)
		}
		t.result.Took = time.Since(began)
		t.result.decide(r.cfg.Local)
		report.Trials = append(report.Trials, t.result)
	}
	return report, nil
}

// prepare collects the servers' requirements of all faults.
func (r *runner) prepare(all []fault.Fault) {
	for _, f := range all {
		r.options.Clocks, r.options.Disks = r.options.Clocks || f.Clocks, r.options.Disks || f.Disks
		r.options.TTL = max(r.options.TTL, ttlOf(r.asked, f))
	}
	r.cfg.TTL = r.options.TTL
}

// ttlOf is the TTL under a fault, given the configured TTL, or 0.
func ttlOf(asked time.Duration, f fault.Fault) time.Duration {
	return cmp.Or(asked, max(defaultTTL, f.TTL))
}

// open makes the private folder, starts servers if the run needs them, and opens the store.
func (r *runner) open(ctx context.Context) (err error) {
	if r.dir = r.cfg.Keep; r.dir == "" {
		if r.dir, err = os.MkdirTemp("", "baton-verify-"); err != nil {
			return err
		}
		r.cleanup(func() { _ = os.RemoveAll(r.dir) })
	} else if err := fresh(r.dir); err != nil {
		return err
	}
	wanted := r.cfg.Clients
	switch {
	case r.cfg.Local == "memory" && wanted > 1:
		return oneClient(wanted, r.cfg.Local)
	case r.cfg.Local == "memory":
		r.cfg.Clients = 1
	case wanted == 0:
		r.cfg.Clients = 4 + rand.New(rand.NewPCG(r.cfg.Seed, 0)).IntN(5)
	}
	if err := r.install(); err != nil {
		return err
	}
	if r.cfg.Local != "" {
		err = r.settle()
	} else {
		r.bound = r.cfg.Bound
		r.place, err = visit(r.cfg.URL, r.positions())
	}
	if err != nil {
		return err
	}
	r.cleanup(r.place.close)
	r.secrets = secretsOf(r.place.url(0))

	opening, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	store, err := openStore(opening, cmp.Or(r.place.direct, r.place.url(0)))
	if err != nil {
		return err
	}
	r.store, r.traits = store, store.Traits()
	r.cleanup(func() { _ = store.Close() })
	if r.bound == 0 {
		r.bound = boundOf(r.cfg.URL, r.traits)
	}
	if err := check.TTL("ttl", r.cfg.TTL, r.traits); err != nil {
		return &ConfigError{"TTL", fmt.Sprintf("is %v: %s accepts %v to %v", r.cfg.TTL, r.traits.Store, r.traits.MinTTL, r.traits.MaxTTL)}
	}
	switch {
	case r.fronted() && !r.traits.Processes:
		return &ConfigError{"Ways", fmt.Sprintf("has others than %s: processes do not share a store of %s", WayLibrary, r.traits.Store)}
	case slices.Contains(r.cfg.Ways, WayHTTP) && r.traits.Sessions:
		return &ConfigError{"Ways", fmt.Sprintf("has %s: %s ties locks to the process that took them, so only %s is possible", WayHTTP, r.traits.Store, WayAgent)}
	}
	if !r.traits.Processes {
		if wanted > 1 {
			return oneClient(wanted, r.traits.Store)
		}
		r.cfg.Clients, r.place.direct = 1, ""
	}
	return nil
}

// fresh makes a folder. If it exists, it must be empty.
func fresh(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	files, err := os.ReadDir(dir)
	if err == nil && len(files) > 0 {
		err = &ConfigError{"Keep", fmt.Sprintf("is %s, which is not empty", dir)}
	}
	return err
}

func oneClient(wanted int, store string) error {
	return &ConfigError{"Clients", fmt.Sprintf("is %d: processes do not share a store of %s", wanted, store)}
}

// settle starts servers.
func (r *runner) settle() error {
	kind, err := deploy.Find(r.cfg.Local)
	if err != nil {
		return &ConfigError{"Local", "is wrong: " + err.Error()}
	}
	if r.cfg.TTL > deploy.LongestTTL {
		return &ConfigError{"TTL", fmt.Sprintf("is %v: servers of our own are made for %v at most", r.cfg.TTL, deploy.LongestTTL)}
	}
	r.bound = cmp.Or(r.cfg.Bound, kind.Bound(r.cfg.TTL))
	r.progress("starting %s", kind.Does)
	r.options.Clients = r.positions()
	r.place, err = settle(r.cfg.Local, r.options)
	return err
}

// boundOf is how long a waiter may wait beyond the TTL without a fault: a dead process's
// queue position costs 3 s, and the machine is busy. A session of ZooKeeper may outlive its
// process for longer.
func boundOf(storeURL string, traits driver.Traits) time.Duration {
	bound := driver.WaiterTTL + driver.ClaimTTL + 2*time.Second
	if traits.Sessions {
		session := 30 * time.Second
		if _, query, ok := strings.Cut(storeURL, "?"); ok {
			if values, err := url.ParseQuery(query); err == nil {
				if d, err := time.ParseDuration(values.Get("session")); err == nil {
					session = d
				}
			}
		}
		bound += session
	}
	return bound
}

// secretsOf returns the password in a URL, encoded and decoded. It leaves out short
// passwords, because other text would match them.
func secretsOf(storeURL string) (secrets []string) {
	_, rest, ok := strings.Cut(storeURL, "://")
	if !ok {
		return nil
	}
	if end := strings.IndexAny(rest, "/?"); end >= 0 {
		rest = rest[:end]
	}
	credentials, _, ok := cutLast(rest, "@")
	if !ok {
		return nil
	}
	_, password, _ := strings.Cut(credentials, ":")
	for _, s := range []string{password, unescape(password)} {
		if len(s) >= 6 {
			secrets = append(secrets, s)
		}
	}
	return secrets
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

func unescape(s string) string {
	if plain, err := url.PathUnescape(s); err == nil {
		return plain
	}
	return s
}
