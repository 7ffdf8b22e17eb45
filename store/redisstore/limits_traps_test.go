package redisstore

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

func tokens(n int64, period time.Duration, burst int64) limits.Limit {
	return limits.Limit{Algorithm: limits.TokenBucket, N: n, Period: period, Burst: burst}
}

func windows(n int64, period time.Duration) limits.Limit {
	return limits.Limit{Algorithm: limits.FixedWindow, N: n, Period: period}
}

// asking makes a request that asks one limit.
func asking(key string, l limits.Limit, cost int64) limits.Request {
	return limits.Request{Takes: []limits.Take{{Key: key, Limit: l, Cost: cost}}}
}

// taken makes a request that must be answered.
func (l *lab) taken(s *Store, r limits.Request) limits.Taken {
	l.Helper()
	d, err := s.Take(l.Context(), r)
	if err != nil {
		l.Fatalf("%+v: %v", r, err)
	}
	return d
}

// limit is the name of a limit's state.
func (l *lab) limit(key string) string { return l.stores[0].names.beside(key).limit() }

// One script decides, and it reads and writes once for each state.
func TestDecisionIsOneScript(t *testing.T) {
	l := newLab(t, 1)
	s := l.stores[0]
	full := tokens(1, time.Hour, 1)
	l.taken(s, asking("full", full, 1))
	with := asking("a", windows(100, time.Hour), 1)
	with.Keep = time.Hour
	two := asking("a", windows(100, time.Hour), 1)
	two.Takes = append(two.Takes, limits.Take{Key: "b", Limit: full, Cost: 0})
	for name, c := range map[string]struct {
		ask func() limits.Request
		get int
		set int
	}{
		"one limit":  {func() limits.Request { return asking("a", windows(100, time.Hour), 1) }, 1, 1},
		"a bucket":   {func() limits.Request { return asking("bucket", tokens(100, time.Hour, 100), 1) }, 1, 1},
		"refused":    {func() limits.Request { return asking("full", full, 1) }, 1, 0},
		"a look":     {func() limits.Request { return asking("a", windows(100, time.Hour), 0) }, 1, 0},
		"two limits": {func() limits.Request { return two }, 2, 1},
		"with an ID": {func() limits.Request { with.ID = driver.NewID(); return with }, 2, 2},
	} {
		l.taken(s, c.ask()) // the first call of a script sends its text
		l.do("CONFIG", "RESETSTAT")
		for range 5 {
			l.taken(s, c.ask())
		}
		if n := l.calls("evalsha"); n != 5 || l.calls("eval") != 0 || l.calls("get") != 5*c.get || l.calls("set") != 5*c.set || l.calls("time") != 5 {
			t.Errorf("%s: five decisions took\n%s", name, l.do("INFO", "commandstats"))
		}
	}
}

