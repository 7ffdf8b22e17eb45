package redisstore

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// Trap 15, as far as it holds: the new primary may have forgotten the lock,
// but its tokens are higher, as its counter is seeded from its clock.
func TestFailoverLosesTheLockAndRaisesTokens(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	set := testserver.RedisSentinel(t)
	s := mustNew(t, dialSentinel(t, set))
	for range 100 { // run the counter ahead
		c, _ := take(t, s, claimOf("job", "a"), time.Minute, false)
		mustRelease(t, s, c)
	}
	// The replica is cut off before the grant and does not hear of it.
	if _, err := set.Replica.Do("REPLICAOF", "127.0.0.1", "1"); err != nil {
		t.Fatal(err)
	}
	lost, before := take(t, s, claimOf("job", "a"), time.Minute, false)
	set.Primary.Kill()
	if _, err := set.Replica.Do("REPLICAOF", "NO", "ONE"); err != nil {
		t.Fatal(err)
	}
	set.AwaitFailover(t)

	var after driver.Grant
	eventually(t, "a grant by the new primary", 20*time.Second, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var err error
		after, err = s.Acquire(ctx, driver.Request{Claim: claimOf("job", "b"), TTL: time.Minute, Retry: true})
		if err != nil && !errors.Is(err, driver.ErrUnavailable) && !errors.Is(err, driver.ErrUnknown) && ctx.Err() == nil {
			t.Fatalf("during the fail-over: %v", err)
		}
		return err == nil
	})
	if after.Token <= before.Token {
		t.Errorf("token %d after the fail-over, %d before", after.Token, before.Token)
	}
	if r := renewOne(t, s, lost, time.Minute); r.State != driver.Lost {
		t.Errorf("the forgotten lock is %v, want lost", r.State)
	}
}

// The new primary decides by its own clock, with what it has heard of.
func TestFailoverOfLimits(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	set := testserver.RedisSentinel(t)
	s := mustNew(t, dialSentinel(t, set))
	limit := tokens(1, 1000*time.Hour, 100)
	name := s.names.beside("heard").limit()
	for range 10 {
		if d, err := s.Take(t.Context(), asking("heard", limit, 1)); err != nil || !d.OK {
			t.Fatalf("%+v, %v", d, err)
		}
	}
	want, err := set.Primary.Do("GET", name)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the replica hears of it", 10*time.Second, func() bool {
		got, _ := set.Replica.Do("GET", name)
		return got == want
	})
	set.Primary.Kill()
	if _, err := set.Replica.Do("REPLICAOF", "NO", "ONE"); err != nil {
		t.Fatal(err)
	}
	set.AwaitFailover(t)
	r := asking("heard", limit, 1)
	r.ID, r.Keep = driver.NewID(), time.Hour
	eventually(t, "a decision of the new primary", 20*time.Second, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		d, err := s.Take(ctx, r)
		if err != nil {
			if !errors.Is(err, driver.ErrUnavailable) && !errors.Is(err, driver.ErrUnknown) && ctx.Err() == nil {
				t.Fatalf("during the fail-over: %v", err)
			}
			return false
		}
		if !d.OK || d.Limits[0].Remaining != 89 {
			t.Errorf("after the fail-over: %+v", d)
		}
		return true
	})
}

func TestFlushAllRaisesTokensAndLosesLocks(t *testing.T) {
	l := newLab(t, 2)
	a, before := take(t, l.stores[0], claimOf(l.key, "a"), time.Minute, false)
	w, _ := take(t, l.stores[1], claimOf(l.key, "b"), time.Minute, true)
	l.do("FLUSHALL")
	for _, c := range []driver.Claim{a, w} {
		if r := renewOne(t, l.stores[0], c, time.Minute); r.State != driver.Lost {
			t.Errorf("%s is %v after FLUSHALL, want lost", c.Owner, r.State)
		}
	}
	if _, after := take(t, l.stores[1], claimOf(l.key, "c"), time.Minute, false); after.Token <= before.Token {
		t.Errorf("token %d after FLUSHALL, %d before", after.Token, before.Token)
	}
}

// An answer that is lost leaves the outcome unknown; both that and the reason
// are to be seen.
func TestLostAnswerIsUnknown(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	server := testserver.Redis(t)
	proxy := faultproxy.New(t, server.Addr)
	s := mustNew(t, dial(t, proxy.Addr))
	c, _ := take(t, s, claimOf("warm", "a"), time.Minute, false)
	mustRelease(t, s, c)

	// The connection is cut after the request has passed.
	lost := claimOf("job", "a")
	cut := proxy.CutAfterRequest(func(request []byte) bool { return strings.Contains(string(request), lost.ID) })
	_, err := s.Acquire(t.Context(), driver.Request{Claim: lost, TTL: time.Minute})
	if !errors.Is(err, driver.ErrUnknown) || errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("the answer was cut off: %v, want driver.ErrUnknown", err)
	}
	<-cut
	g, err := s.Acquire(t.Context(), driver.Request{Claim: lost, TTL: time.Minute, Retry: true})
	if err != nil || g.Waiting {
		t.Errorf("asked again: %+v, %v, want the grant", g, err)
	}

	// The answer does not come in time.
	for name, end := range map[string]func() (context.Context, context.CancelFunc){
		"deadline": func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(t.Context(), 100*time.Millisecond)
		},
		"cancel": func() (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(100*time.Millisecond, cancel)
			return ctx, cancel
		},
	} {
		proxy.Hold(faultproxy.ToClient)
		ctx, cancel := end()
		late := claimOf("late "+name, "a")
		_, err = s.Acquire(ctx, driver.Request{Claim: late, TTL: time.Minute})
		if !errors.Is(err, driver.ErrUnknown) || !errors.Is(err, ctx.Err()) {
			t.Errorf("%s: %v, want driver.ErrUnknown and %v", name, err, ctx.Err())
		}
		cancel()
		proxy.Heal()
		if err := s.Release(t.Context(), late); err != nil && !errors.Is(err, driver.ErrLost) && !errors.Is(err, driver.ErrUnknown) {
			t.Errorf("%s: cleaned up: %v", name, err)
		}
		eventually(t, "a free lock", 10*time.Second, func() bool {
			reply, err := server.Do("EXISTS", late.Key)
			return err == nil && reply == "0"
		})

		// What was never sent is known not to have happened.
		ctx, cancel = context.WithCancel(t.Context())
		cancel()
		if _, err = s.Acquire(ctx, driver.Request{Claim: claimOf("never", "a"), TTL: time.Minute}); !errors.Is(err, context.Canceled) || errors.Is(err, driver.ErrUnknown) {
			t.Errorf("with a context that had ended: %v, want that of the context alone", err)
		}
	}
}

