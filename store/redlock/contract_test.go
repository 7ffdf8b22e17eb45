package redlock_test

import (
	"context"
	"errors"
	"iter"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/internal/quorum"
	"github.com/batonhq/baton/store/memstore"
	"github.com/batonhq/baton/store/redlock"
)

// servers are memstores that can be restarted and cut off.
type servers struct {
	t    drivertest.T
	list []*server
}

// server is a memstore behind a network.
type server struct {
	mu     sync.Mutex
	store  *memstore.Store
	cut    bool          // requests fail at once
	mute   bool          // requests never arrive, and their callers wait
	deaf   bool          // answers are lost after the effect
	late   time.Duration // how long each answer takes
	slow   func() bool   // whether a request takes slowly before its effect, if set
	age    time.Duration // how long it ran before the test
	skew   time.Duration // of its clock
	healed chan struct{}

	lose int // how many answers are lost after the effect

	// IDs that may be released here once more at any time, by the node's store or by a
	// request that was held up: no caller may rely on them. Nil: not kept.
	t          drivertest.T
	unreliable map[string]bool
}

func newServers(t drivertest.T, n int) *servers {
	s := &servers{t: t}
	for range n {
		s.list = append(s.list, &server{
			store: memstore.New(), age: time.Hour, healed: make(chan struct{}),
			t: t,
		})
	}
	return s
}

func (s *servers) members() []redlock.Member {
	var all []redlock.Member
	for _, n := range s.list {
		all = append(all, n)
	}
	return all
}

// open makes handles, as that many processes would have.
func (s *servers) open(n int, cfg ...redlock.Config) []driver.Locks {
	s.t.Helper()
	var all []driver.Locks
	for range n {
		l, err := redlock.New(s.members(), append(cfg, redlock.Config{})[0])
		if err != nil {
			s.t.Fatalf("new: %v", err)
		}
		s.t.Cleanup(func() { l.Close() })
		all = append(all, l)
	}
	return all
}

// unreliable makes the servers keep which IDs no caller may rely on.
func (s *servers) unreliable() *servers {
	for _, n := range s.list {
		n.unreliable = map[string]bool{}
	}
	return s
}

// restart makes the server forget everything. age is how old it says it is.
func (s *server) restart(age time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store.Close()
	s.store, s.age = memstore.New(), age
}

func (s *server) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.healed)
	s.healed = make(chan struct{})
}

// reach is the way to the server, and back by what it returns.
func (s *server) reach(ctx context.Context) (*memstore.Store, func(error) error, error) {
	for {
		s.mu.Lock()
		store, cut, mute, slow, changed := s.store, s.cut, s.mute, s.slow, s.healed
		s.mu.Unlock()
		switch {
		case cut:
			return nil, nil, driver.ErrUnavailable
		case slow != nil && slow():
			select {
			case <-time.After(slowly):
			case <-ctx.Done():
				return nil, nil, unknown{ctx.Err()}
			}
			return store, func(err error) error { return s.back(ctx, err) }, nil
		case !mute:
			return store, func(err error) error { return s.back(ctx, err) }, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, nil, unknown{ctx.Err()}
		}
	}
}

func (s *server) back(ctx context.Context, err error) error {
	s.mu.Lock()
	deaf, late := s.deaf || s.lose > 0, s.late
	s.lose = max(s.lose-1, 0)
	s.mu.Unlock()
	if late > 0 {
		t := time.NewTimer(late)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return unknown{ctx.Err()}
		}
	}
	if deaf {
		return unknown{context.DeadlineExceeded}
	}
	return err
}

type unknown struct{ error }

func (unknown) Is(target error) bool { return target == driver.ErrUnknown }

func (s *server) Acquire(ctx context.Context, r driver.Request) (g driver.Grant, err error) {
	s.mu.Lock()
	unreliable := s.unreliable[r.ID]
	s.mu.Unlock()
	if unreliable {
		s.t.Errorf("asked for %q by an ID whose release may still come", r.Key)
	}
	store, back, err := s.reach(ctx)
	if err != nil {
		return g, err
	}
	g, err = store.Acquire(ctx, r)
	return g, back(err)
}

func (s *server) Renew(ctx context.Context, claims []driver.Claim, ttl time.Duration) []driver.Renewal {
	fail := func(err error) []driver.Renewal {
		all := make([]driver.Renewal, len(claims))
		for i := range all {
			all[i].Err = err
		}
		return all
	}
	store, back, err := s.reach(ctx)
	if err != nil {
		return fail(err)
	}
	all := store.Renew(ctx, claims, ttl)
	if err := back(nil); err != nil {
		return fail(err)
	}
	return all
}

func (s *server) Release(ctx context.Context, c driver.Claim) (err error) {
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.unreliable == nil {
			return
		}
		s.unreliable[c.ID] = err != nil && (c.Ticket == 0 || !errors.Is(err, driver.ErrLost))
	}()
	store, back, err := s.reach(ctx)
	if err != nil {
		return err
	}
	return back(store.Release(ctx, c))
}

func (s *server) Downgrade(ctx context.Context, c driver.Claim, ttl time.Duration) (g driver.Grant, err error) {
	store, back, err := s.reach(ctx)
	if err != nil {
		return g, err
	}
	g, err = store.Downgrade(ctx, c, ttl)
	return g, back(err)
}

