package mysqlstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/rate"
	"github.com/batonhq/baton/internal/testserver"
)

// limitHarness gives each case a database. Making one is slow, so the next case gets
// those of earlier ones, emptied.
func limitHarness(all *testing.T, open func(t drivertest.T, d *database) *Store) drivertest.LimitHarness {
	var mu sync.Mutex
	var free []*database
	get := func() *database {
		mu.Lock()
		defer mu.Unlock()
		if n := len(free); n > 0 {
			d := free[n-1]
			free = free[:n-1]
			return d
		}
		return shared(all)
	}
	return drivertest.LimitHarness{
		Open: func(t drivertest.T, n int) []limits.Store {
			d := get()
			t.Cleanup(func() { // after the stores were closed
				for _, table := range []string{"baton_limit", "baton_limit_id", "baton_kept"} {
					if _, err := d.plain.Exec("DELETE FROM " + table); err != nil {
						return
					}
				}
				mu.Lock()
				defer mu.Unlock()
				free = append(free, d)
			})
			handles := make([]limits.Store, n)
			for i := range handles {
				s := open(t, d)
				databases.put(s, d)
				handles[i] = s
			}
			return handles
		},
		Kept: func(t drivertest.T, l limits.Store) (n int) {
			d := databases.of(l.(*Store))
			if err := d.plain.QueryRow("SELECT (SELECT COUNT(*) FROM baton_limit)+(SELECT COUNT(*) FROM baton_limit_id)").Scan(&n); err != nil {
				t.Fatalf("count: %v", err)
			}
			return n
		},
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	testserver.NeedMariaDB(t)
	drivertest.Limits(t, limitHarness(t, func(t drivertest.T, d *database) *Store {
		return d.openWith(t, func(_ *Server, o *options) { o.sweepEvery = time.Second })
	}))
}

// TestLimitsOnPool runs on a pool that the program has opened.
func TestLimitsOnPool(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	testserver.NeedMariaDB(t)
	h := limitHarness(t, hardPool)
	h.Steps = 50
	drivertest.Limits(t, h)
}

func bucketOf(n int64, per time.Duration, burst int64) limits.Limit {
	return limits.Limit{Algorithm: limits.TokenBucket, N: n, Period: per, Burst: burst}
}

func takeOf(key string, l limits.Limit, cost int64) limits.Request {
	return limits.Request{Takes: []limits.Take{{Key: key, Limit: l, Cost: cost}}}
}

func takeOne(t *testing.T, s *Store, key string, l limits.Limit, cost int64) limits.Taken {
	t.Helper()
	d, err := s.Take(t.Context(), takeOf(key, l, cost))
	if err != nil {
		t.Fatalf("take %d of %q: %v", cost, key, err)
	}
	return d
}

// Sixty-four goroutines of four processes take from one key, which is new.
func TestLimitOneKey(t *testing.T) {
	t.Parallel()
	d := shared(t)
	var stores []*Store
	for range 4 {
		stores = append(stores, d.openWith(t, patient))
	}
	for _, l := range []limits.Limit{
		bucketOf(1, 1000*time.Hour, 150),
		{Algorithm: limits.SlidingLog, N: 150, Period: 1000 * time.Hour},
		{Algorithm: limits.FixedWindow, N: 150, Period: 100_000 * time.Hour},
	} {
		var yes atomic.Int64
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() {
				for range 5 {
					d, err := stores[i%4].Take(t.Context(), takeOf("hot "+l.Algorithm.String(), l, 1))
					if err != nil {
						t.Errorf("%v", err)
					}
					if d.OK {
						yes.Add(1)
					}
				}
			})
		}
		wg.Wait()
		if yes.Load() != 150 {
			t.Errorf("%v: %d of 150 were allowed", l.Algorithm, yes.Load())
		}
	}
}

