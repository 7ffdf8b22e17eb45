package memstore

import (
	"context"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/rate"
)

// limitShard has the limits of some keys, and the IDs of requests whose first key is one
// of them.
type limitShard struct {
	mu      sync.Mutex
	buckets atomic.Pointer[buckets] // prepared token buckets
	states  map[string]*limitState  // the other states
	ids     map[limitID]remembered
}

// A limitState may be dropped at until: it has no effect then.
type limitState struct {
	state rate.State
	until time.Duration
}

type limitID struct{ key, id string }

// remembered is an allowed request with an ID.
type remembered struct {
	at, wait int64 // µs
	until    time.Duration
}

// Take implements limits.Store.
func (s *Store) Take(ctx context.Context, t limits.Request) (limits.Taken, error) {
	r, err := s.known.NewRequest(t)
	if err != nil {
		return limits.Taken{}, err
	}
	if err := s.check(ctx); err != nil {
		return limits.Taken{}, err
	}
	return s.take(r)
}

func (s *Store) take(r *rate.Request) (limits.Taken, error) {
	if s.closed.Load() {
		return limits.Taken{}, driver.ErrClosed
	}
	d, clock, changed, err := s.decide(r)
	s.tick(clock.Microseconds())
	if changed {
		k := uint64(len(r.Takes))
		if n := s.changes.Add(k); n/sweepEvery != (n-k)/sweepEvery {
			s.limits[n/sweepEvery%numShards].sweep(s.now())
		}
	}
	return d, err
}

func (s *Store) decide(r *rate.Request) (d limits.Taken, clock time.Duration, changed bool, err error) {
	defer s.lockLimits(r)()
	for _, t := range r.Takes {
		hash := maphash.String(s.seed, t.Key)
		s.takeOut(&s.limits[hash%numShards], hash, t.Key)
	}
	clock = s.now() // no decision about these keys has a later time
	states := make([]rate.State, len(r.Takes))
	for i, t := range r.Takes {
		sh := &s.limits[s.shardOf(t.Key)]
		states[i] = slices.Clone(sh.state(t.Key, clock)) // a decision overwrites it
	}
	home := &s.limits[s.shardOf(r.Takes[0].Key)]
	id := limitID{r.Takes[0].Key, r.ID}
	var past *rate.Past
	if m, ok := home.ids[id]; ok && r.ID != "" && m.until > clock {
		past = &rate.Past{At: m.at, Wait: m.wait}
	}
	if d, changed, err = r.Answer(traits.Store, clock.Microseconds(), states, past); !changed {
		return d, clock, false, err
	}
	for i, t := range r.Takes {
		sh := &s.limits[s.shardOf(t.Key)]
		if len(states[i]) == 0 {
			delete(sh.states, t.Key)
			continue
		}
		sh.keep(t.Key, states[i], clock+r.Keep(d.Limits[i].Reset))
	}
	if r.ID != "" && d.OK {
		if home.ids == nil {
			home.ids = make(map[limitID]remembered)
		}
		home.ids[id] = remembered{d.At, d.Wait.Microseconds(), clock + r.Keep(r.Request.Keep)}
	}
	return d, clock, true, nil
}

// state is the state of a key outside the table of buckets.
func (sh *limitShard) state(key string, clock time.Duration) rate.State {
	if st := sh.states[key]; st != nil && st.until > clock {
		return st.state
	}
	return nil
}

func (sh *limitShard) keep(key string, state rate.State, until time.Duration) {
	if sh.states == nil {
		sh.states = make(map[string]*limitState)
	}
	st := sh.states[key]
	if st == nil {
		st = new(limitState)
		sh.states[key] = st
	}
	st.state, st.until = state, until
}

// lockLimits locks the shards of the request, always in the same order, so that requests
// do not deadlock.
func (s *Store) lockLimits(r *rate.Request) (unlock func()) {
	var wanted [numShards]bool
	for _, t := range r.Takes {
		wanted[s.shardOf(t.Key)] = true
	}
	for i := range wanted {
		if wanted[i] {
			s.limits[i].mu.Lock()
		}
	}
	return func() {
		for i := range wanted {
			if wanted[i] {
				s.limits[i].mu.Unlock()
			}
		}
	}
}

const (
	sweepEvery = 4 // changed keys between two sweeps of a shard
	sweepLooks = 3 * sweepEvery
)

// sweep drops ended states among some keys, in the random order of maps. It looks at more
// keys than can have been added since the last sweep, so that ended ones do not
// accumulate.
func (sh *limitShard) sweep(clock time.Duration) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.sweepLocked(clock, sweepLooks)
}

func (sh *limitShard) sweepLocked(clock time.Duration, looks int) {
	n := 0
	for key, st := range sh.states {
		if st.until <= clock {
			delete(sh.states, key)
		}
		if n++; n == looks {
			break
		}
	}
	n = 0
	for id, m := range sh.ids {
		if m.until <= clock {
			delete(sh.ids, id)
		}
		if n++; n == looks {
			break
		}
	}
}

const (
	tickEvery = 100_000 // µs
	tickLooks = 10_000
)

// tick sweeps a part of one shard each tenth of a second, in turn. It runs at refusals
// and at takes from prepared buckets, too, which do not count as changes: otherwise the
// keys of callers that stopped asking would stay.
func (s *Store) tick(at int64) {
	last := s.swept.Load()
	if at-last < tickEvery || !s.swept.CompareAndSwap(last, at) {
		return
	}
	sh := &s.limits[s.sweeps.Add(1)%numShards]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.sweepLocked(micros(at), tickLooks)
	if t := sh.buckets.Load(); t != nil && len(t.slots) > smallest && t.live(at) < len(t.slots)/4 {
		sh.buckets.Store(s.rebuild(t, at))
	}
}
