//go:build linux

package faulttest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/once"
)

// none is more requests than a call makes.
const none = 1000

const patientTTL = 20 * time.Second // nothing below waits for the end of one

// leftWithin is how long a claim without a holder may still be seen. A server of
// Redlock that missed a release is told of it with the next request.
func leftWithin(s driver.Store) time.Duration {
	if s.Traits().Store == "redlock" {
		return patientTTL + 10*time.Second
	}
	return patientTTL / 2
}

func patient(t *testing.T, s driver.Locks) *baton.Locker {
	t.Helper()
	l, err := baton.New(s, baton.Config{TTL: patientTTL})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// losing plays rounds on every store that is reached by connections. In the nth round
// each step loses the answer to its nth request; the last round is the one in which no
// step makes that many. A round returns what its steps have lost, and every step must
// have lost something in one of them. direct loses nothing.
func losing(t *testing.T, but string, steps []string, round func(t *testing.T, s *lossy, direct driver.Store, key string, nth int) map[string]*loss) {
	t.Parallel()
	for name, store := range networked {
		if name == but { // it does not have this
			continue
		}
		t.Run(name, func(t *testing.T) {
			mostlyLong(t, name)
			t.Parallel()
			url, open := store(t)
			s, direct := newLossy(t, open), openStore(t, url)
			round(t, s, direct, fmt.Sprint(t.Name(), "/", rand.Text(), "warm"), none) // connections, scripts, and what else is made once
			seen := map[string]int{}
			for nth, more := 1, true; more; nth++ {
				more = false
				for step, l := range round(t, s, direct, fmt.Sprint(t.Name(), "/", rand.Text(), nth), nth) {
					if l.happened(t) {
						more = true
						seen[step]++
					}
				}
				if nth == 20 {
					t.Fatal("the steps do not end")
				}
			}
			for _, step := range steps {
				if seen[step] == 0 {
					t.Errorf("%s: no answer was lost", step)
				}
			}
		})
	}
}

// A lossyRecords is one that keeps records.
type lossyRecords struct {
	*lossy
	driver.Records
}

func (s lossyRecords) FindRecord(ctx context.Context, key string) (r driver.Record, err error) {
	s.around("find", key, func() error { r, err = s.Records.FindRecord(ctx, key); return err })
	return r, err
}

func (s lossyRecords) BeginAttempt(ctx context.Context, a driver.Attempt, keep time.Duration) (r driver.Record, err error) {
	s.around("begin", a.Key, func() error { r, err = s.Records.BeginAttempt(ctx, a, keep); return err })
	return r, err
}

func (s lossyRecords) FinishAttempt(ctx context.Context, a driver.Attempt, o driver.Outcome, keep time.Duration) (r driver.Record, err error) {
	s.around("finish", a.Key, func() error { r, err = s.Records.FinishAttempt(ctx, a, o, keep); return err })
	return r, err
}

// An operation loses an answer at each step: it runs once, as the first attempt, and
// every process gets its result.
func TestOnceLosesAnswers(t *testing.T) {
	steps := []string{"acquire", "begin", "finish", "release"}
	losing(t, "redlock", append(steps, "find"), func(t *testing.T, s *lossy, direct driver.Store, key string, nth int) map[string]*loss {
		mine, err := once.New(lossyRecords{s, s.Store.(driver.Records)}, once.Config{Lock: baton.Config{TTL: patientTTL}})
		if err != nil {
			t.Fatal(err)
		}
		lost := map[string]*loss{}
		for _, step := range steps {
			lost[step] = s.lose(step, nth, after)
		}
		text, err := mine.Do(t.Context(), key, func(_ context.Context, a once.Attempt) ([]byte, error) {
			if a.Attempts != 1 {
				t.Errorf("%d: it is attempt %d", nth, a.Attempts)
			}
			return fmt.Append(nil, a.Token), nil
		})
		if err != nil {
			t.Errorf("%d: %v", nth, err)
		}
		rec, err := direct.(driver.Records).FindRecord(t.Context(), key)
		if err != nil || !rec.Done || rec.Attempts != 1 || string(rec.Result) != string(text) || string(text) != fmt.Sprint(rec.Token) {
			t.Errorf("%d: the result is %q, and recorded is %+v, %v", nth, text, rec, err)
		}
		lost["find"] = s.lose("find", nth, after)
		again, err := mine.Do(t.Context(), key, func(context.Context, once.Attempt) ([]byte, error) {
			t.Errorf("%d: it ran again", nth)
			return nil, nil
		})
		if err != nil || string(again) != string(text) {
			t.Errorf("%d: later %q, %v", nth, again, err)
		}
		awaitLine(t, patient(t, direct), once.LockPrefix+key, 0, 0, patientTTL/2)
		return lost
	})
}

// A lossyMover is one whose leases have one taker.
type lossyMover struct {
	*lossy
	mover driver.Mover
}

func (s lossyMover) Move(ctx context.Context, c driver.Claim, id, owner string, ttl time.Duration) (g driver.Grant, err error) {
	s.around("attach", c.Key, func() error { g, err = s.mover.Move(ctx, c, id, owner, ttl); return err })
	return g, err
}

// The answer to a process that takes up a lease is lost: the process has the lease,
// with its token, and no other can take it up.
func TestAttachLosesAnswers(t *testing.T) {
	losing(t, "zookeeper", []string{"attach", "renewing", "unlock"}, func(t *testing.T, s *lossy, direct driver.Store, key string, nth int) map[string]*loss {
		plain := patient(t, direct)
		lost := map[string]*loss{}
		mine, one := patient(t, s), false
		if mover, ok := s.Store.(driver.Mover); ok {
			mine, one = patient(t, lossyMover{s, mover}), true
			lost["attach"] = s.lose("attach", nth, after)
		} else { // it is renewed, and that is all
			lost["attach"] = s.lose("renew", nth, after)
		}
		lease, err := plain.Lock(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		handle, err := lease.Detach()
		if err != nil {
			t.Fatal(err)
		}
		got, err := mine.Attach(t.Context(), handle)
		if err != nil {
			t.Fatalf("%d: %v", nth, err)
		}
		if got.Token() != lease.Token() {
			t.Errorf("%d: token %d became %d", nth, lease.Token(), got.Token())
		}
		if _, err := plain.Attach(t.Context(), handle); one && !errors.Is(err, baton.ErrLost) {
			t.Errorf("%d: taken up a second time: %v", nth, err)
		}
		awaitLine(t, plain, key, 1, 0, patientTTL/2)

		lost["renewing"] = s.lose("renew", nth, after)
		s.wake()
		lost["renewing"].happened(t) // another one may still be under way
		n := s.answered("renew")
		s.wake()
		eventually(t, "a renewal is answered", patientTTL/2, func() bool { return s.answered("renew") > n })
		if err := got.Err(); err != nil {
			t.Errorf("%d: lost by an answer to a renewal: %v", nth, err)
		}
		lost["unlock"] = s.lose("release", nth, after)
		if err := got.Unlock(); err != nil {
			t.Errorf("%d: unlock: %v", nth, err)
		}
		awaitLine(t, plain, key, 0, 0, leftWithin(direct))
		return lost
	})
}

// A lossyAll is one that takes several locks in one act, if its store can.
type lossyAll struct {
	*lossy
}

func (s lossyAll) AcquireAll(ctx context.Context, all []driver.Request) (g []driver.Grant, err error) {
	many, ok := s.Store.(driver.Together)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	s.around("together", all[0].Key, func() error { g, err = many.AcquireAll(ctx, all); return err })
	return g, err
}

// Answers are lost while several locks are taken, in one act and one after the other,
// released because one is held, and unlocked: all are held, or none are, and none for
// long.
func TestLockAllLosesAnswers(t *testing.T) {
	losing(t, "", []string{"first", "second", "back-out", "unlock"}, func(t *testing.T, s *lossy, direct driver.Store, key string, nth int) map[string]*loss {
		plain := patient(t, direct)
		within := patientTTL / 2
		keys := []string{key + "{x}a", key + "{x}b", key + "{x}c"}
		lost := map[string]*loss{}
		nobody := func() {
			t.Helper()
			for _, k := range keys {
				awaitLine(t, plain, k, 0, 0, leftWithin(direct))
			}
		}
		everybody := func(all *baton.Leases, err error) {
			t.Helper()
			if err != nil {
				t.Fatalf("%d: %v", nth, err)
			}
			for _, k := range keys {
				awaitLine(t, plain, k, 1, 0, within)
			}
			if err := all.Err(); err != nil {
				t.Errorf("%d: %v", nth, err)
			}
			if err := all.Unlock(); err != nil {
				t.Errorf("%d: unlock: %v", nth, err)
			}
			nobody()
		}
		mine := patient(t, s)
		lost["first"], lost["second"] = s.loseOf(keys[0], "acquire", nth, after), s.loseOf(keys[1], "acquire", nth, after)
		lost["unlock"] = s.lose("release", nth, after)
		everybody(mine.LockAll(t.Context(), keys))

		// Released because one is held.
		held, err := plain.Lock(t.Context(), keys[2])
		if err != nil {
			t.Fatal(err)
		}
		lost["back-out"] = s.lose("release", nth, before)
		if _, err := mine.TryLockAll(t.Context(), keys); !errors.Is(err, baton.ErrHeld) {
			t.Errorf("%d: one is held: %v", nth, err)
		}
		awaitLine(t, plain, keys[0], 0, 0, leftWithin(direct))
		awaitLine(t, plain, keys[1], 0, 0, leftWithin(direct))
		if err := held.Unlock(); err != nil {
			t.Error(err)
		}

		// In one act.
		if _, ok := s.Store.(driver.Together); ok {
			mine = patient(t, lossyAll{s})
			lost["together"] = s.lose("together", nth, after)
			everybody(mine.LockAll(t.Context(), keys))
			if !lost["together"].caught.Load() && nth == 1 {
				t.Error("no answer was lost to taking them in one act")
			}
		}
		return lost
	})
}
