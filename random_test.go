package baton_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
	"github.com/batonhq/baton/store/memstore"
)

// TestStorm lets a few processes do all that they can to two keys, over links that
// delay, cut off and lose requests, and checks the promises: exclusive belief,
// which ends before the store's grant; rising tokens; and that in the end nothing
// is left and no caller waits. synctest itself checks that no goroutine is left.
// BATON_STORM_SEEDS=1000 makes a longer one.
func TestStorm(t *testing.T) {
	seeds := 30
	if testing.Short() {
		seeds = 10
	}
	if n, err := strconv.Atoi(os.Getenv("BATON_STORM_SEEDS")); err == nil {
		seeds = n
	}
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { newStorm(t, seed).run() })
		})
	}
}

type storm struct {
	t       *testing.T
	store   *memstore.Store
	breaks  bool // locks are broken, and their holders may still believe
	calm    atomic.Bool
	lockers []*baton.Locker

	rngMu sync.Mutex
	rng   *rand.Rand

	mu      sync.Mutex
	beliefs map[string][]*belief
	highest map[string]*[2]int64 // the highest tokens: of all leases, of the exclusive ones
	tokens  map[string]bool      // by key
	granted int
}

// belief is a lease as its holder sees it.
type belief struct {
	lease            *baton.Lease
	ctx              context.Context
	weight, capacity int64
}

func newStorm(t *testing.T, seed uint64) *storm {
	s := &storm{
		t: t, store: memstore.New(), breaks: seed%5 == 4,
		rng:     rand.New(rand.NewPCG(seed, 1)),
		beliefs: map[string][]*belief{}, tokens: map[string]bool{}, highest: map[string]*[2]int64{"rw": {}, "permits": {}},
	}
	for i := range 3 {
		cfg := baton.Config{TTL: 3 * time.Second, Owner: fmt.Sprint("process ", i)}
		switch seed % 4 {
		case 1:
			cfg.LockDelay = 2 * time.Second
		case 2:
			cfg.MaxHold = 4 * time.Second
		case 3:
			cfg.Margin = time.Second
		}
		s.lockers = append(s.lockers, newLocker(t, &link{s.store, s}, cfg))
	}
	return s
}

func (s *storm) n(n int) int {
	s.rngMu.Lock()
	defer s.rngMu.Unlock()
	return s.rng.IntN(n)
}

// chance is true in percent of a hundred cases.
func (s *storm) chance(percent int) bool { return s.n(100) < percent }

func (s *storm) upTo(d time.Duration) time.Duration { return time.Duration(s.n(int(d))) }

func (s *storm) run() {
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			for range 12 {
				s.section(s.lockers[i%len(s.lockers)])
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	go func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(s.upTo(100 * time.Millisecond)):
				s.compare()
			}
		}
	}()
	for range 30 {
		time.Sleep(s.upTo(2 * time.Second))
		switch {
		case s.breaks && s.chance(30):
			if _, err := s.lockers[0].Break(s.t.Context(), "rw"); err != nil {
				s.t.Error(err)
			}
		case s.chance(10):
			bootclock.Suspend(s.upTo(10 * time.Second))
		}
	}
	s.calm.Store(true)
	select {
	case <-done:
	case <-time.After(20 * time.Minute):
		s.t.Fatal("the storm is over, and somebody still waits")
	}
	time.Sleep(15 * time.Second) // TTL, LockDelay, a waiter's and a claim's time, and requests that are late
	for _, key := range []string{"rw", "permits"} {
		if info, err := s.store.Inspect(s.t.Context(), key); err != nil || len(info.Holders)+len(info.Waiters) > 0 {
			s.t.Errorf("left in the store: %+v, error %v", info, err)
		}
	}
	for i, l := range s.lockers {
		if queues, acquisitions := l.Leftovers(); queues+acquisitions > 0 {
			s.t.Errorf("process %d has %d local queues and %d acquisitions left", i, queues, acquisitions)
		}
	}
	if s.granted < 30 {
		s.t.Errorf("only %d leases were granted", s.granted)
	}
}