// What a limit leaves behind lives as long as it has an effect, and no longer.
func TestLimitsExpire(t *testing.T) {
	l := newLab(t, 1)
	s := l.stores[0]
	left := func(name string) int64 {
		n, err := strconv.ParseInt(l.do("PTTL", name), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	sent := time.Now()
	l.taken(s, asking("burst", tokens(5, time.Second, 10), 10))
	ms := left(l.limit("burst"))
	if slow := time.Since(sent).Milliseconds(); ms > 2000 || ms <= 1900-slow {
		t.Errorf("a burst that is back in 2 s is kept for another %d ms", ms)
	}
	r := asking("burst", tokens(5, time.Second, 10), 0)
	r.Mode = limits.Forget
	l.taken(s, r)
	if l.do("EXISTS", l.limit("burst")) != "0" {
		t.Error("what was forgotten is kept")
	}
	// 333 334 µs are more than 333 ms.
	r = asking("third", tokens(3, time.Second, 1), 1)
	r.ID, r.Keep = driver.NewID(), 1500*time.Microsecond
	l.taken(s, r)
	if ms := left(l.limit("third")); ms > 334 {
		t.Errorf("a third of a second is kept for another %d ms", ms)
	}
	r = asking("replayed", tokens(5, time.Second, 10), 1)
	r.Now, r.ID, r.Keep = 1, driver.NewID(), time.Millisecond
	sent = time.Now()
	l.taken(s, r)
	n := s.names.beside("replayed")
	for _, name := range []string{n.limit(), n.id(r.ID)} {
		if ms, all := left(name), limits.ReplayTTL.Milliseconds(); ms > all || ms < all-time.Since(sent).Milliseconds()-100 {
			t.Errorf("%s of a replay is kept for another %d ms", name, ms)
		}
	}
}

// No request tells what time its sender believes it is.
func TestLimitsAskNoClockButTheServers(t *testing.T) {
	l := newLab(t, 1)
	s := l.stores[0]
	s.clock.offset.Add(-3_600_000)
	sent := &gated{Client: s.client, arrived: make(chan wire.Call, 100)}
	sent.next()()
	s.client = sent
	server := func() int64 {
		t := strings.Fields(l.do("TIME"))
		return number(t[0])*1_000_000 + number(t[1])
	}
	r := asking("k", tokens(1, time.Hour, 100), 1)
	r.ID, r.Keep = driver.NewID(), time.Hour
	r.MaxWait = time.Second
	var calls []wire.Call
	for range 2 {
		before := server()
		d := l.taken(s, r)
		if after := server(); !d.Repeated && (d.At < before || d.At > after) {
			t.Errorf("decided at %d, the server's clock was from %d to %d", d.At, before, after)
		}
		for len(sent.arrived) > 0 {
			if c := <-sent.arrived; !c.Full {
				calls = append(calls, c)
			}
		}
	}
	if len(calls) != 2 || !reflect.DeepEqual(calls[0], calls[1]) {
		t.Errorf("the same request was sent as %+v", calls)
	}
}

// What other programs have written under a limit's name.
func TestForeignStates(t *testing.T) {
	l := newLab(t, 1)
	s := l.stores[0]
	now := time.Now().UnixMicro()
	soon, far := now+time.Hour.Microseconds(), int64(1)<<62
	for _, limit := range []limits.Limit{
		windows(5, 24*time.Hour),
		{Algorithm: limits.SlidingLog, N: 5, Period: time.Hour},
		{Algorithm: limits.EstimatedWindow, N: 5, Period: time.Hour},
		tokens(1, time.Hour, 5),
		{Algorithm: limits.LeakyBucket, N: 1, Period: time.Hour, Burst: 5},
	} {
		for i, text := range []string{
			"", " ", "x", "1", "1 5", "1 5 3", "2 1 1 1 1", "3 1 2 3 4", "99 1 2 3 4 5", "b1:lock", "-1 -2", "1.5 2", "0x10 5 1 1", "1e3 5 1 1",
			fmt.Sprint("1 0 ", soon, " 1"), fmt.Sprint("3 ", soon, " 7 7 1 0"), fmt.Sprint("3 ", soon, " 0 0 1 0"), fmt.Sprint("3 ", soon, " 0 1 0 0"),
			fmt.Sprint("1 5 ", far, " 1"), fmt.Sprint("3 ", far, " 0 1 1 0"), fmt.Sprint("2 3600000000 ", now/3_600_000_000, " 5 ", far, " ", far),
			strings.Repeat("9", 400), strings.Repeat("1 ", 10_001), "1 5 \x00", "ä",
		} {
			key := fmt.Sprint("k", i)
			l.do("SET", l.limit(key), text)
			if d := l.taken(s, asking(key, limit, 0)); !d.OK || d.Limits[0].Remaining != 5 {
				t.Errorf("%v, with %.40q found: %+v, want what a fresh key says", limit.Algorithm, text, d)
			}
			if d := l.taken(s, asking(key, limit, 2)); !d.OK || d.Limits[0].Remaining != 3 {
				t.Errorf("%v, with %.40q found: %+v, want what a fresh key says", limit.Algorithm, text, d)
			}
			if d := l.taken(s, asking(key, limit, 2)); !d.OK || d.Limits[0].Remaining != 1 {
				t.Errorf("%v, after %.40q was found: %+v", limit.Algorithm, text, d)
			}
		}
		// These can be read, though no store wrote them. They may say anything, but do
		// no harm to the server, and not for long.
		most := int64(exact - 1)
		for i, text := range []string{
			fmt.Sprint("1 ", most, " ", most, " ", most, " ", most, " ", most), fmt.Sprint("1 1 ", soon, " ", most, " ", now+1, " 0"), fmt.Sprint("1 7 ", soon, " 0 ", soon, " 0"),
			fmt.Sprint("2 ", most, " 0 ", most, " ", most, " ", most), fmt.Sprint("2 3600000000 ", now/3_600_000_000, " 1 ", most, " ", most),
			fmt.Sprint("2 3600000000 ", now/3_600_000_000-1, " 1 0 ", most), fmt.Sprint("2 1 ", most, " 1 1 1"),
			fmt.Sprint("3 ", most, " ", most-1, " ", most, " ", most, " ", most), fmt.Sprint("3 ", most, " 0 1 ", most, " 0"), fmt.Sprint("3 ", soon, " 0 ", most, " 1 ", most), fmt.Sprint("3 ", most, " 1 2 1 5"),
		} {
			key := fmt.Sprint("odd", i)
			l.do("SET", l.limit(key), text)
			for _, mode := range []limits.Mode{limits.TakeIfAllowed, limits.TakeAnyway, limits.GiveBack, limits.TakeIfAllowed} {
				r := asking(key, limit, 2)
				r.Mode, r.At = mode, now
				if x := l.taken(s, r).Limits[0]; x.Remaining < 0 || x.Remaining > 5 {
					t.Errorf("%v, with %q found: %+v", limit.Algorithm, text, x)
				}
			}
			if ms := number(l.do("PTTL", l.limit(key))); ms == -1 {
				t.Errorf("%v, with %q found: it is kept for ever", limit.Algorithm, text)
			}
			r := asking(key, limit, 0)
			r.Mode = limits.Forget
			l.taken(s, r)
			if d := l.taken(s, asking(key, limit, 5)); !d.OK {
				t.Errorf("%v, after %q was forgotten: %+v", limit.Algorithm, text, d)
			}
		}
	}

	for kind, put := range map[string][]string{
		"list": {"RPUSH", "x"}, "hash": {"HSET", "x", "y"}, "set": {"SADD", "x"}, "zset": {"ZADD", "1", "x"}, "stream": {"XADD", "*", "x", "y"},
	} {
		r := asking("other "+kind, windows(5, time.Hour), 1)
		r.Takes = append(r.Takes, limits.Take{Key: kind, Limit: windows(5, time.Hour), Cost: 1})
		r.ID, r.Keep = driver.NewID(), time.Hour
		for _, at := range []struct{ name, shown, key string }{
			{l.limit(kind), strconv.Quote(l.limit(kind)), kind},
			{s.names.beside("other " + kind).id(r.ID), `"baton:d:"`, "other " + kind},
		} {
			l.do(append([]string{put[0], at.name}, put[1:]...)...)
			_, err := s.Take(t.Context(), r)
			e, ok := errors.AsType[*limits.Error](err)
			if !ok || e.Key != at.key || !strings.Contains(err.Error(), kind) || !strings.Contains(err.Error(), at.shown) || strings.Contains(err.Error(), r.ID) {
				t.Errorf("a %s as %s: %v, want an error that names all three, and no ID", kind, at.name, err)
			}
			if l.do("EXISTS", l.limit("other "+kind)) != "0" {
				t.Errorf("a %s as %s: and yet something was taken", kind, at.name)
			}
			l.do("DEL", at.name)
		}
		if d := l.taken(s, r); !d.OK || d.Repeated {
			t.Errorf("after the %s was removed: %+v", kind, d)
		}
	}
}

func TestLimitsAreNoLocks(t *testing.T) {
	l := newLab(t, 1)
	s := l.stores[0]
	r := asking("k", windows(5, time.Hour), 1)
	r.ID, r.Keep = driver.NewID(), time.Hour
	l.taken(s, r)
	l.do("SET", l.limit("dressed up"), "b1:x:1234567890123:somebody")
	take(t, s, claimOf("lock", "a"), time.Minute, false)
	var listed []string
	for info, err := range s.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		listed = append(listed, info.Key)
	}
	if !slices.Equal(listed, []string{"lock"}) {
		t.Errorf("the locks are %q", listed)
	}
}

// Scripts and connections go while decisions are under way. A request with an
// ID is repeated until it is answered, and taken once. One without is taken once
// or, if there was no answer, perhaps.
func TestLimitsWhileScriptsAndConnectionsGo(t *testing.T) {
	l := newLab(t, 2)
	const capacity, goroutines, each = 200, 16, 25
	limit := tokens(1, 1000*time.Hour, capacity)
	var allowed atomic.Int64
	var work, faults sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	faults.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			l.server.Do("SCRIPT", "FLUSH")
			if n%8 == 0 {
				l.server.Do("CLIENT", "KILL", "TYPE", "normal")
			}
		}
	})
	for g := range goroutines {
		work.Go(func() {
			for range each {
				r := asking("k", limit, 1)
				r.ID, r.Keep = driver.NewID(), time.Hour
				for {
					d, err := l.stores[g%2].Take(t.Context(), r)
					if err == nil {
						if d.OK {
							allowed.Add(1)
						}
						break
					}
					if !errors.Is(err, driver.ErrUnknown) && !errors.Is(err, driver.ErrUnavailable) {
						t.Errorf("%v", err)
						return
					}
				}
			}
		})
	}
	var sure, perhaps atomic.Int64
	for g := range 32 {
		work.Go(func() {
			for range 2 * each {
				d, err := l.stores[g%2].Take(t.Context(), asking("without", limit, 1))
				switch {
				case err == nil && d.OK:
					sure.Add(1)
				case errors.Is(err, driver.ErrUnknown):
					perhaps.Add(1)
				case err != nil && !errors.Is(err, driver.ErrUnavailable):
					t.Errorf("%v", err)
				}
			}
		})
	}
	work.Wait()
	stop()
	faults.Wait()
	if n := allowed.Load(); n != capacity {
		t.Errorf("%d were allowed, want %d", n, capacity)
	}
	var left int64
	eventually(t, "an answer", 10*time.Second, func() bool {
		d, err := l.stores[0].Take(t.Context(), asking("without", limit, 0))
		if err == nil {
			left = d.Limits[0].Remaining
		}
		return err == nil
	})
	if n := sure.Load(); n+left > capacity || n+perhaps.Load()+left < capacity {
		t.Errorf("%d were allowed and %d perhaps, %d of %d remain", n, perhaps.Load(), left, capacity)
	}
}

