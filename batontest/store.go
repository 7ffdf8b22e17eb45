package batontest

import (
	"context"
	"iter"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/store/memstore"
)

// A Store is a store in memory for one test. It is a driver.Store with all abilities, a
// driver.Records and a limits.Store: for baton.New, once.New and ratelimit.New. All
// methods are safe for concurrent use, but only the goroutine that runs the test may call
// those that can end it: Hold, Lose, AwaitWaiters, and an invalid fault.
//
// For a shared Store each Locker is a process.
type Store struct {
	t    testing.TB
	mem  *memstore.Store
	born time.Time     // on the wall clock
	over chan struct{} // closed at the end of the test

	mu      sync.Mutex
	ended   bool
	stray   bool // a request from another bubble was reported
	faults  []*Fault
	claims  map[string]*claim        // by ID
	watches map[string]chan struct{} // of claims, by ID: closed when the Locker stops watching
	grants  []Grant
	holds   []*baton.Lease
	change  chan struct{} // see next
}

// Unwrap and local.Limits are missing: they would bypass the faults.
var (
	_ driver.Store        = (*Store)(nil)
	_ driver.Watcher      = (*Store)(nil)
	_ driver.Inspector    = (*Store)(nil)
	_ driver.Downgrader   = (*Store)(nil)
	_ driver.Mover        = (*Store)(nil)
	_ driver.Renamer      = (*Store)(nil)
	_ driver.Together     = (*Store)(nil)
	_ driver.Examiner     = (*Store)(nil)
	_ driver.Records      = (*Store)(nil)
	_ driver.RecordLister = (*Store)(nil)
	_ limits.Store        = (*Store)(nil)
	_ limits.Overrider    = (*Store)(nil)
	_ limits.Lister       = (*Store)(nil)
)

// New returns an empty store that ends with t. At the end it fails t for each lock that
// the program still holds and does not release within a second, and for each unmet Fault.
// If t has failed already, it only logs the locks: a test that ends early may not have
// reached the faults.
//
// After that the store is closed: held locks are lost, and waiters get driver.ErrClosed,
// so that goroutines that outlive the test can end.
//
// A lost or detached lease is not held by the program, unlocked or not.
func New(t testing.TB) *Store {
	t.Helper()
	s := &Store{
		t: t, mem: memstore.New(), born: time.Now().Round(0), over: make(chan struct{}),
		claims: make(map[string]*claim), watches: make(map[string]chan struct{}),
	}
	t.Cleanup(s.end)
	return s
}

// Traits implements driver.Locks.
func (s *Store) Traits() driver.Traits { return s.mem.Traits() }

// Close does nothing: the store ends with its test. A program may close it before the
// test's last look.
func (s *Store) Close() error { return nil }

// Acquire implements driver.Locks.
func (s *Store) Acquire(ctx context.Context, r driver.Request) (g driver.Grant, err error) {
	s.asked(r.Claim)
	err = s.do(ctx, Acquire, func() error {
		g, err = s.mem.Acquire(ctx, r)
		return err
	})
	if err != nil {
		return driver.Grant{}, err
	}
	s.told(r.ID, g)
	return g, nil
}

// AcquireAll implements driver.Together.
func (s *Store) AcquireAll(ctx context.Context, r []driver.Request) (grants []driver.Grant, err error) {
	for _, q := range r {
		s.asked(q.Claim)
	}
	err = s.do(ctx, Acquire, func() error {
		grants, err = s.mem.AcquireAll(ctx, r)
		return err
	})
	if err != nil {
		return nil, err
	}
	for i, q := range r {
		s.told(q.ID, grants[i])
	}
	return grants, nil
}

// Renew implements driver.Locks. Claims that Lose ended are answered as lost, with any
// fault.
func (s *Store) Renew(ctx context.Context, claims []driver.Claim, ttl time.Duration) []driver.Renewal {
	answers := make([]driver.Renewal, len(claims))
	var rest []driver.Claim
	var places []int // in answers
	for i, c := range claims {
		if s.gone(c.ID) {
			answers[i].State = driver.Lost
			continue
		}
		rest, places = append(rest, c), append(places, i)
	}
	if rest == nil {
		return answers
	}
	var found []driver.Renewal
	err := s.do(ctx, Renew, func() error {
		found = s.mem.Renew(ctx, rest, ttl)
		return nil
	})
	for i, c := range rest {
		a := driver.Renewal{Err: err}
		if err == nil {
			a = found[i]
		}
		switch {
		case a.State == driver.Held:
			s.told(c.ID, a.Grant)
		case a.State == driver.Unknown && s.gone(c.ID): // meanwhile
			a = driver.Renewal{State: driver.Lost}
		}
		answers[places[i]] = a
	}
	return answers
}

