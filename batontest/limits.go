package batontest

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/batonhq/baton/driver/limits"
)

// Exhaust makes every limit of key refuse for d: nothing remains, and RetryAfter is the
// rest of d. Requests take nothing meanwhile, and waiters continue after d. Forget ends
// it, and so does Fault.Stop.
//
// key is that of Limiter.Allow. To exhaust one of several limits, pass its key in the
// store (see ratelimit.Limiter): "tokens/{tenant/7}", "*/everybody".
func (s *Store) Exhaust(key string, d time.Duration) *Fault {
	s.t.Helper()
	call := fmt.Sprintf("Exhaust(%q, %v)", key, d)
	if key == "" || d <= 0 {
		s.t.Fatalf("batontest: %s changes nothing: it needs a key and a time", call)
	}
	return s.plant(&Fault{call: call, op: Take, key: key, until: time.Now().Add(d)})
}

// Take implements limits.Store.
func (s *Store) Take(ctx context.Context, r limits.Request) (taken limits.Taken, err error) {
	err = s.do(ctx, Take, func() error {
		taken, err = s.take(ctx, r)
		return err
	})
	if err != nil {
		return limits.Taken{}, err
	}
	return taken, nil
}

// SetOverride implements limits.Overrider.
func (s *Store) SetOverride(ctx context.Context, o limits.Override, keep time.Duration) error {
	return s.do(ctx, Override, func() error { return s.mem.SetOverride(ctx, o, keep) })
}

// Overrides implements limits.Overrider.
func (s *Store) Overrides(ctx context.Context) (all []limits.Override, err error) {
	err = s.do(ctx, Overrides, func() error {
		all, err = s.mem.Overrides(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// ListStates implements limits.Lister. It meets the faults of Take.
func (s *Store) ListStates(ctx context.Context, prefix, after string) iter.Seq2[limits.State, error] {
	return listed(ctx, s, Take, s.mem.ListStates(ctx, prefix, after))
}

func (s *Store) take(ctx context.Context, r limits.Request) (limits.Taken, error) {
	if r.Mode == limits.Forget {
		s.refresh(r)
	}
	if r.Mode != limits.TakeIfAllowed {
		return s.mem.Take(ctx, r)
	}
	left := s.exhausted(r)
	if left == nil {
		return s.mem.Take(ctx, r)
	}
	if err := limits.Check(r); err != nil {
		return limits.Taken{}, err
	}
	for i, t := range r.Takes {
		if left[i] > ahead(r, t) {
			return s.refuse(ctx, r, left)
		}
	}
	taken, err := s.mem.Take(ctx, r)
	for i := range taken.Limits {
		if d := &taken.Limits[i]; taken.OK {
			d.Wait = max(d.Wait, left[i])
			taken.Wait = max(taken.Wait, d.Wait)
		}
	}
	return taken, err
}

// ahead is how far ahead a limit's turn may be.
func ahead(r limits.Request, t limits.Take) time.Duration {
	switch t.Limit.Algorithm {
	case limits.TokenBucket:
		return r.MaxWait
	case limits.LeakyBucket:
		return r.TurnWithin
	}
	return 0
}

// refuse takes nothing, and answers for limits of which those with time left are
// exhausted.
func (s *Store) refuse(ctx context.Context, r limits.Request, left []time.Duration) (limits.Taken, error) {
	look := limits.Request{Now: r.Now}
	for _, t := range r.Takes {
		t.Cost = 0
		look.Takes = append(look.Takes, t)
	}
	taken, err := s.mem.Take(ctx, look)
	if err != nil {
		return taken, err
	}
	for i, t := range r.Takes {
		d, retry := &taken.Limits[i], taken.Limits[i].Reset
		if left[i] > 0 {
			d.Remaining, d.Next, d.Reset = 0, left[i], max(d.Reset, left[i])
			retry = left[i]
			if t.Limit.Algorithm == limits.LeakyBucket {
				retry = max(retry-r.TurnWithin, time.Microsecond)
			}
		}
		if d.OK = t.Cost <= d.Remaining; d.OK {
			continue
		}
		if t.Cost > t.Limit.Capacity() {
			retry = limits.Never
		}
		d.Retry, taken.OK, taken.Retry = retry, false, max(taken.Retry, retry)
	}
	return taken, nil
}

// exhausted returns how long each limit of the request is exhausted; nil if none is.
func (s *Store) exhausted(r limits.Request) (left []time.Duration) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.faults {
		if f.key == "" || f.stopped || !now.Before(f.until) {
			continue
		}
		for i, t := range r.Takes {
			if !isOf(t.Key, f.key) {
				continue
			}
			f.met = true
			if left == nil {
				left = make([]time.Duration, len(r.Takes))
			}
			left[i] = max(left[i], (f.until.Sub(now) + time.Microsecond - 1).Truncate(time.Microsecond)) // never early
		}
	}
	return left
}

// refresh ends Exhaust for the keys of a request.
func (s *Store) refresh(r limits.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.faults {
		for _, t := range r.Takes {
			if f.key != "" && isOf(t.Key, f.key) {
				f.stopped = true
			}
		}
	}
}

// isOf reports whether the store's key is that of a limit of the caller's key, or is that
// key.
func isOf(stored, key string) bool {
	name, rest, named := strings.Cut(stored, "/")
	return stored == key || named && name != "*" && (rest == "{"+key+"}" || rest == "/"+key)
}
