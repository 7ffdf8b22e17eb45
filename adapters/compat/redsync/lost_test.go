package redsync_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	goredislib "github.com/redis/go-redis/v9"

	"github.com/batonhq/baton/adapters/compat/redsync"
	"github.com/batonhq/baton/adapters/compat/redsync/redis/goredis/v9"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// through makes a Redsync behind a proxy. Its server knows the scripts of Lock and Unlock, so the
// first request of each takes effect.
func through(t *testing.T) (*redsync.Redsync, *faultproxy.Proxy) {
	t.Helper()
	proxy := faultproxy.New(t, testserver.SharedRedis(t).Addr)
	c := goredislib.NewClient(&goredislib.Options{Addr: proxy.Addr})
	t.Cleanup(func() { c.Close() })
	r := redsync.New(goredis.NewPool(c))
	m := r.NewMutex(t.Name() + "/before")
	lock(t, m)
	if ok, err := m.Unlock(); !ok || err != nil {
		t.Fatal(ok, err)
	}
	return r, proxy
}

// free waits until the lock is free, for much less than its expiry.
func free(t *testing.T, r *redsync.Redsync, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	m := r.NewMutex(name, redsync.WithTries(1_000_000), redsync.WithRetryDelay(time.Millisecond))
	if err := m.LockContext(ctx); err != nil {
		t.Fatalf("a lock of which nobody knows is still there: %v", err)
	}
	if ok, err := m.Unlock(); !ok || err != nil {
		t.Error(ok, err)
	}
}

// An attempt whose answer was lost leaves a lock that nobody knows of.
func TestLostAnswerIsReleased(t *testing.T) {
	_, direct, _ := clients(t)
	ours, proxy := through(t)
	cut := proxy.CutAfterRequest(func(request []byte) bool { return bytes.Contains(request, []byte("lost")) })
	m := ours.NewMutex("lost", redsync.WithExpiry(time.Minute))
	var failed *redsync.RedisError
	if err := m.TryLock(); !errors.As(err, &failed) || m.Value() != "" {
		t.Fatalf("%v, value %q", err, m.Value())
	}
	<-cut
	free(t, direct, "lost")
}

// An answer that comes when the lock may have ended is none.
func TestLateAnswer(t *testing.T) {
	_, direct, _ := clients(t)
	ours, proxy := through(t)
	// It is trusted for 600ms and stands for a minute.
	m := ours.NewMutex("late", redsync.WithExpiry(time.Minute), redsync.WithDriftFactor(0.99))
	lock(t, m)
	until, value := m.Until(), m.Value()
	proxy.Delay(faultproxy.ToClient, 700*time.Millisecond)
	if ok, err := m.Extend(); ok || !errors.Is(err, redsync.ErrExtendFailed) || !m.Until().Equal(until) {
		t.Errorf("Extend: %v, %v, until %v, before %v", ok, err, m.Until(), until)
	}
	proxy.Heal()
	if ok, err := m.Unlock(); !ok || err != nil {
		t.Error(ok, err)
	}
	proxy.Delay(faultproxy.ToClient, 700*time.Millisecond)
	if err := m.TryLock(); !errors.Is(err, redsync.ErrFailed) || m.Value() != value {
		t.Errorf("Lock: %v, value %q, before %q", err, m.Value(), value)
	}
	proxy.Heal()
	free(t, direct, "late")
}

// A server that stands still while it is asked to release carries that out after the end of
// the lock, which was held when Unlock was called.
func TestUnlockThatOutlastsTheLock(t *testing.T) {
	server := testserver.Redis(t)
	c := goredislib.NewClient(&goredislib.Options{Addr: server.Addr})
	t.Cleanup(func() { c.Close() })
	m := redsync.New(goredis.NewPool(c)).NewMutex("slow", redsync.WithExpiry(500*time.Millisecond))
	lock(t, m)
	if _, err := server.Do("CLIENT", "PAUSE", "1000", "ALL"); err != nil {
		t.Fatal(err)
	}
	if ok, err := m.Unlock(); !ok || err != nil {
		t.Errorf("Unlock: %v, %v", ok, err)
	}
	if ok, err := m.Unlock(); ok || !errors.Is(err, redsync.ErrLockAlreadyExpired) {
		t.Errorf("the second Unlock: %v, %v", ok, err)
	}
}
