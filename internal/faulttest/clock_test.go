//go:build linux

package faulttest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/open"
)

// clocked are servers whose clock can be set.
var clocked = map[string]func(c *testserver.Clock) (url string){
	"redis": func(c *testserver.Clock) string { return "redis://" + c.Redis().Addr },
	"mysql": func(c *testserver.Clock) string { return mysqlURL(c.MariaDB().Addr) },
	"postgres": func(c *testserver.Clock) string {
		return c.Postgres().URL("postgres")
	},
}

// lasting is a limit of jumpN in a jumpSpan, and how long it takes from full to fresh.
type lasting struct {
	limits.Limit
	lasts time.Duration
}

const (
	jumpSpan = 20 * time.Minute
	jumpN    = 5
)

// The clock of the server jumps by an hour while limits are asked. A jump back allows
// nothing more, and keeps no caller out for longer than a limit lasts; after a jump
// forward a limit gives what it would have given later.
func TestServersClockJumps(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	const span, n = jumpSpan, jumpN
	all := []lasting{
		{limits.Limit{Algorithm: limits.FixedWindow, N: n, Period: span}, span},
		{limits.Limit{Algorithm: limits.SlidingWindow, N: n, Period: span, Parts: 10}, span + span/10},
		{limits.Limit{Algorithm: limits.SlidingWindow, N: n, Period: span, Parts: 10, Classic: true}, span},
		{limits.Limit{Algorithm: limits.SlidingLog, N: n, Period: span}, span},
		{limits.Limit{Algorithm: limits.EstimatedWindow, N: n, Period: span}, 2 * span},
		{limits.Limit{Algorithm: limits.TokenBucket, N: n, Period: span, Burst: n}, span},
		{limits.Limit{Algorithm: limits.LeakyBucket, N: n, Period: span, Burst: n}, span},
	}
	for name, start := range clocked {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for try := 1; ; try++ {
				wrong, again := jumps(t, start, all)
				if len(wrong) > 0 && again && name == "redis" && try < 3 {
					t.Logf("once more: %v", wrong)
					continue
				}
				for _, w := range wrong {
					t.Error(w)
				}
				return
			}
		})
	}
}

// jumps sets the clock of a new server forward and back, and tells what it saw that
// must not be. again is set if that may be the server's: Redis reads its clock once for
// several requests, and in the instant of a step back it can expire what was written
// with the new time. It does so about once in fifty steps.
func jumps(t *testing.T, start func(*testserver.Clock) string, all []lasting) (wrong []string, again bool) {
	again = true
	clock := testserver.NewClock(t)
	// Five minutes into a window, so that none ends while the test lasts, and
	// always ahead of the true time, which the server may see for an instant
	// when its clock is set: a step back is to give nothing.
	began := time.Now()
	first := began.Truncate(6 * jumpSpan).Add(12*jumpSpan + 5*time.Minute)
	at := func(d time.Duration) time.Duration { return first.Add(d).Sub(began) }
	clock.Set(at(0))
	url := start(clock)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	store, err := open.Limits(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })

	// askUntil asks until answers show the clock that the server was set to meanwhile,
	// and a little longer. It counts the requests that were allowed.
	askUntil := func(i int, to time.Duration) (yes int, err error) {
		want := first.Add(to).UnixMicro()
		for seen := 0; seen < 3; {
			d, err := store.Take(ctx, limits.Request{Takes: []limits.Take{{Key: fmt.Sprint("k", i), Limit: all[i].Limit, Cost: 1}}})
			if err != nil {
				return yes, err
			}
			if d.OK {
				yes++
			} else if d.Retry > all[i].lasts {
				return yes, fmt.Errorf("told to come back in %v, which is longer than it lasts", d.Retry)
			}
			if d.At >= want && d.At < want+(5*time.Minute).Microseconds() {
				seen++
			}
		}
		return yes, nil
	}
	for step, s := range []struct {
		to   time.Duration
		want int
	}{{0, jumpN}, {-time.Hour, 0}, {time.Hour, jumpN}, {0, 0}, {45 * time.Minute, jumpN}, {-15 * time.Minute, 0}} {
		var wg sync.WaitGroup
		var mu sync.Mutex
		total, errs := make([]int, len(all)), make([]error, len(all))
		for i := range all {
			for range 3 {
				wg.Go(func() {
					yes, err := askUntil(i, s.to)
					mu.Lock()
					defer mu.Unlock()
					total[i] += yes
					errs[i] = errors.Join(errs[i], err)
				})
			}
		}
		clock.Set(at(s.to))
		wg.Wait()
		for i, l := range all {
			if errs[i] != nil || total[i] != s.want {
				wrong = append(wrong, fmt.Sprintf("step %d, to %v, %v (classic: %v): %d allowed, want %d; %v", step, s.to, l.Algorithm, l.Classic, total[i], s.want, errs[i]))
				again = again && errs[i] == nil && s.want == 0
			}
		}
	}
	return wrong, again
}

