package fault

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/lab/verify/deploy"
	"github.com/batonhq/baton/lab/verify/history"
	"github.com/batonhq/baton/open"
)

// site is a deployment with two clients, whose TCP connections all go through proxies.
type site struct {
	*deploy.Deployment
	ttl    time.Duration
	clocks []time.Duration // their offsets before the fault
	leader int             // before the fault
	held   *baton.Lease    // since before the fault
	stores [2]driver.Store
	locks  [2]*baton.Locker
}

// starting is locked while servers start: all at once take longer.
var starting sync.Mutex

// openStore opens a store, on a machine that may be busy.
func openStore(t *testing.T, url string) driver.Store {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		store, err := open.Store(t.Context(), url)
		if err == nil {
			return store
		}
		if !errors.Is(err, baton.ErrUnavailable) || time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

func newSite(t *testing.T, kind string) *site {
	t.Helper()
	starting.Lock()
	defer starting.Unlock()
	s := &site{Deployment: deploy.Start(t, kind, 2), ttl: time.Second}
	if strings.HasPrefix(kind, "etcd") {
		s.ttl *= 2 // a server grants no shorter one
	}
	for i := range s.locks {
		store := openStore(t, s.URL(i))
		t.Cleanup(func() { store.Close() })
		var err error
		if s.locks[i], err = baton.New(store, baton.Config{TTL: s.ttl}); err != nil {
			t.Fatal(err)
		}
		s.stores[i] = store
	}
	return s
}

// try locks and unlocks a key that no other client wants, within a time that is enough if the store
// works.
func (s *site) try(ctx context.Context, client int, key string, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	lease, err := s.locks[client].Lock(ctx, key)
	if err != nil {
		return err
	}
	return lease.Unlock()
}

// serves reports an error unless every client gets a lock.
func (s *site) serves(t *testing.T, key string) {
	t.Helper()
	for i := range s.locks {
		err := errors.New("not tried")
		for end := time.Now().Add(time.Minute); err != nil && time.Now().Before(end); {
			err = s.try(t.Context(), i, key, 20*time.Second)
		}
		if err != nil {
			t.Errorf("client %d after it: %v", i, err)
		}
	}
}

// looks check that a fault is visible.
var looks = map[string]func(t *testing.T, s *site){
	"f10": func(t *testing.T, s *site) {
		if len(s.Servers) == 1 {
			s.isOut(t)
		}
	},
	"f11": func(t *testing.T, s *site) {
		if len(s.Servers) == 1 {
			s.isOut(t)
		}
	},
	"f12": func(*testing.T, *site) {},
	"f13": func(*testing.T, *site) {},
	"f14": func(t *testing.T, s *site) { s.noMajority(t) },
	"f15": func(t *testing.T, s *site) { s.jumped(t, time.Hour) },
	"f16": func(t *testing.T, s *site) { s.jumped(t, -time.Hour) },
	"f18": func(t *testing.T, s *site) {
		for i, end := 0, time.Now().Add(time.Minute); time.Now().Before(end); i++ {
			// A new key each time: a released lock may leave its space to the next one.
			if err := s.try(t.Context(), 0, fmt.Sprint("full ", i), time.Second); err != nil {
				return
			}
		}
		t.Error("there is still room on the disk")
	},
	"f19": func(*testing.T, *site) {},
	"f20": func(*testing.T, *site) {},
	"f21": func(*testing.T, *site) {},
	"f23": func(*testing.T, *site) {},
	"f25": func(*testing.T, *site) {},
	"f29": func(t *testing.T, s *site) { s.stepped(t) },
	"f30": func(*testing.T, *site) {},
	"f31": func(t *testing.T, s *site) { s.isOut(t) },
	"f33": func(*testing.T, *site) {},
}

// afterwards are checks for the time after a fault.
var afterwards = map[string]func(t *testing.T, s *site){
	"f12": func(t *testing.T, s *site) {
		if now, err := s.Leader(); err != nil || now == s.leader {
			t.Errorf("server %d leads, as before: %v", now, err)
		}
	},
	"f13": func(t *testing.T, s *site) {
		if now, err := s.Leader(); err != nil || now == s.leader {
			t.Errorf("server %d leads, as before: %v", now, err)
		}
	},
	"f20": func(t *testing.T, s *site) {
		if s.held.Err() == nil {
			t.Error("a lock that was held before is still there")
		}
	},
}

// remember records the state that the fault will change.
func (s *site) remember(t *testing.T, fault string) {
	t.Helper()
	var err error
	if s.held, err = s.locks[0].Lock(t.Context(), "held/"+fault); err != nil {
		t.Fatal(err)
	}
	if s.Leader != nil {
		if s.leader, err = s.Leader(); err != nil {
			t.Error(err)
		}
	}
	if s.Shift != nil {
		s.clocks = s.offsets(t)
	}
}

func (s *site) isOut(t *testing.T) {
	t.Helper()
	if err := s.try(t.Context(), 0, "out", 300*time.Millisecond); err == nil {
		t.Error("the server answers")
	}
}

func (s *site) noMajority(t *testing.T) {
	t.Helper()
	if err := s.try(t.Context(), 0, "minority", 300*time.Millisecond); err == nil {
		t.Error("a lock was granted without a majority")
	}
}

// offsets are the servers' clock errors, as clients see them.
func (s *site) offsets(t *testing.T) (offsets []time.Duration) {
	t.Helper()
	for _, p := range s.Proxies(0) {
		url := s.URL(0)
		if s.Quorum {
			url = "redis://" + p.Addr
		}
		store := openStore(t, url)
		at, err := store.(driver.Clock).ServerTime(t.Context())
		if err != nil {
			t.Error(err)
		}
		offsets = append(offsets, time.Until(at))
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}
	return offsets
}

// jumped reports an error unless the clock of one server in a quorum, or else of all, jumped by want.
func (s *site) jumped(t *testing.T, want time.Duration) {
	t.Helper()
	jumps := 0
	now := s.offsets(t)
	for i, by := range now {
		if d := by - s.clocks[i]; (d - want).Abs() < 5*time.Minute {
			jumps++
		}
	}
	wanted := len(now)
	if s.Quorum {
		wanted = 1
	}
	if jumps != wanted {
		t.Errorf("the clocks were off by %v and are by %v, want %d that have jumped by %v", s.clocks, now, wanted, want)
	}
}

// stepped reports an error unless clocks stepped forward or back by more than a request takes: the
// clock of one server in a quorum, or else of all.
func (s *site) stepped(t *testing.T) {
	t.Helper()
	now, wanted, steps := s.offsets(t), 1, 0
	if !s.Quorum {
		wanted = len(now)
	}
	for i, by := range now {
		if (by - s.clocks[i]).Abs() > s.ttl/4 {
			steps++
		}
	}
	if steps < wanted {
		t.Errorf("the clocks were off by %v and are by %v, want %d that have jumped", s.clocks, now, wanted)
	}
}

// Every fault breaks what it says on every kind that supports it, and afterwards every client gets
// locks.
func TestServerFaults(t *testing.T) {
	testserver.Long(t)
	var kinds sync.WaitGroup
	defer kinds.Wait()
	for _, k := range deploy.Kinds {
		if k.Name == "memory" {
			continue // one client, and no server
		}
		// All at once: most of the time they wait for the end of faults.
		kinds.Go(func() {
			t.Run(k.Name, func(t *testing.T) {
				s := newSite(t, k.Name)
				s.serves(t, "before")
				for _, f := range serverFaults {
					var broke, healed int
					counted, calls := count(s.Deployment)
					scene := &Scene{
						Clients: []Client{nil, nil}, Proxies: s.Proxies, Servers: counted, TTL: s.ttl, Rand: rand.New(rand.NewPCG(1, 2)),
						Mark: func(what history.MarkWhat, text string) {
							if what == history.Breaks {
								broke++
								looks[f.ID](t, s)
							} else {
								healed++
							}
						},
					}
					lacks := f.Needs(scene)
					why := WhyLeft(k.Name, f.ID)
					switch may := mayRun(k.Name, f.ID); {
					case lacks == "" && !may:
						t.Errorf("%s runs, and nothing is claimed", f.ID)
					case lacks == "" && why != "":
						t.Errorf("%s runs, but is said to be left: %s", f.ID, why)
					case lacks != "" && may && why == "":
						unableTo(t, f, lacks)
					}
					if lacks != "" {
						continue
					}
					s.remember(t, f.ID)
					began := time.Now()
					if err := f.Run(t.Context(), scene); err != nil {
						t.Errorf("%s: %v", f.ID, err)
					}
					if (f.ID == "f19" || f.ID == "f21") && calls.Load() == 0 {
						t.Errorf("%s: never done", f.ID)
					}
					marks := 1
					if f.ID == "f25" {
						marks = 2 // the snapshot is a stop, too
					}
					if broke != marks || healed != marks {
						t.Errorf("%s: marked %d times that it breaks, %d times that it heals", f.ID, broke, healed)
					}
					s.serves(t, fmt.Sprint("after ", f.ID))
					if after := afterwards[f.ID]; after != nil {
						after(t, s)
					}
					t.Logf("%s %s: %v", f.ID, f.Name, time.Since(began).Round(time.Millisecond))
					if t.Failed() {
						return
					}
				}
			})
		})
	}
}

// count counts the calls of repeated actions.
func count(d *deploy.Deployment) (*deploy.Deployment, *atomic.Int64) {
	counted, calls := *d, new(atomic.Int64)
	if d.Scripts != nil {
		counted.Scripts = func() error {
			calls.Add(1)
			return d.Scripts()
		}
	}
	if d.Deafen != nil {
		counted.Deafen = func() error {
			calls.Add(1)
			return d.Deafen()
		}
	}
	return &counted, calls
}

// unableTo handles a fault that needs what only a machine with all servers has.
func unableTo(t *testing.T, f Fault, lacks string) {
	t.Helper()
	switch f.ID {
	case "f15", "f16", "f29":
		testserver.NewClock(t)
	case "f32":
		return // these servers are not started for it: see deploy.TestStall
	case "f18":
		if runtime.GOOS != "linux" || os.Geteuid() != 0 {
			return
		}
	}
	t.Errorf("%s lacks %s", f.ID, lacks)
}

// A fault ends with its context, and heals.
func TestServerFaultsEndWithTheirContext(t *testing.T) {
	t.Parallel()
	s := newSite(t, "redis")
	for _, f := range serverFaults {
		ctx, cancel := context.WithCancel(t.Context())
		scene := &Scene{
			Clients: []Client{nil, nil}, Proxies: s.Proxies, Servers: s.Deployment, TTL: time.Hour, Rand: rand.New(rand.NewPCG(1, 2)),
			Mark: func(history.MarkWhat, string) { cancel() },
		}
		if f.ID == "f25" {
			cancel() // while the fault waits before it breaks
		}
		if f.Needs(scene) != "" {
			cancel()
			continue
		}
		if err := f.Run(ctx, scene); err != nil {
			t.Errorf("%s: %v", f.ID, err)
		}
		s.serves(t, fmt.Sprint("after ", f.ID))
		cancel()
	}
}