// pair takes both locks, exclusively.
func (s *storm) pair(l *baton.Locker) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	impatient := s.chance(20)
	if impatient {
		time.AfterFunc(s.upTo(3*time.Second), cancel)
	}
	lock := l.LockAll
	if s.chance(20) {
		lock = l.TryLockAll
	}
	all, err := lock(ctx, []string{"rw", "permits"})
	switch {
	case errors.Is(err, context.Canceled) && impatient, errors.Is(err, baton.ErrHeld),
		errors.Is(err, baton.ErrUnavailable), errors.Is(err, baton.ErrUnknown):
		return
	case err != nil:
		s.t.Errorf("LockAll: %v", err)
		return
	}
	var both []*belief
	for _, key := range all.Keys() {
		b := &belief{lease: all.Lease(key), weight: driver.Whole, capacity: driver.Whole}
		s.believe(b, true)
		both = append(both, b)
	}
	work := all.Context(ctx)
	time.Sleep(s.upTo(time.Second))
	if valid := all.Err() == nil; valid != (work.Err() == nil) && ctx.Err() == nil {
		s.t.Errorf("both leases are alive: %v, their context: %v", valid, work.Err())
	}
	if err := all.Unlock(); err != nil && !errors.Is(err, baton.ErrLost) && !errors.Is(err, baton.ErrUnknown) && !errors.Is(err, baton.ErrUnavailable) {
		s.t.Errorf("Unlock: %v", err)
	}
	if all.Err() == nil || work.Err() == nil {
		s.t.Error("leases are alive after their Unlock")
	}
	for _, b := range both {
		s.forget(b)
	}
}

// section takes a lock in some way and does something with it.
func (s *storm) section(l *baton.Locker) {
	if s.chance(10) {
		s.pair(l)
		return
	}
	key, opts := "rw", []baton.Option(nil)
	b := &belief{weight: driver.Whole, capacity: driver.Whole}
	if s.chance(35) {
		key = "permits"
	}
	switch {
	case s.chance(60):
	case key == "rw":
		opts, b.weight = append(opts, baton.Shared()), 1
	default:
		n := 1 + s.n(2)
		opts, b.weight, b.capacity = append(opts, baton.Permits(n, 3)), int64(n), 3
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	impatient := s.chance(20)
	if impatient {
		time.AfterFunc(s.upTo(3*time.Second), cancel)
	}
	lock := l.Lock
	if s.chance(10) {
		lock = l.TryLock
	}
	var err error
	b.lease, err = lock(ctx, key, opts...)
	switch {
	case err == nil && b.lease == nil:
		s.t.Error("neither a lease nor an error")
		return
	case errors.Is(err, context.Canceled) && impatient, errors.Is(err, baton.ErrHeld),
		errors.Is(err, baton.ErrUnavailable), errors.Is(err, baton.ErrUnknown):
		return
	case err != nil:
		s.t.Errorf("Lock: %v", err)
		return
	}
	s.believe(b, true)
	s.work(l, b)
	if s.chance(5) {
		go b.lease.Unlock() // twice at a time
	}
	if err := b.lease.Unlock(); err != nil && !errors.Is(err, baton.ErrLost) && !errors.Is(err, baton.ErrUnknown) && !errors.Is(err, baton.ErrUnavailable) {
		s.t.Errorf("Unlock: %v", err)
	}
	if b.lease.Err() == nil || b.ctx.Err() == nil {
		s.t.Error("a lease is alive after its Unlock")
	}
	s.forget(b)
}

func (s *storm) work(l *baton.Locker, b *belief) {
	time.Sleep(s.upTo([]time.Duration{time.Millisecond, 100 * time.Millisecond, time.Second, 6 * time.Second}[s.n(4)]))
	switch s.n(8) {
	case 0: // from now on readers may enter
		if b.weight != driver.Whole || b.lease.Key() != "rw" {
			return
		}
		s.mu.Lock()
		b.weight = 1
		s.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), s.upTo(3*time.Second))
		defer cancel()
		if s.chance(20) {
			time.AfterFunc(s.upTo(100*time.Millisecond), func() { _ = b.lease.Unlock() })
		}
		_ = b.lease.Downgrade(ctx)
	case 1:
		if inner, err := l.Lock(b.ctx, b.lease.Key(), baton.Reentrant(), baton.Shared()); err == nil {
			s.mu.Lock() // it may be a separate lock, if the outer one has ended
			own := inner.Token() != b.lease.Token()
			s.mu.Unlock()
			if own && b.lease.Err() == nil {
				s.t.Error("a nested lock has a token of its own")
			}
			_ = inner.Unlock()
		}
	case 2:
		handle, err := b.lease.Detach()
		if err != nil {
			return
		}
		time.Sleep(s.upTo(time.Second))
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		lease, err := s.lockers[s.n(len(s.lockers))].Attach(ctx, handle)
		if err != nil {
			return // it expires
		}
		s.forget(b)
		b.lease = lease
		s.believe(b, false)
	default:
		return
	}
	time.Sleep(s.upTo(time.Second))
}

