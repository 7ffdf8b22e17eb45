package memstore

import (
	"hash/maphash"
	"math"
	"math/bits"
	"strings"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/local"
	"github.com/batonhq/baton/internal/rate"
)

// A token bucket is one number, the moment at which it is full, so a decision is one
// compare-and-swap. Prepared buckets are therefore in tables that are read without a
// lock. A key is in the table or in limitShard.states, never in both: code that needs it
// in one removes it from the other.

// bucketLimit is a prepared limit of a token bucket. Its unit of time makes the rate
// integral: a microsecond has tokens units, and a token takes period units.
type bucketLimit struct {
	s      *Store
	rule   limits.Limit
	rate   *rate.Bucket
	burst  int64
	tokens int64
	period int64
	full   int64 // units to fill an empty bucket

	byTokens, byPeriod divisor
}

// bucket is the state of one key. Only full changes.
type bucket struct {
	full  atomic.Int64 // when it is full, in units since Store.base; or gone
	limit *bucketLimit
	key   string
}

const gone = math.MinInt64

// buckets is a table with open addressing. Writers hold limitShard.mu, readers hold no
// mutex.
type buckets struct {
	slots []atomic.Pointer[bucket]
	tags  []uint32 // a part of the hash of each slot's key, which saves comparisons with other keys
	used  int      // slots other than nil
}

func tagOf(hash uint64) uint32 { return uint32(hash >> 32) }

// removed fills the slots of removed buckets.
var removed = new(bucket)

// maxTokens bounds the fineness of a unit, so that a century of them can be counted.
const maxTokens = 2500

// Prepare implements local.Limits for token buckets.
func (s *Store) Prepare(l limits.Limit) local.Prepared {
	a, err := rate.Of(l)
	b, ok := a.(*rate.Bucket)
	if err != nil || !ok || b.Queue || b.Tokens > maxTokens || b.Burst > math.MaxInt64/4/b.Period {
		return nil
	}
	return &bucketLimit{
		s: s, rule: l, rate: b, burst: b.Burst, tokens: b.Tokens, period: b.Period, full: b.Burst * b.Period,
		byTokens: divideBy(b.Tokens), byPeriod: divideBy(b.Period),
	}
}

// Take implements local.Prepared.
func (b *bucketLimit) Take(key string, cost int64) (d local.Decision, at int64, err error) {
	s := b.s
	if cost <= 0 || cost > b.burst || s.closed.Load() {
		return b.slow(key, cost)
	}
	hash := maphash.String(s.seed, key)
	at = s.now().Microseconds() // before the bucket comes into the cache: other goroutines use it too
	if at-s.swept.Load() >= tickEvery {
		s.tick(at)
	}
	e := s.limits[hash%numShards].buckets.Load().find(hash, key)
	if e == nil || e.limit != b {
		if e, at = b.enter(hash, key); e == nil {
			return b.slow(key, cost)
		}
	}
	need := cost * b.period
	for {
		full := e.full.Load()
		if full == gone {
			return b.slow(key, cost)
		}
		used := b.used(full, at)
		over := used + need - b.full
		if over > 0 {
			// Perhaps only because other goroutines took after this one had read the
			// clock: a refusal needs a later reading.
			at = s.now().Microseconds()
			used = b.used(full, at)
			if over = used + need - b.full; over > 0 {
				return b.describe(used, b.micros(over)), at, nil
			}
		}
		if e.full.CompareAndSwap(full, (at-s.base)*b.tokens+used+need) {
			return b.describe(used+need, 0), at, nil
		}
	}
}

// used is the used part at at of a bucket that is full at full, in units.
func (b *bucketLimit) used(full, at int64) int64 {
	return max(full-(at-b.s.base)*b.tokens, 0)
}

// describe is the decision for a bucket with used units in use. After a take used is
// above zero.
func (b *bucketLimit) describe(used int64, retry time.Duration) local.Decision {
	left := b.byPeriod.of(b.full - used)
	return local.Decision{
		Remaining: left, Retry: retry, Reset: b.micros(used),
		Next: b.micros(used + (left+1)*b.period - b.full),
	}
}

// micros converts units, rounded up.
func (b *bucketLimit) micros(units int64) time.Duration {
	return micros(b.byTokens.of(units + b.tokens - 1))
}

// divisor divides by multiplication, which is faster.
type divisor struct{ by, inverse uint64 }

func divideBy(by int64) divisor { return divisor{uint64(by), math.MaxUint64 / uint64(by)} }

