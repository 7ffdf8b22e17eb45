package drivertest

import (
	"context"
	"errors"
	"time"

	"github.com/batonhq/baton/driver"
)

var dependence = power("Harness.Depend", func(h Harness) bool { return h.Depend != nil })

// claimed is a lease as package baton has it.
type claimed driver.Claim

func (c claimed) Pin() (driver.Claim, error) { return driver.Claim(c), nil }

// depend begins a transaction that depends on what s holds.
func (s *seat) depend() (end func() error) {
	s.t.Helper()
	end, err := s.t.h.Depend(s.t, s.l(), claimed(s.Claim))
	if err != nil {
		s.t.Fatalf("%s: InTx: %v", s.name, err)
	}
	return end
}

// dependentTries is how often another process asks during a transaction; dependentWait is
// how long each attempt waits for an answer.
const (
	dependentTries = 4
	dependentWait  = 75 * time.Millisecond
)

// outlastedBy lets act end or downgrade what s holds while a transaction depends on it,
// and asserts that a reader is granted only after the transaction.
func (s *seat) outlastedBy(act func(context.Context) error) {
	t := s.t
	t.Helper()
	end := s.depend()
	acted := make(chan error, 1)
	go func() { acted <- act(t.ctx) }()
	r := t.reader(1, s.Key)
	for i := range dependentTries {
		ctx, cancel := context.WithTimeout(t.ctx, dependentWait)
		g, err := r.l().Acquire(ctx, r.request(false, i > 0))
		if err == nil {
			t.Errorf("%s: granted %+v while a transaction depends on %s", r.name, g, s.name)
		}
		<-ctx.Done() // whatever the answer was, the next attempt comes later
		cancel()
	}
	if err := end(); err != nil {
		t.Fatalf("%s: the transaction: %v", s.name, err)
	}
	// A store may wait for the transaction or give up.
	err := <-acted
	t.await(s.name+": the act is done", 10*time.Second, func() bool {
		if err != nil && !errors.Is(err, driver.ErrLost) {
			err = act(t.ctx)
		}
		return err == nil || errors.Is(err, driver.ErrLost)
	})
	t.await(r.name+" is granted", 10*time.Second, func() bool { return r.acquire(false, true) == nil })
	r.leave()
}

var dependenceCases = []testCase{
	{
		name:  "nobody comes in while a transaction depends on a lease",
		why:   "InTx promises that what the transaction wrote is committed before any other holder can act, whatever becomes of the lease",
		needs: []need{dependence, fifo, inspector, downgrader, shared},
		run: func(t *test) {
			type act func(*seat, context.Context) error
			for key, end := range map[string]act{
				"released": func(s *seat, ctx context.Context) error { return s.l().Release(ctx, s.Claim) },
				"broken": func(s *seat, ctx context.Context) error {
					_, err := ability[driver.Inspector](t.locks[2]).Break(ctx, s.Key)
					return err
				},
				"downgraded": func(s *seat, ctx context.Context) error {
					_, err := ability[driver.Downgrader](s.l()).Downgrade(ctx, s.Claim, s.ttl)
					return err
				},
			} {
				free := t.writer(0, key).hold()
				first := t.writer(2, key+" out of the queue").hold()
				queued := t.writer(0, first.Key).join()
				first.leave()
				queued.awaitHeld(0)
				for _, s := range []*seat{free, queued} {
					s.outlastedBy(func(ctx context.Context) error { return end(s, ctx) })
					if key == "downgraded" {
						s.Weight = 1
						s.mustBe(driver.Held)
						s.leave()
					}
					t.free(s.Key)
				}
			}
		},
	},
	{
		name:  "no transaction depends on a lease that has ended",
		why:   "InTx is asked in the end, by a program that may have been stopped for long",
		needs: []need{dependence, fifo},
		run: func(t *test) {
			refused := func(s *seat) {
				t.Helper()
				if _, err := t.h.Depend(t, s.l(), claimed(s.Claim)); !errors.Is(err, driver.ErrLost) {
					t.Errorf("%s: InTx: %v, want driver.ErrLost", s.name, outcome(err))
				}
			}
			released := t.writer(0, "released").hold()
			released.leave()
			refused(released)
			t.writer(1, "released").hold()
			refused(released)
			t.writer(1, "held").hold()
			refused(t.writer(0, "held").join())
			expired := t.writer(0, "expired").crashing().hold()
			t.outlive(expired.ttl)
			refused(expired)
			refused(t.writer(0, "never"))
		},
	},
}
