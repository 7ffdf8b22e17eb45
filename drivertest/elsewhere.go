package drivertest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
)

// elsewhereWithin is how long a store may take to find its new server.
const elsewhereWithin = 10 * time.Second

// Elsewhere checks that a store in a running process finds the server to which its
// address leads now. move makes the store's server refuse every change without closing a
// connection, and makes the address lead to another server, which knows none of the
// locks.
func Elsewhere(t T, l driver.Locks, move func()) {
	t.Helper()
	m := longLived{t, l}
	m.all("before") // over as many connections as the store opens
	m.hint("before")
	move()
	began := time.Now()
	for n := 0; ; n++ {
		err := m.one(fmt.Sprintf("moving/%d", n))
		if err == nil {
			break
		}
		if !errors.Is(err, driver.ErrUnavailable) && !errors.Is(err, driver.ErrUnknown) {
			t.Errorf("while the server is another one: %v, want driver.ErrUnavailable", err)
		}
		if time.Since(began) > elsewhereWithin {
			t.Fatalf("after %v the store still asks the server that does not serve: %v", elsewhereWithin, err)
		}
		<-time.After(20 * time.Millisecond) // like a caller that tries again
	}
	t.Logf("back after %v", time.Since(began).Round(time.Millisecond))
	m.all("after") // no connection leads to the old server
	m.hint("after")
}

type longLived struct {
	t T
	l driver.Locks
}

func (m longLived) claim(key string) driver.Claim {
	return driver.Claim{Key: key, ID: driver.NewID(), Owner: "test", Weight: driver.Whole, Capacity: driver.Whole}
}

// one takes a lock, renews it, releases it, and asks a limit.
func (m longLived) one(key string) error {
	ctx, cancel := context.WithTimeout(m.t.Context(), 5*time.Second)
	defer cancel()
	c := m.claim(key)
	g, err := m.l.Acquire(ctx, driver.Request{Claim: c, TTL: 5 * time.Second})
	if err != nil {
		return err
	}
	c.Ticket = g.Ticket
	if r := m.l.Renew(ctx, []driver.Claim{c}, 5*time.Second)[0]; r.State == driver.Unknown {
		return r.Err
	} else if r.State != driver.Held {
		m.t.Errorf("%s, just acquired, is %v", key, r.State)
	}
	if err := m.l.Release(ctx, c); err != nil {
		return err
	}
	if counts, ok := driver.As[limits.Store](m.l); ok {
		_, err = counts.Take(ctx, limits.Request{Takes: []limits.Take{{Key: key, Limit: limits.Limit{Algorithm: limits.FixedWindow, N: 5, Period: time.Minute}, Cost: 1}}})
	}
	return err
}

// all runs one many times at once.
func (m longLived) all(when string) {
	m.t.Helper()
	var work sync.WaitGroup
	for i := range 24 {
		work.Go(func() {
			for n := range 4 {
				if err := m.one(fmt.Sprintf("%s/%d/%d", when, i, n)); err != nil {
					m.t.Errorf("%s: %v", when, err)
				}
			}
		})
	}
	work.Wait()
}

// hint checks that a waiter is told of its turn, if the store can tell: at the latest
// when it listens on its new connection.
func (m longLived) hint(when string) {
	m.t.Helper()
	if _, ok := driver.As[driver.Watcher](m.l); !ok {
		return
	}
	for began := time.Now(); !m.hinted(when); {
		if time.Since(began) > elsewhereWithin {
			m.t.Fatalf("%s: for %v no waiter was told of its turn", when, elsewhereWithin)
		}
	}
}

// hinted reports whether a waiter was told, and did not find the grant by itself.
func (m longLived) hinted(key string) bool {
	m.t.Helper()
	hints := make(chan driver.Hint, 16)
	holder, waiter := m.claim(key), m.claim(key)
	w, _ := driver.As[driver.Watcher](m.l)
	stop := w.Watch(waiter, func(h driver.Hint) {
		select {
		case hints <- h:
		default: // the channel is full: spurious hints are legal
		}
	})
	defer stop()
	for _, c := range []*driver.Claim{&holder, &waiter} {
		g, err := m.l.Acquire(m.t.Context(), driver.Request{Claim: *c, TTL: 30 * time.Second, Queue: true})
		if err != nil {
			m.t.Fatalf("%s: %v", key, err)
		}
		c.Ticket = g.Ticket
	}
	if err := m.l.Release(m.t.Context(), holder); err != nil {
		m.t.Fatalf("%s: %v", key, err)
	}
	defer func() {
		if err := m.l.Release(m.t.Context(), waiter); err != nil && !errors.Is(err, driver.ErrLost) {
			m.t.Errorf("%s: %v", key, err)
		}
	}()
	for poll := time.After(driver.WaiterTTL / 3); ; {
		select {
		case h := <-hints:
			if h.Granted {
				return true
			}
		case <-poll:
			return false
		}
	}
}