// of is the quotient of n, which is not negative.
func (d divisor) of(n int64) int64 {
	q, _ := bits.Mul64(uint64(n), d.inverse) // the quotient, or one less
	if uint64(n)-q*d.by >= d.by {
		q++
	}
	return int64(q)
}

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// slow handles what Take does not: bad requests, buckets in debt, and buckets that were
// removed from the table meanwhile.
func (b *bucketLimit) slow(key string, cost int64) (d local.Decision, at int64, err error) {
	r, err := b.s.known.NewRequest(limits.Request{Takes: []limits.Take{{Key: key, Limit: b.rule, Cost: cost}}})
	if err != nil {
		return d, 0, err
	}
	t, err := b.s.take(r)
	if err != nil {
		return d, 0, err
	}
	l := t.Limits[0]
	return local.Decision{Remaining: l.Remaining, Retry: l.Retry, Next: l.Next, Reset: l.Reset}, t.At, nil
}

// enter finds the key's bucket, or makes one of the key's state, and returns the time. It
// returns nil if the state does not fit into one number, or if the key is illegal.
func (b *bucketLimit) enter(hash uint64, key string) (e *bucket, at int64) {
	if check.Key(key) != nil {
		return nil, 0
	}
	sh := &b.s.limits[hash%numShards]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if e := sh.buckets.Load().find(hash, key); e != nil && e.limit == b {
		return e, b.s.now().Microseconds()
	}
	b.s.takeOut(sh, hash, key)    // its bucket may be of another limit
	at = b.s.now().Microseconds() // after takeOut: no decision about the key has a later time
	us, parts := at, int64(0)
	if state := sh.state(key, micros(at)); len(state) > 0 {
		var ok bool
		if us, parts, ok = b.rate.Full(state, at); !ok {
			return nil, 0
		}
	}
	delete(sh.states, key)
	e = &bucket{limit: b, key: strings.Clone(key)}
	e.full.Store((us-b.s.base)*b.tokens + parts)
	b.s.putIn(sh, hash, e, at)
	return e, at
}

func (t *buckets) find(hash uint64, key string) *bucket {
	if t == nil {
		return nil
	}
	mask := uint64(len(t.slots) - 1)
	for i := hash / numShards; ; i++ {
		e := t.slots[i&mask].Load()
		if e == nil || t.tags[i&mask] == tagOf(hash) && e.key == key { // removed has no key
			return e
		}
	}
}

// takeOut moves a key from the table to the other states.
func (s *Store) takeOut(sh *limitShard, hash uint64, key string) {
	t := sh.buckets.Load()
	e := t.find(hash, key)
	if e == nil {
		return
	}
	full := e.full.Swap(gone) // from now on no goroutine changes it
	mask := uint64(len(t.slots) - 1)
	i := hash / numShards
	for t.slots[i&mask].Load() != e {
		i++
	}
	t.slots[i&mask].Store(removed)
	us := s.base + full/e.limit.tokens
	sh.keep(key, e.limit.rate.FullAt(us, full%e.limit.tokens), micros(us+1))
}

// putIn adds a bucket to the table.
func (s *Store) putIn(sh *limitShard, hash uint64, e *bucket, at int64) {
	t := sh.buckets.Load()
	if t == nil || (t.used+1)*4 > len(t.slots)*3 {
		t = s.rebuild(t, at)
		t.insert(hash, e)
		sh.buckets.Store(t)
		return
	}
	t.insert(hash, e)
}

func (t *buckets) insert(hash uint64, e *bucket) {
	mask := uint64(len(t.slots) - 1)
	for i := hash / numShards; ; i++ {
		if t.slots[i&mask].Load() == nil {
			t.tags[i&mask] = tagOf(hash) // before the slot can be found
			t.slots[i&mask].Store(e)
			t.used++
			return
		}
	}
}

// lingers is how long, in microseconds, a key is kept after it is full: busy keys usually
// come again, and making them anew would cost more.
const lingers = 1_000_000

// idle reports whether a bucket has been full for long enough to be dropped.
func (b *bucketLimit) idle(full, at int64) bool { return full <= (at-b.s.base-lingers)*b.tokens }

// live is the number of buckets that are not idle.
func (t *buckets) live(at int64) (n int) {
	for i := range t.slots {
		if e := t.slots[i].Load(); e != nil && e != removed && !e.limit.idle(e.full.Load(), at) {
			n++
		}
	}
	return n
}

const smallest = 8

// rebuild makes a table without idle buckets, with room for more.
func (s *Store) rebuild(old *buckets, at int64) *buckets {
	var live []*bucket
	if old != nil {
		for i := range old.slots {
			e := old.slots[i].Load()
			if e == nil || e == removed {
				continue
			}
			full := e.full.Load()
			if e.limit.idle(full, at) && e.full.CompareAndSwap(full, gone) {
				continue
			}
			live = append(live, e)
		}
	}
	size := smallest
	for size*3 < (len(live)+1)*5 { // at most three fifths
		size *= 2
	}
	t := &buckets{slots: make([]atomic.Pointer[bucket], size), tags: make([]uint32, size)}
	for _, e := range live {
		t.insert(maphash.String(s.seed, e.key), e)
	}
	return t
}
