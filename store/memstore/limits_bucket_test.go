package memstore_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/local"
	"github.com/batonhq/baton/store/memstore"
)

func prepare(t testing.TB, s *memstore.Store, l limits.Limit) local.Prepared {
	t.Helper()
	p := s.Prepare(l)
	if p == nil {
		t.Fatalf("%+v is not prepared", l)
	}
	return p
}

func bucketOf(n int64, period time.Duration, burst int64) limits.Limit {
	return limits.Limit{Algorithm: limits.TokenBucket, N: n, Period: period, Burst: burst}
}

// The quick way gives the same answers as the other one, and the two can be mixed.
func TestPreparedSaysTheSame(t *testing.T) {
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, seed))
			quick, plain := memstore.New(), memstore.New()
			all := make([]limits.Limit, 2)
			for i := range all {
				all[i] = bucketOf(1+r.Int64N(30), time.Duration(1+r.Int64N(2_000_000))*time.Microsecond, 1+r.Int64N(20))
			}
			for step := range 500 {
				time.Sleep([]time.Duration{0, time.Duration(r.IntN(5)), time.Duration(r.IntN(2000)) * time.Microsecond, time.Duration(r.IntN(900)) * time.Millisecond}[r.IntN(4)])
				l := all[r.IntN(len(all))]
				key := fmt.Sprint("k", r.IntN(3))
				q := limits.Request{Takes: []limits.Take{{Key: key, Limit: l, Cost: r.Int64N(l.Burst + 2)}}}
				switch r.IntN(8) {
				case 0:
					q.MaxWait = time.Second
				case 1:
					q.Mode = limits.TakeAnyway
				case 2:
					q.Mode, q.At = limits.GiveBack, r.Int64N(2)*time.Now().UnixMicro()
				}
				want, err := plain.Take(t.Context(), q)
				if err != nil {
					t.Fatal(err)
				}
				var got limits.Decision
				at := int64(0)
				if q.Mode == limits.TakeIfAllowed && q.MaxWait == 0 && r.IntN(4) > 0 {
					var p local.Decision
					p, at, err = prepare(t, quick, l).Take(key, q.Takes[0].Cost)
					got = limits.Decision{OK: p.Retry == 0, Remaining: p.Remaining, Retry: p.Retry, Next: p.Next, Reset: p.Reset}
				} else {
					var d limits.Taken
					d, err = quick.Take(t.Context(), q)
					got, at = d.Limits[0], d.At
				}
				if err != nil || got != want.Limits[0] || at != want.At {
					t.Fatalf("seed %d, step %d, %+v: %+v at %d, %v; want %+v at %d", seed, step, q, got, at, err, want.Limits[0], want.At)
				}
			}
		})
	}
}

