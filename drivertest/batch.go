package drivertest

import (
	"errors"
	"fmt"
	"time"

	"github.com/batonhq/baton/driver"
)

var batchCases = []testCase{
	{
		name: "one bad key does not spoil a batch",
		why:  "a process renews all its leases in one call; one that is lost must not take the others with it",
		run: func(t *test) {
			first, last := t.writer(0, "first").hold(), t.writer(0, "last").hold()
			released := t.writer(0, "released").hold()
			released.leave()
			never := t.writer(0, "never")
			stolen := t.writer(0, "stolen").hold()
			stolen.leave()
			t.writer(1, "stolen").hold()
			t.renew(first, released, never, stolen, last)
			for _, s := range []*seat{released, never, stolen} {
				if s.state != driver.Lost {
					t.Errorf("%s: %v, want lost", s.name, s.state)
				}
			}
			t.held(first, last)
		},
	},
	{
		name:  "a batch may hold waiters and holders",
		why:   "each answer is about its own claim, in its own place",
		needs: []need{fifo},
		run: func(t *test) {
			t.writer(1, "busy").hold()
			h := t.writer(1, "handed over").hold()
			a, b := t.writer(0, "first").hold(), t.writer(0, "last").hold()
			waits, granted := t.writer(0, "busy").join(), t.writer(0, "handed over").join()
			h.leave()
			lost := t.writer(0, "busy") // on the key of a waiter
			t.renew(a, waits, lost, granted, b)
			want := []driver.State{driver.Held, driver.Waiting, driver.Lost, driver.Held, driver.Held}
			for i, s := range []*seat{a, waits, lost, granted, b} {
				if s.state != want[i] {
					t.Errorf("number %d, %s: %v, want %v", i+1, s.name, s.state, want[i])
				}
			}
			if granted.grant.TTL <= driver.ClaimTTL {
				t.Errorf("%s: confirmed for %v, want %v", granted.name, granted.grant.TTL, granted.ttl)
			}
		},
	},
	{
		name:  "a batch may hold all kinds of claims",
		why:   "stores keep readers, permits and writers in different places",
		needs: []need{shared, permits},
		run: func(t *test) {
			var all []*seat
			for i := range 3 {
				all = append(all,
					t.reader(0, "readers").hold(),
					t.permits(0, "permits", int64(i+1), 6).hold(),
					t.writer(0, fmt.Sprint("writer ", i)).hold())
			}
			all[3].leave() // a reader in the middle
			t.renew(all...)
			for i, s := range all {
				if want := map[bool]driver.State{true: driver.Lost, false: driver.Held}[i == 3]; s.state != want {
					t.Errorf("number %d, %s: %v, want %v", i+1, s.name, s.state, want)
				}
			}
		},
	},
	{
		name: "an illegal claim does not spoil a batch",
		why:  "a key that the store cannot even name is one bad key like another",
		run: func(t *test) {
			a, b := t.writer(0, "a").hold(), t.writer(0, "b").hold()
			noKey, noID := t.writer(0, "\x00"), t.writer(0, "a")
			noID.ID = "not an id"
			answers := a.l().Renew(t.ctx, []driver.Claim{a.Claim, noKey.Claim, noID.Claim, b.Claim}, a.ttl)
			if len(answers) != 4 {
				t.Fatalf("renewing 4 claims gave %d answers", len(answers))
			}
			for i, want := range []driver.State{driver.Held, driver.Unknown, driver.Unknown, driver.Held} {
				got := answers[i]
				if want == driver.Unknown && got.State == driver.Lost {
					continue // also true
				}
				if got.State != want {
					t.Errorf("number %d: %v (%v), want %v", i+1, got.State, got.Err, want)
				}
				if want == driver.Unknown && got.Err == nil {
					t.Errorf("number %d: unknown without an error", i+1)
				}
			}
		},
	},
	{
		name:  "something that is not a lock does not spoil a batch",
		why:   "others use the same server; a script or statement that fails on their key fails on that key alone",
		needs: []need{foreign},
		run: func(t *test) {
			a, b := t.writer(0, "a").hold(), t.writer(0, "b").hold()
			t.h.Put(t, "theirs", t.locks[0])
			theirs := t.writer(0, "theirs")
			t.renew(a, theirs, b)
			if theirs.state == driver.Held || theirs.state == driver.Waiting {
				t.Errorf("%s: %v", theirs.name, theirs.state)
			}
			if a.state != driver.Held || b.state != driver.Held {
				t.Errorf("beside it: %v and %v, want held", a.state, b.state)
			}
		},
	},
	{
		name: "a batch renews every claim for the whole TTL",
		why:  "not only the first, nor only those on one server",
		run: func(t *test) {
			ttl := max(time.Second, t.short())
			var all []*seat
			for i := range 12 {
				all = append(all, t.writer(0, fmt.Sprint("k", i)).lasting(ttl).hold().lasting(t.long()))
			}
			t.held(all...)
			t.outlive(ttl)
			t.held(all...)
		},
	},
	{
		name: "a large batch",
		why:  "a process may hold hundreds of locks; a store that splits them must answer all, in order",
		run: func(t *test) {
			all := make([]*seat, 300)
			for i := range all {
				all[i] = t.writer(0, fmt.Sprint("k", i)).hold()
			}
			all[150].leave()
			t.renew(all...)
			for i, s := range all {
				if want := map[bool]driver.State{true: driver.Lost, false: driver.Held}[i == 150]; s.state != want {
					t.Errorf("number %d: %v, want %v", i, s.state, want)
				}
			}
			if got := t.locks[0].Renew(t.ctx, nil, t.long()); len(got) != 0 {
				t.Errorf("an empty batch gave %d answers", len(got))
			}
		},
	},
}

var foreignCases = []testCase{
	{
		name:  "what is not a lock is left alone",
		why:   "others use the same server, and their data must neither be taken for a lock nor be overwritten",
		needs: []need{foreign},
		run: func(t *test) {
			t.h.Put(t, "theirs", t.locks[0])
			for i := range 2 * handles {
				s := t.writer(i%handles, "theirs")
				err := s.acquire(i%2 == 1, false)
				e, ok := errors.AsType[*driver.NotLockError](err)
				if !ok {
					t.Fatalf("%s: acquire: %v, want a *driver.NotLockError", s.name, outcome(err))
				}
				if e.Key != "theirs" || e.Store != t.traits.Store || e.Found == "" {
					t.Errorf("%s: %+v lacks a fact", s.name, *e)
				}
			}
			t.free("ours")
		},
	},
}
