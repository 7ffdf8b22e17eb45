package redislock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	original "github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/adapters/compat/redislock"
	"github.com/batonhq/baton/internal/compattest"
	"github.com/batonhq/baton/internal/testserver"
)

func client(t *testing.T) *redis.Client {
	t.Helper()
	testserver.NeedRedis(t)
	t.Parallel()
	c := redis.NewClient(&redis.Options{Addr: testserver.SharedRedis(t).Addr})
	t.Cleanup(func() { c.Close() })
	return c
}

func obtain(t *testing.T, c *redislock.Client, key string, ttl time.Duration, opt *redislock.Options) *redislock.Lock {
	t.Helper()
	l, err := c.Obtain(t.Context(), key, ttl, opt)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

var library = compattest.Library{
	Path:    "github.com/bsm/redislock",
	Ours:    "github.com/batonhq/baton/adapters/compat/redislock",
	Package: ".",
}

// The README of the original library compiles and its examples run with only the import
// changed, and the address of the server.
func TestExamplesOfTheOriginalRun(t *testing.T) {
	testserver.Long(t)
	if testing.Short() {
		t.Skip("it compiles beside the package, and the go command does not do so in its cache of modules, where package fetched runs this")
	}
	testserver.NeedRedis(t)
	t.Parallel()
	at := []string{"127.0.0.1:6379", testserver.SharedRedis(t).Addr}
	library.Runs(t, "example_test.go", library.Read(t, "example_test.go"), at...)
	library.Compiles(t, library.Block(t, "README.md"), at...) // the first of the examples
}

// Every exported name of the original is here, with the same signature.
func TestAPIIsThatOfTheOriginal(t *testing.T) {
	t.Parallel()
	library.HasAllNames(t, 20)
}

func TestEachSeesTheOther(t *testing.T) {
	c := client(t)
	ours, theirs := redislock.New(c), original.New(c)
	l := obtain(t, ours, "see", 10*time.Second, nil)
	if _, err := theirs.Obtain(t.Context(), "see", time.Second, nil); err != original.ErrNotObtained {
		t.Fatalf("the original: %v", err)
	}
	if _, err := ours.Obtain(t.Context(), "see", time.Second, nil); err != redislock.ErrNotObtained {
		t.Fatalf("this package: %v", err)
	}
	if err := l.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	o, err := theirs.Obtain(t.Context(), "see", 10*time.Second, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ours.Obtain(t.Context(), "see", time.Second, nil); err != redislock.ErrNotObtained {
		t.Fatalf("this package: %v", err)
	}
	if err := o.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestEndedLockSaysSo(t *testing.T) {
	c := client(t)
	ours := redislock.New(c)
	for name, end := range map[string]func(*redislock.Lock) error{
		"released": func(l *redislock.Lock) error { return l.Release(t.Context()) },
		"deleted":  func(l *redislock.Lock) error { return c.Del(t.Context(), l.Key()).Err() },
	} {
		l := obtain(t, ours, "ended/"+name, 10*time.Second, nil)
		if ttl, err := l.TTL(t.Context()); err != nil || ttl <= 9*time.Second || ttl > 10*time.Second {
			t.Errorf("held: %s, %v", ttl, err)
		}
		if err := end(l); err != nil {
			t.Fatal(err)
		}
		if ttl, err := l.TTL(t.Context()); ttl != 0 || err != nil {
			t.Errorf("%s: %s, %v", name, ttl, err)
		}
		if err := l.Refresh(t.Context(), time.Second, nil); err != redislock.ErrNotObtained {
			t.Errorf("%s: refresh: %v", name, err)
		}
		if err := l.Release(t.Context()); err != redislock.ErrLockNotHeld {
			t.Errorf("%s: release: %v", name, err)
		}
	}
	var none *redislock.Lock
	if err := none.Release(t.Context()); err != redislock.ErrLockNotHeld {
		t.Errorf("nil: %v", err)
	}
}

// Refresh sets a shorter TTL as well as a longer one.
func TestRefresh(t *testing.T) {
	c := client(t)
	l := obtain(t, redislock.New(c), "refresh", 10*time.Second, nil)
	for _, ttl := range []time.Duration{time.Minute, 5 * time.Second} {
		if err := l.Refresh(t.Context(), ttl, nil); err != nil {
			t.Fatal(err)
		}
		if left := c.PTTL(t.Context(), l.Key()).Val(); left > ttl || left < ttl-2*time.Second {
			t.Errorf("the server keeps it for %s, want %s", left, ttl)
		}
		if left, err := l.TTL(t.Context()); err != nil || left > ttl || left < ttl-2*time.Second {
			t.Errorf("%s, %v, want %s", left, err, ttl)
		}
	}
}

func TestTokenIsShared(t *testing.T) {
	c := client(t)
	ours := redislock.New(c)
	opt := &redislock.Options{Token: "order 42, any text", Metadata: "worker 7"}
	a := obtain(t, ours, "shared", time.Second, opt)
	b := obtain(t, redislock.New(c), "shared", 10*time.Second, opt)
	if a.Token() != opt.Token || a.Metadata() != opt.Metadata {
		t.Errorf("token %q, metadata %q", a.Token(), a.Metadata())
	}
	if left := c.PTTL(t.Context(), "shared").Val(); left < 5*time.Second {
		t.Errorf("the second call left a TTL of %s", left)
	}
	if _, err := ours.Obtain(t.Context(), "shared", time.Second, &redislock.Options{Token: "other"}); err != redislock.ErrNotObtained {
		t.Errorf("another token: %v", err)
	}
	if err := b.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := a.Release(t.Context()); err != redislock.ErrLockNotHeld {
		t.Errorf("released by both: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	c := client(t)
	ours := redislock.New(c)
	for name, f := range map[string]func() error{
		"short TTL": func() error { _, err := ours.Obtain(t.Context(), "refuse", time.Millisecond, nil); return err },
		"metadata": func() error {
			_, err := ours.Obtain(t.Context(), "refuse", time.Second, &redislock.Options{Metadata: "a\nb"})
			return err
		},
		"no key": func() error { _, err := ours.Obtain(t.Context(), "", time.Second, nil); return err },
		"client": func() error {
			_, err := redislock.Obtain(t.Context(), c.Pipeline().(redislock.RedisClient), "refuse", time.Second, nil)
			return err
		},
	} {
		if err := f(); err == nil || errors.Is(err, redislock.ErrNotObtained) {
			t.Errorf("%s: %v", name, err)
		}
		if n := c.Exists(t.Context(), "refuse").Val(); n != 0 {
			t.Errorf("%s: a lock was left", name)
		}
	}
	l := obtain(t, ours, "refuse", 10*time.Second, nil)
	if err := l.Refresh(t.Context(), time.Minute, &redislock.Options{Metadata: "new"}); !errors.Is(err, redislock.ErrOption) {
		t.Errorf("refresh with metadata: %v", err)
	}
	if err := l.Refresh(t.Context(), time.Minute, &redislock.Options{Token: l.Token(), RetryStrategy: redislock.NoRetry()}); err != nil {
		t.Errorf("refresh with the options of the lock: %v", err)
	}
}

func TestFencingTokenAndLease(t *testing.T) {
	c := client(t)
	ours := redislock.New(c)
	store, err := ours.Store()
	if err != nil {
		t.Fatal(err)
	}
	locks, err := baton.New(store, baton.Config{TTL: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	before, err := locks.TryLock(t.Context(), "lease")
	if err != nil {
		t.Fatal(err)
	}
	if err := before.Unlock(); err != nil {
		t.Fatal(err)
	}
	l := obtain(t, ours, "lease", time.Second, nil)
	if l.FencingToken() <= before.Token() {
		t.Errorf("the fencing token is %d after %d", l.FencingToken(), before.Token())
	}
	lease, err := l.Attach(t.Context(), locks)
	if err != nil {
		t.Fatal(err)
	}
	if lease.Token() != l.FencingToken() {
		t.Errorf("the lease has token %d, the lock had %d", lease.Token(), l.FencingToken())
	}
	if err := l.Release(t.Context()); err != redislock.ErrLockNotHeld {
		t.Errorf("release after Attach: %v", err)
	}
	if err := lease.Err(); err != nil {
		t.Errorf("the lease after the lock's release: %v", err)
	}
	if err := lease.Unlock(); err != nil {
		t.Fatal(err)
	}
}

func TestWaitEndsAsTheOriginals(t *testing.T) {
	c := client(t)
	ours := redislock.New(c)
	obtain(t, ours, "wait", 10*time.Second, nil)
	limited := redislock.LimitRetry(redislock.LinearBackoff(time.Millisecond), 3)
	if _, err := ours.Obtain(t.Context(), "wait", time.Second, &redislock.Options{RetryStrategy: limited}); err != redislock.ErrNotObtained {
		t.Errorf("after 3 retries: %v", err)
	}
	forever := redislock.LinearBackoff(time.Millisecond)
	if _, err := ours.Obtain(t.Context(), "wait", 100*time.Millisecond, &redislock.Options{RetryStrategy: forever}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after the TTL: %v", err)
	}
}

// The strategies are the original's, pause by pause.
func TestStrategiesAreTheOriginals(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ours   redislock.RetryStrategy
		theirs original.RetryStrategy
	}{
		"none":        {redislock.NoRetry(), original.NoRetry()},
		"linear":      {redislock.LinearBackoff(time.Second), original.LinearBackoff(time.Second)},
		"limited":     {redislock.LimitRetry(redislock.LinearBackoff(time.Second), 3), original.LimitRetry(original.LinearBackoff(time.Second), 3)},
		"exponential": {redislock.ExponentialBackoff(20*time.Millisecond, time.Minute), original.ExponentialBackoff(20*time.Millisecond, time.Minute)},
		"no maximum":  {redislock.ExponentialBackoff(0, 0), original.ExponentialBackoff(0, 0)},
		"crossed":     {redislock.ExponentialBackoff(time.Hour, time.Second), original.ExponentialBackoff(time.Hour, time.Second)},
	} {
		for i := range 40 {
			if got, want := c.ours.NextBackoff(), c.theirs.NextBackoff(); got != want {
				t.Errorf("%s, pause %d: %s, want %s", name, i+1, got, want)
			}
		}
	}
}