// Release implements driver.Locks.
func (s *Store) Release(ctx context.Context, c driver.Claim) error {
	s.unlocked(c.ID)
	return s.do(ctx, Release, func() error { return s.mem.Release(ctx, c) })
}

// Downgrade implements driver.Downgrader.
func (s *Store) Downgrade(ctx context.Context, c driver.Claim, ttl time.Duration) (g driver.Grant, err error) {
	err = s.do(ctx, Downgrade, func() error {
		g, err = s.mem.Downgrade(ctx, c, ttl)
		return err
	})
	return g, err
}

// Move implements driver.Mover.
func (s *Store) Move(ctx context.Context, c driver.Claim, id, owner string, ttl time.Duration) (g driver.Grant, err error) {
	moved := c
	moved.ID, moved.Owner = id, owner
	if s.watched(id) { // else it is unlocked, and stays taken for its MinHold
		s.asked(moved)
	}
	err = s.do(ctx, Move, func() error {
		if g, err = s.mem.Move(ctx, c, id, owner, ttl); err == nil {
			s.unlocked(c.ID)
		}
		return err
	})
	if err != nil {
		return driver.Grant{}, err
	}
	s.told(id, g)
	return g, nil
}

// Rename implements driver.Renamer.
func (s *Store) Rename(ctx context.Context, c driver.Claim, owner string) error {
	return s.do(ctx, Rename, func() error { return s.mem.Rename(ctx, c, owner) })
}

// Watch implements driver.Watcher.
func (s *Store) Watch(c driver.Claim, wake func(driver.Hint)) (stop func()) {
	stopped := make(chan struct{})
	s.mu.Lock()
	s.watches[c.ID] = stopped
	s.mu.Unlock()
	forget := s.mem.Watch(c, func(h driver.Hint) {
		if h.Granted {
			s.told(c.ID, h.Grant)
		}
		wake(h)
	})
	return sync.OnceFunc(func() {
		forget()
		s.mu.Lock()
		if s.watches[c.ID] == stopped {
			delete(s.watches, c.ID)
		}
		if known := s.claims[c.ID]; known != nil {
			known.over = true
		}
		s.mu.Unlock()
		close(stopped)
	})
}

// Inspect implements driver.Inspector.
func (s *Store) Inspect(ctx context.Context, key string) (info driver.KeyInfo, err error) {
	err = s.do(ctx, Inspect, func() error {
		info, err = s.mem.Inspect(ctx, key)
		return err
	})
	return info, err
}

// List implements driver.Inspector.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[driver.KeyInfo, error] {
	return listed(ctx, s, Inspect, s.mem.List(ctx, prefix))
}

// Break implements driver.Inspector.
func (s *Store) Break(ctx context.Context, key string, grants ...string) (ended int, err error) {
	err = s.do(ctx, Break, func() error {
		ended, err = s.mem.Break(ctx, key, grants...)
		return err
	})
	return ended, err
}

// Examine implements driver.Examiner.
func (s *Store) Examine(ctx context.Context) ([]driver.Finding, error) { return s.mem.Examine(ctx) }

// BeginAttempt implements driver.Records.
func (s *Store) BeginAttempt(ctx context.Context, a driver.Attempt, keep time.Duration) (driver.Record, error) {
	return s.record(ctx, Begin, func() (driver.Record, error) { return s.mem.BeginAttempt(ctx, a, keep) })
}

// FinishAttempt implements driver.Records.
func (s *Store) FinishAttempt(ctx context.Context, a driver.Attempt, o driver.Outcome, keep time.Duration) (driver.Record, error) {
	return s.record(ctx, Finish, func() (driver.Record, error) { return s.mem.FinishAttempt(ctx, a, o, keep) })
}

// FindRecord implements driver.Records.
func (s *Store) FindRecord(ctx context.Context, key string) (driver.Record, error) {
	return s.record(ctx, Find, func() (driver.Record, error) { return s.mem.FindRecord(ctx, key) })
}

// ForgetRecord implements driver.Records.
func (s *Store) ForgetRecord(ctx context.Context, key string) error {
	return s.do(ctx, Forget, func() error { return s.mem.ForgetRecord(ctx, key) })
}

// ListRecords implements driver.RecordLister.
func (s *Store) ListRecords(ctx context.Context, prefix string) iter.Seq2[driver.Record, error] {
	return listed(ctx, s, Find, s.mem.ListRecords(ctx, prefix))
}

// listed is a list whose request may meet faults.
func listed[T any](ctx context.Context, s *Store, op Op, all iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		if err := s.do(ctx, op, func() error { return nil }); err != nil {
			var none T
			yield(none, err)
			return
		}
		all(yield)
	}
}

func (s *Store) record(ctx context.Context, op Op, ask func() (driver.Record, error)) (r driver.Record, err error) {
	err = s.do(ctx, op, func() error {
		r, err = ask()
		return err
	})
	if err != nil {
		return driver.Record{}, err
	}
	return r, nil
}
