package memstore

import (
	"context"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/kept"
	"github.com/batonhq/baton/internal/local"
	"github.com/batonhq/baton/internal/lockstate"
	"github.com/batonhq/baton/internal/quorum"
	"github.com/batonhq/baton/internal/rate"
)

var traits = driver.Traits{
	Store:   "memory",
	Fencing: true,
	FIFO:    true,
	Shared:  true,
	Permits: true,
	MinTTL:  time.Millisecond,
	MaxTTL:  24 * time.Hour,
}

// Store keeps locks (driver.Store, with all abilities of package driver but
// driver.Clock), rate limits (limits.Store, limits.Lister, limits.Overrider,
// local.Limits) and records (driver.Records, driver.RecordLister), and is a
// quorum.Member. All methods are safe for concurrent use. None waits, except for mutexes
// that are held for one operation.
//
// Tokens follow the wall clock at the time of New, in microseconds: a later store, in
// this process or the next, gives higher ones unless that clock was set back.
type Store struct {
	life   string       // unique for each store
	seed   maphash.Seed // random, so that an attacker cannot aim at one shard
	opened time.Time
	epoch  time.Duration // from 1970 to opened, by the wall clock
	base   int64         // epoch in microseconds
	closed atomic.Bool
	shards [numShards]shard
	limits [numShards]limitShard

	texts texts
	records
	overrides

	known   rate.Known
	changes atomic.Uint64 // of limits

	_      [64]byte // separates what every decision reads from what every decision writes
	swept  atomic.Int64
	_      [56]byte
	sweeps atomic.Uint64
}

const numShards = 64

var (
	_ driver.Store      = (*Store)(nil)
	_ driver.Watcher    = (*Store)(nil)
	_ driver.Inspector  = (*Store)(nil)
	_ driver.Downgrader = (*Store)(nil)
	_ driver.Mover      = (*Store)(nil)
	_ driver.Renamer    = (*Store)(nil)
	_ driver.Together   = (*Store)(nil)
	_ quorum.Member     = (*Store)(nil)
	_ driver.Examiner   = (*Store)(nil)
	_ local.Limits      = (*Store)(nil)
	_ limits.Overrider  = (*Store)(nil)
	_ driver.Records    = (*Store)(nil)
)

// New returns an empty store.
func New() *Store {
	now := time.Now()
	s := &Store{life: driver.NewID(), seed: maphash.MakeSeed(), opened: now, epoch: time.Duration(now.UnixNano()), base: now.UnixMicro()}
	texts := kept.Texts{Store: traits.Store, Swap: s.swapText, List: s.listTexts}
	s.records, s.overrides = kept.NewRecords(texts), kept.NewOverrides(texts)
	return s
}

// Traits implements driver.Locks.
func (s *Store) Traits() driver.Traits { return traits }

// Close drops all locks and wakes all watches. Later calls return driver.ErrClosed.
func (s *Store) Close() error {
	s.closed.Store(true)
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		watches := sh.watches
		sh.keys, sh.watches, sh.spare = nil, nil, nil
		sh.mu.Unlock()
		l := &s.limits[i]
		l.mu.Lock()
		l.states, l.ids = nil, nil
		l.buckets.Store(nil)
		l.mu.Unlock()
		for _, ws := range watches {
			for _, w := range ws {
				w.wake(driver.Hint{})
			}
		}
	}
	s.texts.mu.Lock()
	s.texts.all = nil
	s.texts.mu.Unlock()
	return nil
}

// now is the store's clock: the wall clock at the time of New plus the monotonic clock,
// so it never goes back.
func (s *Store) now() time.Duration { return s.epoch + time.Since(s.opened) }

func (s *Store) check(ctx context.Context) error {
	if s.closed.Load() {
		return driver.ErrClosed
	}
	return ctx.Err()
}

func (s *Store) shard(key string) *shard {
	return &s.shards[s.shardOf(key)]
}

func (s *Store) shardOf(key string) uint64 {
	return maphash.String(s.seed, key) % numShards
}

func (s *Store) visit(key string, f func(st *lockstate.State, now time.Duration)) {
	sh := s.shard(key)
	sh.mu.Lock()
	st := sh.keys[key]
	if st == nil {
		sh.mu.Unlock()
		return
	}
	now := s.now()
	f(st, now)
	wake := sh.settle(key, st, now)
	sh.mu.Unlock()
	wake.all()
}

// shard has the keys with the same hash modulo the number of shards.
type shard struct {
	mu      sync.Mutex
	keys    map[string]*lockstate.State // only those that have or had a holder
	tokens  lockstate.Counter           // one for all keys, so that an idle key needs none
	watches map[claimName][]*watch
	spare   []*lockstate.State

	peak    int // the most keys since the map was made
	sweepAt int // the number of keys at which a search for abandoned ones pays off
	_       [64]byte
}

// create adds a state for key. Before the map grows to twice its size, it drops the keys
// whose claims have all expired. So there are never many of these, without a timer.
func (sh *shard) create(key string, now time.Duration) *lockstate.State {
	if len(sh.keys) >= max(sh.sweepAt, 64) { // twice what the last search left
		for key, st := range sh.keys {
			if st.Idle(now) {
				sh.drop(key, st)
			}
		}
		sh.sweepAt = 2 * len(sh.keys)
	}
	var st *lockstate.State
	if n := len(sh.spare); n > 0 {
		st = sh.spare[n-1]
		sh.spare = sh.spare[:n-1]
		st.Reuse(key)
	} else {
		st = lockstate.New(key, &sh.tokens)
	}
	if sh.keys == nil {
		sh.keys = map[string]*lockstate.State{}
	}
	sh.keys[key] = st
	sh.peak = max(sh.peak, len(sh.keys))
	return st
}

// drop removes an idle key. A map keeps the memory of its greatest size, so drop replaces
// one that has become almost empty.
func (sh *shard) drop(key string, st *lockstate.State) {
	delete(sh.keys, key)
	sh.sweepAt = min(sh.sweepAt, 2*len(sh.keys)+64)
	if len(sh.spare) < 8 {
		sh.spare = append(sh.spare, st)
	}
	if sh.peak >= 1024 && len(sh.keys) < sh.peak/8 {
		small := make(map[string]*lockstate.State, len(sh.keys))
		for k, v := range sh.keys {
			small[k] = v
		}
		sh.keys, sh.peak = small, len(small)
	}
}

// settle ends an operation on a key: it drops the key if it is idle, and returns the
// watches to wake after unlocking the mutex.
func (sh *shard) settle(key string, st *lockstate.State, now time.Duration) wakes {
	var w wakes
	for _, e := range st.Events() {
		for _, watch := range sh.watches[claimName{key, e.ID}] {
			w = append(w, wakeUp{watch.wake, driver.Hint{Granted: e.Held, Grant: e.Grant}})
		}
	}
	if st.Idle(now) {
		sh.drop(key, st)
	}
	return w
}

type claimName struct{ key, id string }

type wakeUp struct {
	wake func(driver.Hint)
	hint driver.Hint
}

// wakes are called without a mutex, so that a callback may call the store, and a slow one
// delays no other call.
type wakes []wakeUp

func (w wakes) all() {
	for _, x := range w {
		x.wake(x.hint)
	}
}