// An answer that does not come leaves the outcome unknown; a caller that asks again
// with the same ID pays once.
func TestLimitsLostAnswer(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	server := testserver.Redis(t)
	proxy := faultproxy.New(t, server.Addr)
	s := mustNew(t, dial(t, proxy.Addr))
	limit := windows(5, 100_000*time.Hour)
	r := asking("k", limit, 2)
	r.ID, r.Keep = driver.NewID(), time.Hour
	warm := r // the first call of a script sends its text
	warm.ID = driver.NewID()
	warm.Takes = []limits.Take{{Key: "warm", Limit: limit, Cost: 1}}
	for _, r := range []limits.Request{warm, asking("warm", limit, 1)} {
		if _, err := s.Take(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	cut := proxy.CutAfterRequest(func(request []byte) bool { return strings.Contains(string(request), r.ID) })
	if _, err := s.Take(t.Context(), r); !errors.Is(err, driver.ErrUnknown) || errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("the answer was cut off: %v, want driver.ErrUnknown", err)
	}
	<-cut
	if d, err := s.Take(t.Context(), r); err != nil || !d.OK || !d.Repeated || d.Limits[0].Remaining != 3 {
		t.Errorf("asked again: %+v, %v", d, err)
	}

	proxy.Hold(faultproxy.ToClient)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second) // time to send it, on a busy machine, too
	defer cancel()
	if _, err := s.Take(ctx, asking("k", limit, 1)); !errors.Is(err, driver.ErrUnknown) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no answer in time: %v, want driver.ErrUnknown and the context's error", err)
	}
	proxy.Heal()
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	if _, err := s.Take(ctx, asking("k", limit, 1)); !errors.Is(err, context.Canceled) || errors.Is(err, driver.ErrUnknown) {
		t.Errorf("with a context that had ended: %v, want that of the context alone", err)
	}
	if d, err := s.Take(t.Context(), asking("k", limit, 0)); err != nil || d.Limits[0].Remaining != 2 {
		t.Errorf("in the end: %+v, %v", d, err)
	}
	s.Close()
	if _, err := s.Take(t.Context(), asking("k", limit, 0)); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// Answers by which the server says that it did nothing.