// Clients of several processes that ask for several keys in any order, some new, while
// others forget and the sweep removes, meet no deadlock, and what is taken adds up.
func TestLimitsManyKeys(t *testing.T) {
	t.Parallel()
	d := shared(t)
	var stores []*Store
	for range 3 {
		stores = append(stores, d.openWith(t, patient))
	}
	end := time.Now().Add(stormFor(t))
	const keys, burst = 8, 10_000_000
	l := limits.Limit{Algorithm: limits.FixedWindow, N: burst, Period: 100_000 * time.Hour}
	var taken [keys]atomic.Int64
	var wg sync.WaitGroup
	for i := range 36 {
		s := stores[i%len(stores)]
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 5))
			for n := 0; n == 0 || time.Now().Before(end) && !t.Failed(); n++ {
				r := limits.Request{}
				which := random.Perm(keys)[:1+random.IntN(4)]
				for _, at := range which {
					r.Takes = append(r.Takes, limits.Take{Key: fmt.Sprint("key", at), Limit: l, Cost: 1})
				}
				switch random.IntN(4) {
				case 0:
					r.ID, r.Keep = driver.NewID(), time.Millisecond
				case 1: // what comes and goes
					r.Mode = limits.Forget
					for j := range r.Takes {
						r.Takes[j].Key = strings.Replace(r.Takes[j].Key, "key", "kez", 1)
					}
				case 2:
					r.Takes = append(r.Takes, limits.Take{Key: fmt.Sprint("kez", random.IntN(keys)), Limit: bucketOf(1, time.Millisecond, 100), Cost: 1})
				}
				d, err := s.Take(t.Context(), r)
				if err != nil {
					t.Errorf("%v", err)
					return
				}
				if d.OK && r.Mode == limits.TakeIfAllowed {
					for _, at := range which {
						taken[at].Add(1)
					}
				}
			}
		})
	}
	wg.Go(func() {
		for time.Now().Before(end) && !t.Failed() {
			if _, err := stores[0].sweepLimits(t.Context(), "", 100); err != nil && !undone(err) {
				t.Errorf("sweep: %v", err)
			}
		}
	})
	wg.Wait()
	sum := int64(0)
	for at := range keys {
		d := takeOne(t, stores[0], fmt.Sprint("key", at), l, 0)
		if used := burst - d.Limits[0].Remaining; used != taken[at].Load() {
			t.Errorf("key %d: %d were taken, %d are counted", at, taken[at].Load(), used)
		}
		sum += taken[at].Load()
	}
	t.Logf("%d taken", sum)
}

// What waits while a transaction is under way is decided in the next one, and a caller
// that gives up meanwhile takes nothing.
func TestLimitsThatWaitShareATransaction(t *testing.T) {
	t.Parallel()
	d := shared(t)
	s := d.openWith(t, patient)
	l := bucketOf(1, 1000*time.Hour, 100)
	takeOne(t, s, "k", l, 1)
	blocker := lockRow(t, d, "baton_limit", "k")
	var wg sync.WaitGroup
	wg.Go(func() { takeOne(t, s, "k", l, 1) })
	awaitBlocked(t, d, 1)
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := s.Take(ctx, takeOf("k", l, 50))
		left <- err
	}()
	for range 30 {
		wg.Go(func() { takeOne(t, s, "k", l, 1) })
	}
	// One worker is busy with the key, so that no other takes them.
	eventually(t, "all wait", 10*time.Second, func() bool { return s.limits.Waiting() == 31 })
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) || errors.Is(err, driver.ErrUnknown) {
		t.Errorf("a caller that left: %v", err)
	}
	commit(t, blocker)
	wg.Wait()
	if d := takeOne(t, s, "k", l, 0); d.Limits[0].Remaining != 68 {
		t.Errorf("%+v", d)
	}
}

// A process that is stopped in the middle is thrown out by the server, and a request
// that waits for its row does not hear of that.
func TestLimitsWaitForAStoppedProcess(t *testing.T) {
	t.Parallel()
	d := shared(t)
	s := d.openWith(t, func(_ *Server, o *options) { o.stall = 1 })
	l := bucketOf(1, 1000*time.Hour, 100)
	takeOne(t, s, "k", l, 1)
	blocker := lockRow(t, d, "baton_limit", "k")
	done := make(chan error, 1)
	go func() {
		_, err := s.Take(t.Context(), takeOf("k", l, 1))
		done <- err
	}()
	select { // longer than the server lets it wait for the row
	case err := <-done:
		t.Fatalf("while the row was locked: %v", err)
	case <-time.After(2500 * time.Millisecond):
	}
	commit(t, blocker)
	if err := <-done; err != nil {
		t.Errorf("%v", err)
	}
	if d := takeOne(t, s, "k", l, 0); d.Limits[0].Remaining != 98 {
		t.Errorf("%+v", d)
	}
}

