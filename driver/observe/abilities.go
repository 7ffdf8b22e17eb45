package observe

import (
	"context"
	"iter"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
)

// abilities has the methods of all optional abilities. As returns it as an ability that
// the wrapped store has. It is no driver.Locks, so that As cannot be asked for another
// one.
type abilities struct {
	*teller
	in any // the wrapped store, as that ability
}

var _ interface {
	driver.Together
	driver.Downgrader
	driver.Mover
	driver.Renamer
	driver.Inspector
	driver.Records
	driver.RecordLister
	driver.Examiner
	driver.Clock
	limits.Overrider
	limits.Lister
} = abilities{}

func (s abilities) AcquireAll(ctx context.Context, r []driver.Request) (g []driver.Grant, err error) {
	defer s.tell(ctx, AcquireAll, len(r), time.Now(), &err)
	return s.in.(driver.Together).AcquireAll(ctx, r)
}

func (s abilities) Downgrade(ctx context.Context, c driver.Claim, ttl time.Duration) (g driver.Grant, err error) {
	defer s.tell(ctx, Downgrade, 1, time.Now(), &err)
	return s.in.(driver.Downgrader).Downgrade(ctx, c, ttl)
}

func (s abilities) Move(ctx context.Context, c driver.Claim, id, owner string, ttl time.Duration) (g driver.Grant, err error) {
	defer s.tell(ctx, Move, 1, time.Now(), &err)
	return s.in.(driver.Mover).Move(ctx, c, id, owner, ttl)
}

func (s abilities) Rename(ctx context.Context, c driver.Claim, owner string) (err error) {
	defer s.tell(ctx, Rename, 1, time.Now(), &err)
	return s.in.(driver.Renamer).Rename(ctx, c, owner)
}

func (s abilities) Inspect(ctx context.Context, key string) (info driver.KeyInfo, err error) {
	defer s.tell(ctx, Inspect, 1, time.Now(), &err)
	return s.in.(driver.Inspector).Inspect(ctx, key)
}

func (s abilities) List(ctx context.Context, prefix string) iter.Seq2[driver.KeyInfo, error] {
	return listed(ctx, s.teller, List, s.in.(driver.Inspector).List(ctx, prefix))
}

func (s abilities) Break(ctx context.Context, key string, grants ...string) (ended int, err error) {
	defer s.tell(ctx, Break, 1, time.Now(), &err)
	return s.in.(driver.Inspector).Break(ctx, key, grants...)
}

func (s abilities) BeginAttempt(ctx context.Context, a driver.Attempt, keep time.Duration) (r driver.Record, err error) {
	defer s.tell(ctx, Begin, 1, time.Now(), &err)
	return s.in.(driver.Records).BeginAttempt(ctx, a, keep)
}

func (s abilities) FinishAttempt(ctx context.Context, a driver.Attempt, o driver.Outcome, keep time.Duration) (r driver.Record, err error) {
	defer s.tell(ctx, Finish, 1, time.Now(), &err)
	return s.in.(driver.Records).FinishAttempt(ctx, a, o, keep)
}

func (s abilities) FindRecord(ctx context.Context, key string) (r driver.Record, err error) {
	defer s.tell(ctx, Find, 1, time.Now(), &err)
	return s.in.(driver.Records).FindRecord(ctx, key)
}

func (s abilities) ForgetRecord(ctx context.Context, key string) (err error) {
	defer s.tell(ctx, Forget, 1, time.Now(), &err)
	return s.in.(driver.Records).ForgetRecord(ctx, key)
}

func (s abilities) ListRecords(ctx context.Context, prefix string) iter.Seq2[driver.Record, error] {
	return listed(ctx, s.teller, Records, s.in.(driver.RecordLister).ListRecords(ctx, prefix))
}

func (s abilities) Examine(ctx context.Context) (found []driver.Finding, err error) {
	defer s.tell(ctx, Examine, 0, time.Now(), &err)
	return s.in.(driver.Examiner).Examine(ctx)
}

func (s abilities) ServerTime(ctx context.Context) (at time.Time, err error) {
	defer s.tell(ctx, Time, 0, time.Now(), &err)
	return s.in.(driver.Clock).ServerTime(ctx)
}

func (s abilities) SetOverride(ctx context.Context, o limits.Override, keep time.Duration) (err error) {
	defer s.tell(ctx, Override, 1, time.Now(), &err)
	return s.in.(limits.Overrider).SetOverride(ctx, o, keep)
}

func (s abilities) Overrides(ctx context.Context) ([]limits.Override, error) {
	sent := time.Now()
	all, err := s.in.(limits.Overrider).Overrides(ctx)
	s.tell(ctx, Overrides, len(all), sent, &err)
	return all, err
}

func (s abilities) ListStates(ctx context.Context, prefix, after string) iter.Seq2[limits.State, error] {
	return listed(ctx, s.teller, States, s.in.(limits.Lister).ListStates(ctx, prefix, after))
}

func listed[T any](ctx context.Context, to *teller, operation string, all iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		sent, n := time.Now(), 0
		var failed error
		defer func() { to.tell(ctx, operation, n, sent, &failed) }() // also if the body of the loop panics
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

// closing and limited are driver.Locks as well, so each has one ability: As returns the
// others.
type closing struct {
	*locks
	store driver.Store
}

func (s closing) Close() error { return s.store.Close() }

type limited struct {
	*locks
	in limits.Store
}

func (s limited) Take(ctx context.Context, r limits.Request) (taken limits.Taken, err error) {
	defer s.tell(ctx, Take, len(r.Takes), time.Now(), &err)
	return s.in.Take(ctx, r)
}

// limitsAlone is a store for limits only.
type limitsAlone struct {
	*teller
	in limits.Store
}

func (s limitsAlone) Take(ctx context.Context, r limits.Request) (taken limits.Taken, err error) {
	defer s.tell(ctx, Take, len(r.Takes), time.Now(), &err)
	return s.in.Take(ctx, r)
}

// As sets target to an ability that makes requests, if the wrapped store has it.
func (s limitsAlone) As(target any) bool {
	switch t := target.(type) {
	case *limits.Lister:
		in, ok := limits.ListerOf(s.in)
		return give(s.teller, t, in, ok)
	case *limits.Overrider:
		in, ok := limits.OverriderOf(s.in)
		return give(s.teller, t, in, ok)
	}
	return false
}

// ask sets target to the ability T, if l has it.
func ask[T any](t *teller, l driver.Locks, target *T) bool {
	in, ok := driver.As[T](l)
	return give(t, target, in, ok)
}

func give[T any](t *teller, target *T, in T, ok bool) bool {
	if ok {
		*target = any(abilities{t, in}).(T)
	}
	return ok
}
