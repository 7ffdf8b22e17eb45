package batontest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/leasemath"
)

const (
	unlockWithin = time.Second      // a lock that is released within that time after the test is no mistake
	queuedWithin = 30 * time.Second // how long AwaitWaiters waits

	// Baton repeats an unanswered request within that time, also in the background, and
	// learns that the store is closed.
	askedAgainWithin = 10 * time.Second
)

// A claim is a request of the program that is neither released nor lost.
type claim struct {
	driver.Claim
	callers [32]uintptr // of the request
	depth   int
	token   int64 // the store's; 0 until the program knows of the grant
	taken   bool  // by Lose
	over    bool  // the Locker no longer watches it: it was lost or detached, if not released
}

// A Grant is a grant of the store to the program. Local hand-overs belong to one grant.
type Grant struct {
	Key, Owner string
	Token      int64 // of its first lease
	Weight     int64 // driver.Whole for the exclusive lock, 1 for a read lock, else permits
}

// Hold makes another process hold key, with that owner, until release is called or the
// test ends. It does not wait: the test ends if the lock is taken. The options are those
// of baton.Locker.Lock; the exclusive lock needs none.
func (s *Store) Hold(key, owner string, opts ...baton.Option) (release func()) {
	s.t.Helper()
	if s.isStray() {
		s.t.Fatal(strayed)
	}
	other, err := baton.New(s.mem, baton.Config{Owner: owner})
	if err != nil {
		s.t.Fatalf("batontest: Hold(%q): %v", key, err)
	}
	lease, err := other.TryLock(context.Background(), key, opts...)
	if err != nil {
		s.t.Fatalf("batontest: Hold(%q): %v", key, err)
	}
	s.mu.Lock()
	s.holds = append(s.holds, lease)
	s.mu.Unlock()
	return func() {
		_ = lease.Unlock() // it may be lost: Lose ends it, too
		s.changed()
	}
}

// Lose breaks the lock of all holders of key, like "baton break", and returns when their
// Lockers know: Lease.Done is closed, Err and Unlock return a *baton.LostError with the
// cause Gone, contexts of the lease have ended. The store grants the lock to the next
// waiter. The test ends if key has no holder.
//
// For the cause Expired plant Fail(Renew, driver.ErrUnavailable), in a bubble, and let
// Config.TTL pass.
func (s *Store) Lose(key string) {
	s.t.Helper()
	info, err := s.mem.Inspect(context.Background(), key)
	switch {
	case err != nil:
		s.t.Fatalf("batontest: Lose(%q): %v", key, err)
	case len(info.Holders) == 0:
		s.t.Fatalf("batontest: Lose(%q): no process holds it (%d wait for it; held are %q)", key, len(info.Waiters), s.keys())
	}
	var noticed []chan struct{}
	s.mu.Lock()
	for id, c := range s.claims {
		if c.Key == key && holds(info, c.token) {
			c.taken = true
			if stopped := s.watches[id]; stopped != nil {
				noticed = append(noticed, stopped)
			}
		}
	}
	s.mu.Unlock()
	_, _ = s.mem.Break(context.Background(), key)
	s.changed()
	for _, stopped := range noticed {
		select {
		case <-stopped: // a Locker watches its claims, and stops at their end
		case <-s.over:
		}
	}
}

// Holders are the holders of key, in the order of their grants, as Locker.Inspect shows
// them.
func (s *Store) Holders(key string) []driver.HolderInfo {
	info, _ := s.mem.Inspect(context.Background(), key)
	for i := range info.Holders {
		info.Holders[i].Token *= leasemath.TokensPerGrant
	}
	return info.Holders
}

// Waiters are the positions in the queue of key. A Locker takes one for all its
// goroutines that want the same kind of lock; goroutines that wait for another one of the
// same Locker have no position in the store. In a bubble, synctest.Wait returns when all
// goroutines wait.
func (s *Store) Waiters(key string) []driver.WaiterInfo {
	info, _ := s.mem.Inspect(context.Background(), key)
	return info.Waiters
}

// AwaitWaiters returns when key has at least n Waiters. The test ends if that takes more
// than half a minute.
func (s *Store) AwaitWaiters(key string, n int) {
	s.t.Helper()
	timer := time.NewTimer(queuedWithin)
	defer timer.Stop()
	for {
		change := s.next()
		has := len(s.Waiters(key))
		if has >= n {
			return
		}
		select {
		case <-change:
		case <-timer.C:
			s.t.Fatalf("batontest: AwaitWaiters(%q, %d): %d wait after %v; %d hold it", key, n, has, queuedWithin, len(s.Holders(key)))
		}
	}
}

// Grants are the grants to the program since New, in order, without those of Hold.
func (s *Store) Grants() []Grant {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.grants)
}

// asked notes where a lock was asked for. It is called on the asking goroutine.
func (s *Store) asked(c driver.Claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.claims[c.ID] == nil {
		asked := &claim{Claim: c}
		asked.depth = runtime.Callers(3, asked.callers[:])
		s.claims[c.ID] = asked
	}
}