// believe notes a lease, and checks it against the leases that others believe in.
func (s *storm) believe(b *belief, fresh bool) {
	b.ctx = b.lease.Context(context.Background())
	key, token := b.lease.Key(), b.lease.Token()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.granted++
	if alive(s.t, b) {
		used := b.weight
		for _, other := range s.beliefs[key] {
			if !alive(s.t, other) {
				continue
			}
			used += other.weight
			if (other.capacity != b.capacity || used > b.capacity) && !s.breaks {
				s.t.Errorf("%s: token %d (%d of %d) and token %d (%d of %d) are valid at once",
					key, other.lease.Token(), other.weight, other.capacity, token, b.weight, b.capacity)
			}
		}
		h := s.highest[key]
		if stale := token <= h[1] || b.weight == driver.Whole && token <= h[0]; stale && fresh && !s.breaks {
			s.t.Errorf("%s: token %d after %d", key, token, *h)
		}
	}
	name := fmt.Sprint(key, token)
	if fresh && s.tokens[name] {
		s.t.Errorf("%s: token %d for the second time", key, token)
	}
	s.tokens[name] = true
	h := s.highest[key]
	h[0] = max(h[0], token)
	if b.weight == driver.Whole {
		h[1] = max(h[1], token)
	}
	s.beliefs[key] = append(s.beliefs[key], b)
}

// compare checks that the store knows the leases that are believed in, and for
// longer than they are.
func (s *storm) compare() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, beliefs := range s.beliefs {
		info, err := s.store.Inspect(context.Background(), key)
		if err != nil {
			s.t.Error(err)
		}
		for _, b := range beliefs {
			left := time.Until(b.lease.Deadline())
			if !alive(s.t, b) || s.breaks {
				continue
			}
			i := slices.IndexFunc(info.Holders, func(h driver.HolderInfo) bool { return h.Token == b.lease.Token()/64 })
			if i < 0 {
				s.t.Errorf("%s: token %d is believed in, the store does not know it", key, b.lease.Token())
			} else if margin := info.Holders[i].Remaining - left; margin < 100*time.Millisecond {
				s.t.Errorf("%s: token %d is believed in until %v before its end in the store", key, b.lease.Token(), margin)
			}
		}
	}
}

func (s *storm) forget(b *belief) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := b.lease.Key()
	for i, x := range s.beliefs[key] {
		if x == b {
			s.beliefs[key] = append(s.beliefs[key][:i:i], s.beliefs[key][i+1:]...)
			return
		}
	}
}

// alive asks a lease and its context, which must agree. Their holder may end the
// lease between the two questions.
func alive(t *testing.T, b *belief) bool {
	byLease, byContext := b.lease.Err() == nil, b.ctx.Err() == nil
	if byLease && !byContext {
		byLease = b.lease.Err() == nil
	}
	if byLease != byContext {
		t.Errorf("the lease is alive: %v, its context: %v", byLease, byContext)
	}
	return byLease
}

// link is a process's connection to the store.
type link struct {
	*memstore.Store
	s *storm
}