// A caller that gives up while its transaction is under way does not know.
func TestLimitsLeavingInTheMiddle(t *testing.T) {
	t.Parallel()
	d := shared(t)
	s := d.openWith(t, patient)
	l := bucketOf(1, 1000*time.Hour, 100)
	takeOne(t, s, "k", l, 1)
	blocker := lockRow(t, d, "baton_limit", "k")
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := s.Take(ctx, takeOf("k", l, 1))
		left <- err
	}()
	awaitBlocked(t, d, 1)
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) || !errors.Is(err, driver.ErrUnknown) {
		t.Errorf("%v", err)
	}
	commit(t, blocker)
	takeOne(t, s, "k", l, 1)
}

// The clock is read when the rows are locked: what waited for them is decided
// by the time that it is then.
func TestLimitsReadTheClockLate(t *testing.T) {
	t.Parallel()
	d := shared(t)
	s := d.openWith(t, patient)
	l := bucketOf(1, 300*time.Millisecond, 1)
	takeOne(t, s, "k", l, 1)
	blocker := lockRow(t, d, "baton_limit", "k")
	done := make(chan limits.Taken, 1)
	go func() { done <- takeOne(t, s, "k", l, 1) }()
	awaitBlocked(t, d, 1)
	var before int64
	time.Sleep(400 * time.Millisecond) // the token comes back meanwhile, by the server's clock
	if err := blocker.QueryRow("SELECT " + micros).Scan(&before); err != nil {
		t.Fatal(err)
	}
	commit(t, blocker)
	if got := <-done; !got.OK || got.At < before {
		t.Errorf("%+v, and the row was free at %d", got, before)
	}
}

// Two requests that are the first for an unused key meet at its row.
func TestLimitsFirstRequestsMeet(t *testing.T) {
	t.Parallel()
	d := shared(t)
	a, b := d.openWith(t, patient), d.openWith(t, patient)
	l := bucketOf(1, 1000*time.Hour, 1)
	for i := range 30 {
		key := fmt.Sprint("new", i)
		var yes atomic.Int64
		var wg sync.WaitGroup
		for _, s := range []*Store{a, b} {
			wg.Go(func() {
				if d, err := s.Take(t.Context(), takeOf(key, l, 1)); err != nil {
					t.Errorf("%v", err)
				} else if d.OK {
					yes.Add(1)
				}
			})
		}
		wg.Wait()
		if yes.Load() != 1 {
			t.Fatalf("%d got the one token of %s", yes.Load(), key)
		}
	}
}

// A request that is refused again, or only looks, locks nothing.
func TestLimitsThatLockNothing(t *testing.T) {
	t.Parallel()
	d := shared(t)
	s := d.openWith(t, patient)
	l := bucketOf(1, 1000*time.Hour, 5)
	takeOne(t, s, "k", l, 5)
	if d := takeOne(t, s, "k", l, 1); d.OK {
		t.Fatalf("%+v", d)
	}
	blocker := lockRow(t, d, "baton_limit", "k")
	for range 3 {
		if d := takeOne(t, s, "k", l, 1); d.OK || d.Limits[0].Remaining != 0 {
			t.Errorf("%+v", d)
		}
		takeOne(t, s, "k", l, 0)
	}
	commit(t, blocker)
	if _, err := s.Take(t.Context(), limits.Request{Takes: takeOf("k", l, 0).Takes, Mode: limits.Forget}); err != nil {
		t.Fatal(err)
	}
	if d := takeOne(t, s, "k", l, 5); !d.OK {
		t.Errorf("a request that was refused and is allowed now: %+v", d)
	}
	if d := takeOne(t, s, "k", l, 1); d.OK {
		t.Errorf("%+v", d)
	}
}