// watched reports whether a Locker watches a claim, as it does while the claim is queued
// or holds.
func (s *Store) watched(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.watches[id] != nil
}

// told notes that the program learned of a grant.
func (s *Store) told(id string, g driver.Grant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.claims[id]
	if c == nil || g.Waiting {
		return
	}
	if c.token == 0 {
		s.grants = append(s.grants, Grant{Key: c.Key, Owner: c.Owner, Token: g.Token * leasemath.TokensPerGrant, Weight: c.Weight})
	}
	c.token = g.Token
}

// unlocked notes that the program releases a claim, with or without success.
func (s *Store) unlocked(id string) {
	s.mu.Lock()
	delete(s.claims, id)
	s.mu.Unlock()
	s.changed()
}

// gone reports whether Lose ended a claim, or the test has ended.
func (s *Store) gone(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.claims[id]
	return s.ended || c != nil && c.taken
}

// next returns a channel that is closed at the next change of a lock.
func (s *Store) next() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.change == nil {
		s.change = make(chan struct{})
	}
	return s.change
}

func (s *Store) changed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.change != nil {
		close(s.change)
		s.change = nil
	}
}

func (s *Store) keys() (held []string) {
	for info := range s.mem.List(context.Background(), "") {
		if len(info.Holders) > 0 {
			held = append(held, info.Key)
		}
	}
	slices.Sort(held)
	return held
}

func holds(info driver.KeyInfo, token int64) bool {
	return token > 0 && slices.ContainsFunc(info.Holders, func(h driver.HolderInfo) bool { return h.Token == token })
}

// end runs at the end of the test.
func (s *Store) end() {
	s.t.Helper()
	s.mu.Lock()
	stray := s.stray
	s.mu.Unlock()
	if stray { // the test has failed, and the timers of its bubble are out of reach
		return
	}
	failed := s.t.Failed() || s.t.Skipped()
	var leaked []string
	if failed {
		leaked = s.leaked()
	} else {
		leaked = s.leakedAfter(unlockWithin)
	}
	unmet := s.close()
	for _, what := range leaked {
		if failed {
			s.t.Log("batontest: " + what)
		} else {
			s.t.Error("batontest: " + what)
		}
	}
	for _, what := range unmet {
		if !failed {
			s.t.Error("batontest: " + what)
		}
	}
}

// close ends the store and returns the unmet faults. Held locks are lost then, and
// waiters get driver.ErrClosed: goroutines that still work can end, as in a bubble they
// must.
func (s *Store) close() (unmet []string) {
	s.mu.Lock()
	s.ended = true
	unmet = s.unmet()
	met := len(unmet) < len(s.faults)
	holds, watches := s.holds, slices.Collect(maps.Values(s.watches))
	s.mu.Unlock()
	close(s.over)
	_ = s.mem.Close() // wakes the watchers
	for _, lease := range holds {
		_ = lease.Unlock() // ends its renewal
	}
	if met && s.born.Year() < 2001 { // in a bubble, where this takes no time
		time.Sleep(askedAgainWithin)
	}
	timer := time.NewTimer(unlockWithin)
	defer timer.Stop()
	for _, stopped := range watches {
		select {
		case <-stopped:
		case <-timer.C:
			return unmet
		}
	}
	return unmet
}

// leakedAfter gives the program some time to release its locks.
func (s *Store) leakedAfter(d time.Duration) []string {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		change := s.next()
		leaked := s.leaked()
		if leaked == nil {
			return nil
		}
		select {
		case <-change:
		case <-timer.C:
			return s.leaked()
		}
	}
}

// leaked describes the locks that the program holds and has not begun to release.
func (s *Store) leaked() (all []string) {
	s.mu.Lock()
	var claims []claim
	for _, c := range s.claims {
		if c.token > 0 && !c.taken && !c.over {
			claims = append(claims, *c)
		}
	}
	s.mu.Unlock()
	slices.SortFunc(claims, func(a, b claim) int { return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.token, b.token)) })
	for _, c := range claims {
		if info, err := s.mem.Inspect(context.Background(), c.Key); err == nil && holds(info, c.token) {
			all = append(all, fmt.Sprintf("lock %q was never unlocked: it was acquired with the token %d at %s, and may have been handed over to another goroutine since",
				c.Key, c.token*leasemath.TokensPerGrant, c.place()))
		}
	}
	return all
}

func (c claim) place() string {
	place := "an unknown place"
	frames := runtime.CallersFrames(c.callers[:c.depth])
	for {
		f, more := frames.Next()
		if f.Function == "" {
			return place
		}
		place = fmt.Sprintf("%s:%d", f.File, f.Line)
		if !more || !ours(f.Function) {
			return place
		}
	}
}

// ours reports whether a function is between the program and the store.
func ours(function string) bool {
	rest, ok := strings.CutPrefix(function, "github.com/batonhq/baton")
	return ok && slices.ContainsFunc([]string{".", "/once.", "/election.", "/batontest.", "/adapters/"}, func(p string) bool { return strings.HasPrefix(rest, p) })
}