func (s *server) Rename(ctx context.Context, c driver.Claim, owner string) error {
	store, back, err := s.reach(ctx)
	if err != nil {
		return err
	}
	return back(store.Rename(ctx, c, owner))
}

func (s *server) Raise(ctx context.Context, key string, token int64) (int64, error) {
	store, back, err := s.reach(ctx)
	if err != nil {
		return 0, err
	}
	at, err := store.Raise(ctx, key, token)
	return at, back(err)
}

// Life is quick, as a store asks the server only after a restart.
func (s *server) Life(ctx context.Context) (l quorum.Life, err error) {
	store, _, err := s.reach(ctx)
	if err != nil {
		return l, err
	}
	l, err = store.Life(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	l.Age += s.age
	return l, err
}

// ServerTime makes it a driver.Clock.
func (s *server) ServerTime(ctx context.Context) (time.Time, error) {
	_, back, err := s.reach(ctx)
	if err != nil {
		return time.Time{}, err
	}
	s.mu.Lock()
	at := time.Now().Add(s.skew)
	s.mu.Unlock()
	return at, back(nil)
}

func (s *server) Inspect(ctx context.Context, key string) (info driver.KeyInfo, err error) {
	store, back, err := s.reach(ctx)
	if err != nil {
		return info, err
	}
	info, err = store.Inspect(ctx, key)
	return info, back(err)
}

func (s *server) List(ctx context.Context, prefix string) iter.Seq2[driver.KeyInfo, error] {
	store, _, err := s.reach(ctx)
	if err != nil {
		return func(yield func(driver.KeyInfo, error) bool) { yield(driver.KeyInfo{}, err) }
	}
	return store.List(ctx, prefix)
}

func (s *server) Break(ctx context.Context, key string, grants ...string) (n int, err error) {
	store, back, err := s.reach(ctx)
	if err != nil {
		return 0, err
	}
	n, err = store.Break(ctx, key, grants...)
	return n, back(err)
}

func (s *server) Watch(c driver.Claim, wake func(driver.Hint)) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store.Watch(c, wake)
}

func (s *server) Traits() driver.Traits { return new(memstore.Store).Traits() }

// orderly is a quorum whose order is tested as well: while nothing fails, waiters are
// granted in the order in which they came.
type orderly struct{ *redlock.Store }

func (o orderly) Traits() driver.Traits {
	t := o.Store.Traits()
	t.FIFO = true
	return t
}

func TestContract(t *testing.T) {
	for name, harness := range map[string]drivertest.Harness{
		"five": memory(5), "three": memory(3), "one of five down": broken(5, 1), "two of five down": broken(5, 2), "one of three down": broken(3, 1),
		"one of three slow": slow(3), "one of five slow": slow(5),
	} {
		t.Run(name, func(t *testing.T) { drivertest.Locks(t, harness) })
	}
}

func TestContractInOrder(t *testing.T) {
	h := memory(5)
	open := h.Open
	h.Open = func(t drivertest.T, n int) []driver.Locks {
		locks := open(t, n)
		for i, l := range locks {
			locks[i] = orderly{l.(*redlock.Store)}
		}
		return locks
	}
	// There may be two queues for a time, and each has the bound by itself.
	h.Except = []string{"a crowd at a bounded queue"}
	drivertest.Locks(t, h)
}

func memory(n int) drivertest.Harness {
	var mu sync.Mutex
	of := map[driver.Locks]*servers{}
	find := func(l driver.Locks) *servers {
		if o, ok := l.(orderly); ok {
			l = o.Store
		}
		mu.Lock()
		defer mu.Unlock()
		return of[l]
	}
	return drivertest.Harness{
		FakeTime: true,
		Open: func(t drivertest.T, handles int) []driver.Locks {
			s := newServers(t, n)
			locks := s.open(handles)
			mu.Lock()
			defer mu.Unlock()
			for _, l := range locks {
				of[l] = s
			}
			return locks
		},
		Restart: func(t drivertest.T, locks []driver.Locks) {
			for _, node := range find(locks[0]).list {
				node.restart(time.Hour) // TestRestartedServersDoNotVote is about the time until then
			}
			time.Sleep(time.Second) // as servers take some time to start
		},
		Delete: func(_ drivertest.T, key string, l driver.Locks) {
			for _, node := range find(l).list {
				_, _ = node.store.Break(context.Background(), key)
			}
		},
	}
}

// slowly is how long a request to the slow server takes: longer than the others that are
// waited for if they usually answer at once.
const slowly = 15 * time.Millisecond

// slow makes one server slow at a time, each in turn, half of the time.
func slow(n int) drivertest.Harness {
	return drivertest.Harness{
		FakeTime: true,
		Open: func(t drivertest.T, handles int) []driver.Locks {
			s := newServers(t, n)
			locks := s.open(handles)
			for i, node := range s.list {
				node.set(func() {
					node.slow = func() bool { return int(time.Now().UnixMilli()/7)%(2*n) == i }
				})
			}
			return locks
		},
	}
}

// broken cuts off some servers before the first request.
func broken(n, down int) drivertest.Harness {
	return drivertest.Harness{
		FakeTime: true,
		Open: func(t drivertest.T, handles int) []driver.Locks {
			s := newServers(t, n)
			locks := s.open(handles)
			for _, node := range s.list[:down] {
				node.set(func() { node.cut = true })
			}
			return locks
		},
	}
}