// A state that no store has written is a fresh key.
func TestLimitGarbage(t *testing.T) {
	t.Parallel()
	d := shared(t)
	s := d.open(t)
	l := bucketOf(1, 1000*time.Hour, 5)
	for i, text := range []string{"x", "", "1", "1 5 -3 4", "3 1", "9 9 9 9 9 9", "3 99999999999999999999 0 1 1 0", "1 5 9007199254740993 1", " ", "3.5"} {
		key := fmt.Sprint("k", i)
		takeOne(t, s, key, l, 5)
		d.exec(t, "UPDATE baton_limit SET state=? WHERE k=?", text, key)
		if d := takeOne(t, s, key, l, 5); !d.OK {
			t.Errorf("after %q: %+v", text, d)
		}
		if d := takeOne(t, s, key, l, 1); d.OK {
			t.Errorf("after that: %+v", d)
		}
	}
}

// Long logs fit into the packets of the server, many at once.
func TestLimitsLongLogs(t *testing.T) {
	t.Parallel()
	d := shared(t)
	s := d.openWith(t, patient)
	l := limits.Limit{Algorithm: limits.SlidingLog, N: 10_000, Period: time.Hour}
	var takes []limits.Take
	for i := range limits.MaxTakes {
		takes = append(takes, limits.Take{Key: fmt.Sprint("k", i), Limit: l, Cost: 1})
		text := strings.Builder{}
		text.WriteString("1 10000")
		for j := range 9_990 {
			fmt.Fprintf(&text, " %d 1", 3_000_000_000_000_000+j)
		}
		d.exec(t, "INSERT INTO baton_limit VALUES (?,?,'2090-01-01')", fmt.Sprint("k", i), text.String())
	}
	for n := range 3 {
		got, err := s.Take(t.Context(), limits.Request{Takes: takes, Now: 3_000_000_000_000_000 - 1_800_000_000})
		if err != nil || !got.OK || got.Limits[15].Remaining != int64(9-n) {
			t.Fatalf("%v %+v", err, got)
		}
	}
}

// The answer is lost after the effect, before it, or never comes.
func TestLimitsFaults(t *testing.T) {
	t.Parallel()
	d := shared(t)
	s, proxy := proxied(t, d)
	l := bucketOf(1, 1000*time.Hour, 100)
	takeOne(t, s, "k", l, 1)
	left := func() int64 { return takeOne(t, d.open(t), "k", l, 0).Limits[0].Remaining }
	awaitLeft := func(n int64) { // MySQL answers the first statements before the commit
		t.Helper()
		eventually(t, fmt.Sprint(n, " are left"), 10*time.Second, func() bool { return left() == n })
	}

	cut := proxy.CutAfterRequest(carries(";COMMIT "))
	r := takeOf("k", l, 1)
	r.ID, r.Keep = driver.NewID(), time.Hour
	if _, err := s.Take(t.Context(), r); !errors.Is(err, driver.ErrUnknown) {
		t.Errorf("after the commit: %v, want ErrUnknown", err)
	}
	<-cut
	awaitLeft(98)
	if d, err := s.Take(t.Context(), r); err != nil || !d.Repeated || d.Limits[0].Remaining != 98 {
		t.Errorf("repeated: %+v, %v", d, err)
	}

	r.ID = driver.NewID()
	cut = proxy.CutAfterRequest(carries("START TRANSACTION"))
	if _, err := s.Take(t.Context(), r); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("before the commit: %v, want ErrUnavailable", err)
	}
	<-cut
	cut = proxy.CutAfterRequest(carries("LEFT JOIN"))
	if _, err := s.Take(t.Context(), takeOf("k", l, 0)); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("a look: %v, want ErrUnavailable", err)
	}
	<-cut
	if n := left(); n != 98 {
		t.Errorf("%d are left", n)
	}

	// One round trip, with the commit in it.
	cut = proxy.CutAfterRequest(func(request []byte) bool {
		return bytes.Contains(request, []byte("START TRANSACTION")) && bytes.Contains(request, []byte(";COMMIT "))
	})
	if _, err := s.Take(t.Context(), takeOf("k", l, 1)); !errors.Is(err, driver.ErrUnknown) {
		t.Errorf("with the commit: %v, want ErrUnknown", err)
	}
	<-cut
	awaitLeft(97)

	proxy.Swallow(faultproxy.ToServer)
	proxy.Swallow(faultproxy.ToClient)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	begun := time.Now()
	if _, err := s.Take(ctx, takeOf("k", l, 1)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("it obeyed its context after %v", took)
	}
	if n := left(); n != 97 {
		t.Errorf("%d are left", n)
	}
}

