package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/memstore"
)

func request(key string) driver.Request {
	return driver.Request{
		Claim: driver.Claim{Key: key, ID: driver.NewID(), Owner: "test", Weight: driver.Whole, Capacity: driver.Whole},
		TTL:   10 * time.Second,
	}
}

func mustAcquire(t *testing.T, s *memstore.Store, r driver.Request) driver.Grant {
	t.Helper()
	g, err := s.Acquire(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// An idle key costs nothing, whether it was released or left to expire, and the memory
// of many keys is freed.
func TestForgetsIdleKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		const n = 100_000
		rs := make([]driver.Request, n)
		for i := range rs {
			rs[i] = request(fmt.Sprint("released/", i))
			mustAcquire(t, s, rs[i])
		}
		if keys, _ := s.Keys(); keys != n {
			t.Fatalf("%d keys are held, the store has %d", n, keys)
		}
		for _, r := range rs {
			if err := s.Release(t.Context(), r.Claim); err != nil {
				t.Fatal(err)
			}
		}
		if keys, room := s.Keys(); keys != 0 || room > 64*1024 {
			t.Errorf("all were released, and the store has %d keys and room for %d", keys, room)
		}

		const live = 1000
		for i := range live {
			r := request(fmt.Sprint("live/", i))
			r.TTL = time.Hour
			mustAcquire(t, s, r)
		}
		for i := range n {
			mustAcquire(t, s, request(fmt.Sprint("abandoned/", i)))
			time.Sleep(10 * time.Millisecond) // so that at most 1000 of them are alive at a time
		}
		if keys, _ := s.Keys(); keys > 3*(2*live+64*64) {
			t.Errorf("%d keys were abandoned, about %d are alive, and the store has %d", n, 2*live, keys)
		}
	})
}

// A callback may call the store, and a callback that blocks delays no other call than
// its cause.
func TestWakesOutsideOfTheMutex(t *testing.T) {
	s := memstore.New()
	holder, waiter, other := request("k"), request("k"), request("k")
	mustAcquire(t, s, holder)
	waiter.Queue = true

	inCallback, goOn := make(chan driver.Grant), make(chan struct{})
	stop := s.Watch(waiter.Claim, func(h driver.Hint) {
		a := s.Renew(context.Background(), []driver.Claim{waiter.Claim}, time.Minute)
		if !h.Granted || a[0].State != driver.Held || a[0].Grant.Token != h.Grant.Token {
			t.Errorf("the hint says %+v, renewing in the callback %+v", h, a[0])
		}
		inCallback <- h.Grant
		<-goOn
	})
	mustAcquire(t, s, waiter)
	done := make(chan error)
	go func() { done <- s.Release(context.Background(), holder.Claim) }()
	<-inCallback
	if _, err := s.Acquire(t.Context(), other); err == nil {
		t.Error("two hold")
	}
	close(goOn)
	if err := <-done; err != nil {
		t.Error(err)
	}
	stop()
	stop() // harmless
	if n := s.Watches(); n != 0 {
		t.Errorf("%d watches are left", n)
	}
}

func TestClose(t *testing.T) {
	s := memstore.New()
	r := request("k")
	mustAcquire(t, s, r)
	woken := make(chan driver.Hint, 1)
	s.Watch(r.Claim, func(h driver.Hint) { woken <- h })
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if h := <-woken; h.Granted {
		t.Errorf("woken with %+v", h)
	}
	ctx := t.Context()
	_, acquired := s.Acquire(ctx, r)
	_, inspected := s.Inspect(ctx, "k")
	_, broken := s.Break(ctx, "k")
	_, downgraded := s.Downgrade(ctx, r.Claim, time.Second)
	errs := []error{acquired, inspected, broken, downgraded, s.Release(ctx, r.Claim), s.Renew(ctx, []driver.Claim{r.Claim}, time.Second)[0].Err}
	for _, err := range s.List(ctx, "") {
		errs = append(errs, err)
	}
	for i, err := range errs {
		if !errors.Is(err, driver.ErrClosed) {
			t.Errorf("method %d after Close: %v", i, err)
		}
	}
	if len(errs) != 7 {
		t.Errorf("List after Close yielded %d times", len(errs)-6)
	}
}

// The pair is the price of an uncontended critical section.
func TestPairAllocatesLittle(t *testing.T) {
	s := memstore.New()
	r := request("k")
	ctx := t.Context()
	if n := testing.AllocsPerRun(1000, func() {
		s.Acquire(ctx, r)
		s.Release(ctx, r.Claim)
	}); n > 1 {
		t.Errorf("acquire and release allocate %v times", n)
	}
}

func BenchmarkPair(b *testing.B) {
	s := memstore.New()
	r := request("k")
	ctx := b.Context()
	for b.Loop() {
		s.Acquire(ctx, r)
		s.Release(ctx, r.Claim)
	}
}