// A wiretap forwards connections and keeps what was sent to the server.
type wiretap struct {
	addr string

	mu   sync.Mutex
	sent []byte
}

func newWiretap(t *testing.T, target string) *wiretap {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	w := &wiretap{addr: l.Addr().String()}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return // the test has ended
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				client.Close()
				continue
			}
			go func() {
				defer client.Close()
				io.Copy(client, server)
			}()
			go func() {
				defer server.Close()
				io.Copy(server, io.TeeReader(client, w))
			}()
		}
	}()
	return w
}

func (w *wiretap) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent = append(w.sent, b...)
	return len(b), nil
}

var digits = regexp.MustCompile("[0-9]{10,19}")

// tells reports numbers that were sent, as text or as eight bytes, and are the
// time, give or take an hour, in any unit.
func (w *wiretap) tells(now time.Time) (found []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	y2k := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // from when PostgreSQL counts
	near := func(n int64) bool {
		for _, unit := range []time.Duration{time.Second, time.Millisecond, time.Microsecond, time.Nanosecond} {
			for _, since := range []time.Duration{time.Duration(now.UnixNano()), now.Sub(y2k)} {
				if d := n - int64(since/unit); max(d, -d) < int64(time.Hour/unit) {
					return true
				}
			}
		}
		return false
	}
	for _, text := range digits.FindAll(w.sent, -1) {
		if n, err := strconv.ParseInt(string(text), 10, 64); err == nil && near(n) {
			found = append(found, string(text))
		}
	}
	for i := range max(len(w.sent)-7, 0) {
		for _, order := range []binary.ByteOrder{binary.BigEndian, binary.LittleEndian} {
			if n := int64(order.Uint64(w.sent[i:])); near(n) {
				found = append(found, fmt.Sprintf("% x", w.sent[i:i+8]))
			}
		}
	}
	return found
}

// What a program believes to be the time is in no request, so that it does not
// matter if that is wrong: the server's clock is a hundred days ahead of the
// program's here, and all that is sent is by the server's or by none.
func TestNoRequestTellsTheCallersTime(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	const ahead = 100 * 24 * time.Hour
	for name, start := range clocked {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock := testserver.NewClock(t)
			clock.Set(ahead)
			url := start(clock)
			target := regexp.MustCompile(`127\.0\.0\.1:[0-9]+`).FindString(url)
			tap := newWiretap(t, target)
			store, err := open.Limits(t.Context(), strings.Replace(url, target, tap.addr, 1))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { store.Close() })
			take := func(r limits.Request) limits.Taken {
				t.Helper()
				d, err := store.Take(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				return d
			}
			for i, l := range fiftyOfEach {
				for _, mode := range []limits.Mode{limits.TakeIfAllowed, limits.TakeIfAllowed, limits.TakeAnyway} {
					for _, id := range []string{"", driver.NewID()} {
						r := limits.Request{Takes: []limits.Take{{Key: fmt.Sprint("{k}", i), Limit: l, Cost: 30}, {Key: "{k}all", Limit: l}}, Mode: mode, ID: id}
						if r.Takes = r.Takes[:1+i%2]; id != "" {
							r.Keep, r.MaxWait = time.Hour, time.Minute
						}
						d := take(r)
						if off := time.UnixMicro(d.At).Sub(time.Now().Add(ahead)); off.Abs() > time.Hour {
							t.Errorf("decided %v off the server's time", off)
						}
						if id != "" {
							take(r)
						}
					}
				}
			}
			claim := driver.Claim{Key: "k", ID: driver.NewID(), Owner: "me", Weight: driver.Whole, Capacity: driver.Whole}
			for _, queue := range []bool{false, true} {
				g, err := store.Acquire(t.Context(), driver.Request{Claim: claim, TTL: 30 * time.Second, Queue: queue})
				if err != nil {
					t.Fatal(err)
				}
				claim.Ticket = g.Ticket
				if a := store.Renew(t.Context(), []driver.Claim{claim}, 30*time.Second); a[0].Err != nil {
					t.Fatal(a[0].Err)
				}
				if err := store.Release(t.Context(), claim); err != nil {
					t.Fatal(err)
				}
				claim.ID, claim.Ticket = driver.NewID(), 0
			}
			if found := tap.tells(time.Now()); len(found) > 0 {
				t.Errorf("the caller's time was sent: %q", found)
			}
			// A request that tells the caller's time is found: a store that decides by itself
			// sends the state, which has the end of the period.
			l := limits.Limit{Algorithm: limits.SlidingLog, N: 50, Period: time.Minute}
			take(limits.Request{Takes: []limits.Take{{Key: "told", Limit: l, Cost: 1}}, Now: time.Now().UnixMicro()})
			if tap.tells(time.Now()) == nil {
				t.Error("a request with Now was sent, and nobody has seen it")
			}
		})
	}
}