// A context may end long before its deadline, also for a caller that has a connection
// to itself.
func TestCancelledBeforeTheDeadline(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	server := testserver.Redis(t)
	for _, how := range []string{"Open", "New"} {
		for _, what := range []string{"acquire", "take"} {
			proxy := faultproxy.New(t, server.Addr)
			var s *Store
			if how == "New" {
				s = mustNew(t, closed(t, redis.NewClient(&redis.Options{Addr: proxy.Addr, ReadTimeout: 500 * time.Millisecond})))
			} else {
				at := Server{Addrs: []string{proxy.Addr}}
				links := newLinks(at)
				links.answer = 500 * time.Millisecond
				var err error
				if s, err = open(t.Context(), at, links, Config{}); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = s.Close() })
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			act := func() (err error) {
				if what == "take" {
					_, err = s.Take(ctx, asking(how, tokens(1, time.Hour, 5), 1))
				} else {
					_, err = s.Acquire(ctx, driver.Request{Claim: claimOf(how+driver.NewID(), "a"), TTL: time.Minute})
				}
				return err
			}
			if err := act(); err != nil {
				t.Fatal(err)
			}
			proxy.Hold(faultproxy.ToClient)
			time.AfterFunc(100*time.Millisecond, cancel)
			if err := act(); !errors.Is(err, driver.ErrUnknown) || !errors.Is(err, context.Canceled) {
				t.Errorf("%s, %s: %v, want driver.ErrUnknown and context.Canceled", how, what, err)
			}
			proxy.Heal()
		}
	}
}

// An acquire that was abandoned is executed after the release that was to
// clean up behind it, on another connection.
func TestReleaseThatOvertakesItsAcquire(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	server := testserver.Redis(t)
	slow, fast := faultproxy.New(t, server.Addr), mustNew(t, dial(t, server.Addr))
	late := mustNew(t, dial(t, slow.Addr))
	// The server knows the scripts, or what comes late would do nothing.
	warm, _ := take(t, fast, claimOf("job", "warm"), time.Minute, false)
	if _, err := fast.Acquire(t.Context(), driver.Request{Claim: claimOf("job", "other"), TTL: time.Minute}); !isHeldBy(err, "warm") {
		t.Fatal(err)
	}
	mustRelease(t, fast, warm)
	for _, queue := range []bool{false, true} {
		var holder driver.Claim
		if queue {
			holder, _ = take(t, fast, claimOf("job", "holder"), time.Minute, false)
		}
		c := claimOf("job", "late")
		slow.Hold(faultproxy.ToServer)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, err := late.Acquire(ctx, driver.Request{Claim: c, TTL: time.Minute, Queue: queue, Retry: queue})
		cancel()
		if !errors.Is(err, driver.ErrUnknown) {
			t.Fatalf("abandoned: %v", err)
		}
		if err := fast.Release(t.Context(), c); !errors.Is(err, driver.ErrLost) {
			t.Fatalf("released before it was acquired: %v", err)
		}
		slow.Heal()
		awaitReachable(t, late) // by then the acquire was executed
		if queue {
			mustRelease(t, fast, holder)
		}
		eventually(t, "a free lock", 10*time.Second, func() bool {
			reply, err := server.Do("EXISTS", "job", "baton:q:{job}")
			return err == nil && reply == "0"
		})
	}
}

func TestServerIsGone(t *testing.T) {
	l := newLab(t, 1)
	s := l.stores[0]
	c, _ := take(t, s, claimOf(l.key, "a"), time.Minute, false)
	l.server.Kill()
	eventually(t, "driver.ErrUnavailable", 10*time.Second, func() bool { // the cut connection first
		_, err := s.Acquire(t.Context(), driver.Request{Claim: claimOf("other", "a"), TTL: time.Minute})
		if !errors.Is(err, driver.ErrUnavailable) && !errors.Is(err, driver.ErrUnknown) {
			t.Fatalf("acquire without a server: %v", err)
		}
		return errors.Is(err, driver.ErrUnavailable)
	})
	if r := renewOne(t, s, c, time.Minute); r.State != driver.Unknown || !errors.Is(r.Err, driver.ErrUnavailable) {
		t.Errorf("renew without a server: %+v", r)
	}
	if err := s.Release(t.Context(), c); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("release without a server: %v", err)
	}
	l.server.Restart()
	awaitReachable(t, s)
	take(t, s, claimOf(l.key, "a"), time.Minute, false)
}