// What fails in the middle is undone, and says what is missing.
func TestLimitsFailInTheMiddle(t *testing.T) {
	t.Parallel()
	d := shared(t)
	l := bucketOf(1, 1000*time.Hour, 100)
	for i, s := range []*Store{d.open(t), d.wrap(t, d.config())} {
		key := fmt.Sprint("k", i)
		takeOne(t, s, key, l, 1)
		d.exec(t, "RENAME TABLE baton_limit_id TO elsewhere")
		r := takeOf(key, l, 1)
		r.ID, r.Keep = driver.NewID(), time.Hour
		for range 10 {
			if _, err := s.Take(t.Context(), r); !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, ErrSchema) {
				t.Fatalf("without a table: %v, want ErrUnavailable and ErrSchema", err)
			}
		}
		d.exec(t, "RENAME TABLE elsewhere TO baton_limit_id")
		if d := takeOne(t, s, key, l, 0); d.Limits[0].Remaining != 99 {
			t.Errorf("%+v", d)
		}
		takeOne(t, s, key, l, 1)
	}
}

// A store that is closed decides nothing, and requests that wait are told.
func TestLimitsClose(t *testing.T) {
	t.Parallel()
	d := shared(t)
	s := d.openWith(t, patient)
	l := bucketOf(1, 1000*time.Hour, 100)
	takeOne(t, s, "k", l, 1)
	blocker := lockRow(t, d, "baton_limit", "k")
	first, second := make(chan error, 1), make(chan error, 1)
	ask := func(c chan error) {
		_, err := s.Take(t.Context(), takeOf("k", l, 1))
		c <- err
	}
	go ask(first)
	awaitBlocked(t, d, 1)
	go ask(second)
	eventually(t, "the second waits", 10*time.Second, func() bool { return s.limits.Waiting() == 1 })
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	if err := <-second; !errors.Is(err, driver.ErrClosed) {
		t.Errorf("one that had not begun: %v", err)
	}
	commit(t, blocker)
	if err := <-first; err != nil && !errors.Is(err, driver.ErrUnknown) && !errors.Is(err, driver.ErrClosed) {
		t.Errorf("one that had begun: %v", err)
	}
	if err := <-closed; err != nil {
		t.Errorf("close: %v", err)
	}
	if _, err := s.Take(t.Context(), takeOf("k", l, 1)); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("after it: %v", err)
	}
}

// What the server decides by itself is what package rate says, up to the largest
// numbers that can be counted.
func TestLimitsLargeNumbers(t *testing.T) {
	t.Parallel()
	d := shared(t)
	s := d.openWith(t, patient)
	random := rand.New(rand.NewPCG(4, 4))
	number := func(most int64) int64 { return 1 + random.Int64N(1+random.Int64N(most)) }
	asked, allowed := 0, 0
	for n := 0; asked < 60 && n < 100_000; n++ {
		l := limits.Limit{Algorithm: limits.TokenBucket, N: number(1 << 50), Period: time.Duration(number(1e12)) * time.Microsecond, Burst: number(1 << 40)}
		switch n % 3 {
		case 1:
			l.Algorithm, l.Ahead = limits.LeakyBucket, random.Int64N(l.Burst)
		case 2:
			l = limits.Limit{Algorithm: limits.FixedWindow, N: l.N, Period: l.Period, Offset: -time.Duration(number(1e15)) * time.Microsecond}
		}
		if _, err := rate.Of(l); err != nil {
			continue
		}
		asked++
		var state rate.State
		now := 1 + random.Int64N(3e15)
		for range 4 {
			r := takeOf(fmt.Sprint("k", n), l, number(l.Capacity()))
			r.Now = now
			q, err := rate.NewRequest(r)
			if err != nil {
				t.Fatal(err)
			}
			states := []rate.State{slices.Clone(state)}
			want, _ := q.Decide(states, now)
			got, err := s.Take(t.Context(), r)
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Fatalf("%+v after %v: %+v, %v, want %+v", r, state, got, err, want)
			}
			if want.OK {
				allowed++
				state = states[0]
			}
			now += random.Int64N(l.Period.Microseconds())
		}
	}
	if allowed < 60 {
		t.Errorf("only %d of %d limits were asked and %d requests allowed", asked, 60, allowed)
	}
}