func TestLimitsRefusedByTheServer(t *testing.T) {
	l := newLab(t, 1)
	s := l.stores[0]
	r := asking("a", tokens(1, time.Hour, 5), 1)
	r.Takes = append(r.Takes, limits.Take{Key: "b", Limit: windows(5, 100_000*time.Hour), Cost: 1})
	l.taken(s, r)
	refused := func(what string) {
		t.Helper()
		r.ID, r.Keep = driver.NewID(), time.Hour
		if _, err := s.Take(t.Context(), r); !errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrUnknown) {
			t.Errorf("%s: %v, want driver.ErrUnavailable", what, err)
		}
	}
	l.do("CONFIG", "SET", "maxmemory", "1")
	refused("out of memory")
	l.do("CONFIG", "SET", "maxmemory", "0")
	l.do("CONFIG", "SET", "min-replicas-to-write", "1")
	refused("too few replicas")
	l.do("CONFIG", "SET", "min-replicas-to-write", "0")
	l.do("REPLICAOF", "127.0.0.1", "1")
	refused("demoted to a replica")
	l.do("REPLICAOF", "NO", "ONE")
	for i := range r.Takes {
		r.Takes[i].Cost = 0
	}
	for i, x := range l.taken(s, r).Limits {
		if x.Remaining != 4 {
			t.Errorf("limit %d: %d of 5 remain, one was taken", i, x.Remaining)
		}
	}
	l.do("FLUSHALL")
	for i, x := range l.taken(s, r).Limits {
		if x.Remaining != 5 {
			t.Errorf("limit %d: %d of 5 remain after FLUSHALL", i, x.Remaining)
		}
	}
	l.server.Kill()
	eventually(t, "driver.ErrUnavailable", 10*time.Second, func() bool { // the cut connection first
		_, err := s.Take(t.Context(), r)
		return errors.Is(err, driver.ErrUnavailable)
	})
	l.server.Restart()
	awaitReachable(t, s)
	l.taken(s, r)
}