// send sends a request, with or without a fault.
func (l *link) send(ctx context.Context, request func(context.Context) error) error {
	s := l.s
	fate := s.n(100)
	if s.calm.Load() {
		fate = 99
	}
	lost := func() error { return errors.Join(driver.ErrUnknown, ctx.Err()) }
	delay := s.upTo([]time.Duration{time.Millisecond, 50 * time.Millisecond, 500 * time.Millisecond, 4 * time.Second}[s.n(4)])
	switch {
	case fate < 4:
		return driver.ErrUnavailable
	case fate < 12: // the request is slow
		if !sleepFor(ctx, delay) {
			return ctx.Err()
		}
	case fate < 20: // the answer is
		err := request(ctx)
		if !sleepFor(ctx, delay) {
			return lost()
		}
		return err
	case fate < 24: // the answer is lost
		_ = request(ctx)
		return lost()
	case fate < 27: // the answer is lost without an error
		_ = request(ctx)
		<-ctx.Done()
		return ctx.Err()
	case fate < 29: // the request is lost
		<-ctx.Done()
		return ctx.Err()
	case fate < 32: // the request arrives after the caller has stopped waiting
		time.AfterFunc(delay, func() { _ = request(context.Background()) })
		return lost()
	}
	return request(ctx)
}

func (l *link) Acquire(ctx context.Context, r driver.Request) (g driver.Grant, err error) {
	got := make(chan driver.Grant, 1)
	err = l.send(ctx, func(ctx context.Context) error {
		g, err := l.Store.Acquire(ctx, r)
		got <- g
		return err
	})
	if err == nil {
		g = <-got
	}
	return g, err
}

func (l *link) Downgrade(ctx context.Context, c driver.Claim, ttl time.Duration) (g driver.Grant, err error) {
	got := make(chan driver.Grant, 1)
	err = l.send(ctx, func(ctx context.Context) error {
		g, err := l.Store.Downgrade(ctx, c, ttl)
		got <- g
		return err
	})
	if err == nil {
		g = <-got
	}
	return g, err
}

func (l *link) Move(ctx context.Context, c driver.Claim, id, owner string, ttl time.Duration) (g driver.Grant, err error) {
	got := make(chan driver.Grant, 1)
	err = l.send(ctx, func(ctx context.Context) error {
		g, err := l.Store.Move(ctx, c, id, owner, ttl)
		got <- g
		return err
	})
	if err == nil {
		g = <-got
	}
	return g, err
}

func (l *link) Renew(ctx context.Context, c []driver.Claim, ttl time.Duration) (answers []driver.Renewal) {
	got := make(chan []driver.Renewal, 1)
	err := l.send(ctx, func(ctx context.Context) error {
		got <- l.Store.Renew(ctx, c, ttl)
		return nil
	})
	if err == nil {
		answers = <-got
	} else {
		answers = make([]driver.Renewal, len(c))
	}
	for i := range answers {
		switch {
		case err != nil:
			answers[i].Err = err
		case !l.s.calm.Load() && l.s.chance(3): // one claim fails alone
			answers[i] = driver.Renewal{Err: driver.ErrUnavailable}
		}
	}
	return answers
}

func (l *link) Release(ctx context.Context, c driver.Claim) error {
	return l.send(ctx, func(ctx context.Context) error { return l.Store.Release(ctx, c) })
}

// Watch loses hints, delays them beyond the end of the watch, repeats them, removes
// the grant from them, and invents some.
func (l *link) Watch(c driver.Claim, wake func(driver.Hint)) (stop func()) {
	s := l.s
	if s.chance(10) {
		time.AfterFunc(s.upTo(3*time.Second), func() { wake(driver.Hint{}) })
	}
	return l.Store.Watch(c, func(h driver.Hint) {
		switch fate := s.n(100); {
		case fate < 20:
		case fate < 35:
			time.AfterFunc(s.upTo(3*time.Second), func() { wake(h) })
		case fate < 45:
			wake(driver.Hint{})
		case fate < 60:
			wake(h)
			time.AfterFunc(s.upTo(time.Second), func() { wake(h) })
		default:
			wake(h)
		}
	})
}
