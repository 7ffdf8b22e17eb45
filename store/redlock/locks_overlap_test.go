package redlock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/driver"
)

// slow makes each node take that long for an answer.
func (s *servers) slow(d time.Duration) {
	for _, n := range s.list {
		n.set(func() { n.late = d })
	}
}

// Servers are far away, and a claim is renewed again before the last answer has come:
// each call is answered, and what comes while one is under way shares the next.
func TestOverlappingRenewalsShareTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(t, 3)
		l := s.open(1)[0]
		c, g := acquire(t, l, claimOf("k"), 10*time.Second)
		other, _ := acquire(t, l, claimOf("other"), 10*time.Second)
		const way, calls, gap = 800 * time.Millisecond, 8, 150 * time.Millisecond
		s.slow(way)
		var all sync.WaitGroup
		for i := range calls {
			all.Go(func() {
				time.Sleep(time.Duration(i) * gap)
				began := time.Now()
				batch := l.Renew(t.Context(), []driver.Claim{c, other}, 10*time.Second)
				for _, r := range batch {
					if r.State != driver.Held || r.Grant.TTL < 9*time.Second {
						t.Errorf("call %d: %+v", i, r)
					}
				}
				if batch[0].Grant.Token != g.Token {
					t.Errorf("call %d: token %d, want %d", i, batch[0].Grant.Token, g.Token)
				}
				if took := time.Since(began); took > 2*way+gap {
					t.Errorf("call %d was answered after %v", i, took)
				}
			})
		}
		all.Wait()
		if left := s.left("k"); left < 9*time.Second {
			t.Errorf("the last one left it %v", left)
		}
	})
}

// left is for how long a key is held at least on all servers.
func (s *servers) left(key string) time.Duration {
	least := time.Hour
	for _, node := range s.list {
		info, _ := node.store.Inspect(context.Background(), key)
		if len(info.Holders) == 0 {
			return 0
		}
		least = min(least, info.Holders[0].Remaining)
	}
	return least
}

// A caller that was to renew for others, too, gives up before it begins: they are told,
// and the next one renews. A caller that wants another TTL gets it.
func TestOverlappingRenewalsThatAreGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(t, 3)
		l := s.open(1)[0]
		c, _ := acquire(t, l, claimOf("k"), 10*time.Second)
		const way = 800 * time.Millisecond
		s.slow(way)
		type call struct {
			within, ttl time.Duration
			state       driver.State
		}
		var all sync.WaitGroup
		for i, call := range []call{
			{time.Minute, 10 * time.Second, driver.Held},
			{way / 2, 10 * time.Second, driver.Unknown},     // would have sent the next
			{time.Minute, 10 * time.Second, driver.Unknown}, // with it
			{way / 4, 10 * time.Second, driver.Unknown},     // does not wait for it
			{time.Minute, 5 * time.Second, driver.Held},
		} {
			all.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				ctx, cancel := context.WithTimeout(t.Context(), call.within)
				defer cancel()
				began := time.Now()
				r := l.Renew(ctx, []driver.Claim{c}, call.ttl)[0]
				if r.State != call.state || r.State == driver.Held && (r.Grant.TTL > call.ttl || r.Grant.TTL < call.ttl-time.Second) {
					t.Errorf("call %d: %+v", i, r)
				}
				if r.State == driver.Unknown && !errors.Is(r.Err, driver.ErrUnknown) && !errors.Is(r.Err, context.DeadlineExceeded) {
					t.Errorf("call %d: %v", i, r.Err)
				}
				if took := time.Since(began); took > min(call.within, 2*way) {
					t.Errorf("call %d was answered after %v", i, took)
				}
			})
		}
		all.Wait()
		if r := renew(t, l, c, 10*time.Second); r.State != driver.Held {
			t.Errorf("after that: %+v", r)
		}
	})
}
