package redislock_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	original "github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/adapters/compat/redislock"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// docs/coming-from/go-locks.md, "A Token of your own in redislock": the original takes a lock of Baton
// over if its Token is a beginning of Baton's values. Baton notices it when it renews.
func TestShortTokensOfTheOriginalTakeBatonsLocks(t *testing.T) {
	c := client(t)
	ours, theirs := redislock.New(c), original.New(c)
	store, err := ours.Store()
	if err != nil {
		t.Fatal(err)
	}
	locks, err := baton.New(store, baton.Config{TTL: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range []string{"b", "b1", "b1:"} {
		lease, err := locks.TryLock(t.Context(), "taken/"+token)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ours.Obtain(t.Context(), lease.Key(), time.Minute, &redislock.Options{Token: token}); err != redislock.ErrNotObtained {
			t.Errorf("token %q of this package: %v", token, err)
		}
		taken, err := theirs.Obtain(t.Context(), lease.Key(), time.Minute, &original.Options{Token: token})
		if err != nil {
			t.Fatalf("token %q of the original is refused: %v", token, err)
		}
		select {
		case <-lease.Done():
		case <-time.After(10 * time.Second):
			t.Errorf("token %q: the lease goes on", token)
		}
		if err := lease.Unlock(); !errors.Is(err, baton.ErrLost) {
			t.Errorf("token %q: unlock: %v", token, err)
		}
		if err := taken.Release(t.Context()); err != nil {
			t.Errorf("token %q: Baton has ended the lock of the original: %v", token, err)
		}
	}
	lease, err := locks.TryLock(t.Context(), "kept")
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range []string{"", "b2", "b1:" + lease.Key(), "8NnQwqPbrvkTIq3PmWkuWg"} {
		if _, err := theirs.Obtain(t.Context(), lease.Key(), time.Minute, &original.Options{Token: token}); err != original.ErrNotObtained {
			t.Errorf("token %q of the original: %v", token, err)
		}
	}
	if err := lease.Unlock(); err != nil {
		t.Error(err)
	}
}

// An attempt whose answer was lost leaves a lock that nobody knows of. It is released long
// before its TTL, unless its Token says that others may hold it.
func TestLostAnswerIsReleased(t *testing.T) {
	direct := client(t)
	proxy := faultproxy.New(t, testserver.SharedRedis(t).Addr)
	c := redis.NewClient(&redis.Options{Addr: proxy.Addr})
	defer c.Close()
	ours := redislock.New(c)
	// The server knows the scripts from now on, so the first request of each attempt takes effect.
	if err := obtain(t, ours, "lost/before", time.Second, nil).Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, lost := range []struct {
		key string
		opt *redislock.Options
	}{{"lost/shared", &redislock.Options{Token: "order 42"}}, {"lost/alone", nil}} {
		cut := proxy.CutAfterRequest(func(request []byte) bool { return bytes.Contains(request, []byte(lost.key)) })
		if _, err := ours.Obtain(t.Context(), lost.key, time.Minute, lost.opt); err == nil || errors.Is(err, redislock.ErrNotObtained) {
			t.Fatalf("%s: %v", lost.key, err)
		}
		<-cut
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	l, err := redislock.New(direct).Obtain(ctx, "lost/alone", time.Second, &redislock.Options{RetryStrategy: redislock.LinearBackoff(time.Millisecond)})
	if err != nil {
		t.Fatalf("the lock of which nobody knows is still there: %v", err)
	}
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := redislock.New(direct).Obtain(t.Context(), "lost/shared", time.Second, nil); err != redislock.ErrNotObtained {
		t.Errorf("a lock that others may hold was released: %v", err)
	}
	shared := obtain(t, ours, "lost/shared", time.Second, &redislock.Options{Token: "order 42"})
	if err := shared.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// A server that stands still while it is asked to release carries that out after the end of
// the lock, which was held when Release was called.
func TestReleaseThatOutlastsTheLock(t *testing.T) {
	server := testserver.Redis(t)
	c := redis.NewClient(&redis.Options{Addr: server.Addr})
	t.Cleanup(func() { c.Close() })
	lock := obtain(t, redislock.New(c), "slow", 500*time.Millisecond, nil)
	if _, err := server.Do("CLIENT", "PAUSE", "1000", "ALL"); err != nil {
		t.Fatal(err)
	}
	if err := lock.Release(t.Context()); err != nil {
		t.Errorf("Release: %v", err)
	}
	if err := lock.Release(t.Context()); err != redislock.ErrLockNotHeld {
		t.Errorf("the second Release: %v", err)
	}
}
