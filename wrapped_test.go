package baton_test

import (
	"context"
	"errors"
	"testing"

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