func TestDivide(t *testing.T) {
	t.Parallel()
	edges := []int64{0, 1, 2, 3, 7, 99, 100, 2500, 999_983, 1 << 31, 1<<32 - 1, 1 << 32, 1<<53 - 1, 1 << 61, math.MaxInt64 - 1, math.MaxInt64}
	check := func(n, by int64) {
		if got := memstore.Divide(n, by); got != n/by {
			t.Errorf("%d / %d is %d, not %d", n, by, n/by, got)
		}
	}
	for _, n := range edges {
		for _, by := range edges[1:] {
			check(n, by)
			for _, near := range []int64{-1, 0, 1} { // around a multiple
				if m := n - n%by + near; m >= 0 {
					check(m, by)
				}
			}
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		check(r.Int64()>>r.IntN(63), 1+r.Int64()>>r.IntN(63))
	}
}

// Whatever ways are mixed by any goroutines, exactly the burst is allowed.
func TestPreparedIsExact(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	limit := bucketOf(1, time.Hour, 5000)
	other := bucketOf(1, 59*time.Minute, 5000) // takes the key out of the table, and puts it in
	var allowed atomic.Int64
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			p, o := prepare(t, s, limit), prepare(t, s, other)
			for i := range 4000 {
				var d local.Decision
				var err error
				switch {
				case i%50 == 7:
					var all limits.Taken
					all, err = s.Take(t.Context(), limits.Request{Takes: []limits.Take{{Key: "k", Limit: limit, Cost: 1}, {Key: fmt.Sprint("l", g), Limit: limit, Cost: 1}}})
					d.Retry = all.Retry
				case i%50 == 23:
					d, _, err = o.Take("k", 1)
				default:
					d, _, err = p.Take("k", 1)
				}
				if err != nil {
					t.Error(err)
				}
				if d.Retry == 0 {
					allowed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if n := allowed.Load(); n != 5000 {
		t.Errorf("%d of 5000 were allowed", n)
	}
}

// While tables grow, and other goroutines forget what they find in them, a key gives
// exactly its burst.
func TestPreparedIsExactInGrowingTables(t *testing.T) {
	t.Parallel()
	const (
		goroutines, keys, burst = 4, 200, 30
		own                     = 1000 // keys of each goroutine, which make the tables grow
	)
	s := memstore.New()
	limit, brief := bucketOf(1, time.Hour, burst), bucketOf(1, time.Microsecond, 1)
	allowed := make([]atomic.Int64, keys)
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			p, b := prepare(t, s, limit), prepare(t, s, brief)
			for i := range own {
				d, _, err := p.Take(fmt.Sprint("own", g, "/", i), 1)
				if d.Retry != 0 || d.Remaining != burst-1 || err != nil {
					t.Errorf("a new key: %+v, %v", d, err)
				}
				if _, _, err := b.Take(fmt.Sprint("brief", g, "/", i), 1); err != nil {
					t.Error(err)
				}
				for j := range 4 {
					k := (i*4 + j + g) % keys
					if d, _, err := p.Take(fmt.Sprint("shared", k), 1); err != nil {
						t.Error(err)
					} else if d.Retry == 0 {
						allowed[k].Add(1)
					}
				}
			}
		})
	}
	wg.Wait()
	for k := range allowed {
		if n := allowed[k].Load(); n != burst {
			t.Errorf("%d of %d were allowed to key %d", n, burst, k)
		}
	}
}

// Keys that are full again are forgotten when room is needed, others never.
func TestPreparedForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		slow, quick := prepare(t, s, bucketOf(1, time.Hour, 1)), prepare(t, s, bucketOf(1, time.Millisecond, 1))
		const keys = 1000
		for i := range keys {
			slow.Take(fmt.Sprint("slow", i), 1)
		}
		for i := range 100 * keys {
			quick.Take(fmt.Sprint("quick", i), 1)
			time.Sleep(100 * time.Microsecond)
		}
		if n := s.Buckets(); n < keys || n > 40*keys {
			t.Errorf("%d keys are remembered, of which %d have to be", n, keys)
		}
		for i := range keys {
			if d, _, err := slow.Take(fmt.Sprint("slow", i), 1); d.Retry == 0 || err != nil {
				t.Fatalf("number %d was forgotten: %+v, %v", i, d, err)
			}
		}
	})
}

func TestPreparedRefuses(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	p := prepare(t, s, bucketOf(1, time.Hour, 5))
	for name, err := range map[string]error{
		"no key": third(p.Take("", 1)), "a control character": third(p.Take("a\x00", 1)), "a negative cost": third(p.Take("k", -1)),
	} {
		if err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	if d, _, err := p.Take("k", 6); d.Retry != limits.Never || err != nil {
		t.Errorf("%+v, %v", d, err)
	}
	s.Close()
	if _, _, err := p.Take("k", 1); err != driver.ErrClosed {
		t.Errorf("closed: %v", err)
	}
	for _, l := range []limits.Limit{{}, bucketOf(9973, time.Second, 5), {Algorithm: limits.SlidingLog, N: 1, Period: 1000}} {
		if s.Prepare(l) != nil {
			t.Errorf("%+v is prepared", l)
		}
	}
}

func third[A, B any](_ A, _ B, err error) error { return err }

// A decision allocates nothing, and a key takes less than 100 bytes beside its
// name.
func TestPreparedIsSmall(t *testing.T) {
	s := memstore.New()
	p := prepare(t, s, bucketOf(1, time.Hour, 1000))
	p.Take("k", 1)
	if n := testing.AllocsPerRun(1000, func() { p.Take("k", 1) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	const keys = 20_000
	names := make([]string, keys)
	for i := range names {
		names[i] = fmt.Sprintf("user/%08d", i)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for _, name := range names {
		p.Take(name, 1)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if each := float64(after.HeapAlloc-before.HeapAlloc) / keys; each > 100 {
		t.Errorf("%.0f bytes for each key", each)
	} else {
		t.Logf("%.0f bytes for each key, its name included", each)
	}
	runtime.KeepAlive(s)
	runtime.KeepAlive(names)
}
