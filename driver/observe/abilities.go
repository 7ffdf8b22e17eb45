package observe

import (
	"context"
	"iter"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
)

type together struct {
	*locks
	in driver.Together
}

func (s together) AcquireAll(ctx context.Context, r []driver.Request) ([]driver.Grant, error) {
	sent := time.Now()
	all, err := s.in.AcquireAll(ctx, r)
	s.tell(ctx, AcquireAll, len(r), sent, err)
	return all, err
}

type downgrader struct {
	*locks
	in driver.Downgrader
}

func (s downgrader) Downgrade(ctx context.Context, c driver.Claim, ttl time.Duration) (driver.Grant, error) {
	sent := time.Now()
	g, err := s.in.Downgrade(ctx, c, ttl)
	s.tell(ctx, Downgrade, 1, sent, err)
	return g, err
}

type mover struct {
	*locks
	in driver.Mover
}

func (s mover) Move(ctx context.Context, c driver.Claim, id, owner string, ttl time.Duration) (driver.Grant, error) {
	sent := time.Now()
	g, err := s.in.Move(ctx, c, id, owner, ttl)
	s.tell(ctx, Move, 1, sent, err)
	return g, err
}

type inspector struct {
	*locks
	in driver.Inspector
}

func (s inspector) Inspect(ctx context.Context, key string) (driver.KeyInfo, error) {
	sent := time.Now()
	info, err := s.in.Inspect(ctx, key)
	s.tell(ctx, Inspect, 1, sent, err)
	return info, err
}

func (s inspector) List(ctx context.Context, prefix string) iter.Seq2[driver.KeyInfo, error] {
	return listed(ctx, s.teller, List, s.in.List(ctx, prefix))
}

func (s inspector) Break(ctx context.Context, key string, grants ...string) (ended int, err error) {
	sent := time.Now()
	ended, err = s.in.Break(ctx, key, grants...)
	s.tell(ctx, Break, 1, sent, err)
	return ended, err
}

type renamer struct {
	*locks
	in driver.Renamer
}

func (s renamer) Rename(ctx context.Context, c driver.Claim, owner string) error {
	sent := time.Now()
	err := s.in.Rename(ctx, c, owner)
	s.tell(ctx, Rename, 1, sent, err)
	return err
}

type lister struct {
	*locks
	in driver.RecordLister
}

func (s lister) ListRecords(ctx context.Context, prefix string) iter.Seq2[driver.Record, error] {
	return listed(ctx, s.teller, Records, s.in.ListRecords(ctx, prefix))
}

// listed reports a list when the loop over it ends.
func listed[T any](ctx context.Context, to *teller, operation string, all iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		sent, n := time.Now(), 0
		var failed error
		defer func() { to.tell(ctx, operation, n, sent, failed) }() // also if the body of the loop panics
		for one, err := range all {
			if failed = err; err == nil {
				n++
			}
			began := time.Now()
			more := yield(one, err)
			sent = sent.Add(time.Since(began))
			if !more {
				return
			}
		}
	}
}

type records struct {
	*locks
	in driver.Records
}

func (s records) BeginAttempt(ctx context.Context, a driver.Attempt, keep time.Duration) (driver.Record, error) {
	sent := time.Now()
	r, err := s.in.BeginAttempt(ctx, a, keep)
	s.tell(ctx, Begin, 1, sent, err)
	return r, err
}

func (s records) FinishAttempt(ctx context.Context, a driver.Attempt, o driver.Outcome, keep time.Duration) (driver.Record, error) {
	sent := time.Now()
	r, err := s.in.FinishAttempt(ctx, a, o, keep)
	s.tell(ctx, Finish, 1, sent, err)
	return r, err
}

func (s records) FindRecord(ctx context.Context, key string) (driver.Record, error) {
	sent := time.Now()
	r, err := s.in.FindRecord(ctx, key)
	s.tell(ctx, Find, 1, sent, err)
	return r, err
}

func (s records) ForgetRecord(ctx context.Context, key string) error {
	sent := time.Now()
	err := s.in.ForgetRecord(ctx, key)
	s.tell(ctx, Forget, 1, sent, err)
	return err
}

type examiner struct {
	*locks
	in driver.Examiner
}

func (s examiner) Examine(ctx context.Context) ([]driver.Finding, error) {
	sent := time.Now()
	found, err := s.in.Examine(ctx)
	s.tell(ctx, Examine, 0, sent, err)
	return found, err
}

type clock struct {
	*locks
	in driver.Clock
}

func (s clock) ServerTime(ctx context.Context) (time.Time, error) {
	sent := time.Now()
	t, err := s.in.ServerTime(ctx)
	s.tell(ctx, Time, 0, sent, err)
	return t, err
}

// limited is a store for limits that is one for locks, too.
type limited struct {
	*locks
	in limits.Store
}

func (s limited) Take(ctx context.Context, r limits.Request) (limits.Taken, error) {
	return s.take(ctx, s.in, r)
}

type overrider struct {
	*teller
	in limits.Overrider
}

func (s overrider) SetOverride(ctx context.Context, o limits.Override, keep time.Duration) error {
	sent := time.Now()
	err := s.in.SetOverride(ctx, o, keep)
	s.tell(ctx, Override, 1, sent, err)
	return err
}

func (s overrider) Overrides(ctx context.Context) ([]limits.Override, error) {
	sent := time.Now()
	all, err := s.in.Overrides(ctx)
	s.tell(ctx, Overrides, len(all), sent, err)
	return all, err
}

type stateLister struct {
	*teller
	in limits.Lister
}

func (s stateLister) ListStates(ctx context.Context, prefix, after string) iter.Seq2[limits.State, error] {
	return listed(ctx, s.teller, States, s.in.ListStates(ctx, prefix, after))
}

// limitsAlone is a store for limits only.
type limitsAlone struct {
	*teller
	in limits.Store
}

// As gives the abilities that make requests, if the wrapped store has them.
func (s limitsAlone) As(target any) bool {
	found := false
	switch t := target.(type) {
	case *limits.Lister:
		var in limits.Lister
		if in, found = limits.ListerOf(s.in); found {
			*t = stateLister{s.teller, in}
		}
	case *limits.Overrider:
		var in limits.Overrider
		if in, found = limits.OverriderOf(s.in); found {
			*t = overrider{s.teller, in}
		}
	}
	return found
}

func (s limitsAlone) Take(ctx context.Context, r limits.Request) (limits.Taken, error) {
	return s.take(ctx, s.in, r)
}

func (t *teller) take(ctx context.Context, in limits.Store, r limits.Request) (limits.Taken, error) {
	sent := time.Now()
	taken, err := in.Take(ctx, r)
	t.tell(ctx, Take, len(r.Takes), sent, err)
	return taken, err
}
