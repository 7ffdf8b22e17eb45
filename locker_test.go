package baton_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/store/memstore"
)

// tallied counts the attempts to acquire, as a wrapping store may.
type tallied struct {
	driver.Locks
	attempts int
}

func (c *tallied) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	c.attempts++
	return c.Locks.Acquire(ctx, r)
}

// opened is tallied with Unwrap.
type opened struct{ *tallied }

func (o opened) Unwrap() driver.Locks { return o.Locks }

// A store with Unwrap, here two of them, hides no abilities of the wrapped store;
// one without it has only its own.
func TestAbilitiesSurviveAWrapper(t *testing.T) {
	t.Parallel()
	inner := &tallied{Locks: memstore.New()}
	all := map[string]func(context.Context, *baton.Locker) error{
		"Inspect": func(ctx context.Context, l *baton.Locker) error { _, err := l.Inspect(ctx, "k"); return err },
		"Downgrade": func(ctx context.Context, l *baton.Locker) error {
			lease, err := l.Lock(ctx, "k")
			if err != nil {
				return err
			}
			return errors.Join(lease.Downgrade(ctx), lease.Unlock())
		},
	}
	for what, try := range all {
		open, err := baton.New(opened{&tallied{Locks: opened{inner}}}, baton.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if err := try(t.Context(), open); err != nil {
			t.Errorf("%s over a store that tells what it wraps: %v", what, err)
		}
		closed, err := baton.New(inner, baton.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if err := try(t.Context(), closed); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s over a store that does not: %v, want errors.ErrUnsupported", what, err)
		}
	}
	if _, err := once.New(opened{inner}, once.Config{}); err != nil {
		t.Errorf("records over a store that tells what it wraps: %v", err)
	}
	if _, err := once.New(inner, once.Config{}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("records over a store that does not: %v", err)
	}
	if inner.attempts == 0 {
		t.Error("the wrapper saw no attempt")
	}
	for what, found := range map[string]bool{
		"Watcher": has[driver.Watcher](opened{inner}), "Together": has[driver.Together](opened{inner}), "Mover": has[driver.Mover](opened{inner}),
	} {
		if !found {
			t.Errorf("%s was not found", what)
		}
	}
	if has[driver.Watcher](inner) {
		t.Error("a Watcher was found in a store that tells nothing")
	}
}

func has[T any](l driver.Locks) bool { _, ok := driver.As[T](l); return ok }

// giving gives records of its own, and nothing else, by As.
type giving struct {
	opened
	records driver.Records
}

func (g giving) As(target any) bool {
	records, ok := target.(*driver.Records)
	if ok {
		*records = g.records
	}
	return ok
}

// What a wrapper gives by As comes before what it wraps, and the rest is still found.
func TestAsComesBeforeUnwrap(t *testing.T) {
	t.Parallel()
	inner, mine := memstore.New(), memstore.New()
	outer := opened{&tallied{Locks: giving{opened{&tallied{Locks: inner}}, mine}}}
	if got, _ := driver.As[driver.Records](outer); got != driver.Records(mine) {
		t.Errorf("the records are %p", got)
	}
	if got, _ := driver.As[driver.Inspector](outer); got != driver.Inspector(inner) {
		t.Errorf("the inspector is %p", got)
	}
	if has[interface{ Nothing() }](outer) {
		t.Error("what none has was found")
	}
}

// narrow is a store that accepts few TTLs.
type narrow struct {
	driver.Locks
	min, max time.Duration
}

func (n narrow) Traits() driver.Traits {
	t := n.Locks.Traits()
	t.MinTTL, t.MaxTTL = n.min, n.max
	return t
}

// The default TTL is fitted to the store; a configured one is not.
func TestDefaultTTL(t *testing.T) {
	for _, c := range []struct {
		min, max, delay, want time.Duration
	}{
		{0, 0, 0, 15 * time.Second},
		{time.Second, time.Minute, 0, 15 * time.Second},
		{2 * time.Second, 10 * time.Second, 0, 10 * time.Second},
		{20 * time.Second, 0, 0, 20 * time.Second},
		{2 * time.Second, 10 * time.Second, 3 * time.Second, 7 * time.Second},
	} {
		store := narrow{memstore.New(), c.min, c.max}
		l := newLocker(t, store, baton.Config{LockDelay: c.delay})
		lease := mustLock(t, l, "k")
		if left := time.Until(lease.Deadline()); left > c.want*9/10 || left < c.want*9/10-time.Second {
			t.Errorf("%v to %v, LockDelay %v: the lease lasts %v, want nine tenths of %v", c.min, c.max, c.delay, left, c.want)
		}
		mustUnlock(t, lease)
	}
	store := narrow{memstore.New(), 2 * time.Second, 10 * time.Second}
	for _, cfg := range []baton.Config{{TTL: baton.DefaultTTL}, {TTL: time.Second}, {LockDelay: 9 * time.Second}} {
		_, err := baton.New(store, cfg)
		if bad, ok := errors.AsType[*baton.ConfigError](err); !ok || bad.Field != "TTL" {
			t.Errorf("%v and a LockDelay of %v: %v", cfg.TTL, cfg.LockDelay, err)
		}
	}
}
