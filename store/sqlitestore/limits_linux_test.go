package sqlitestore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/drivertest"
)

func TestLimits(t *testing.T) {
	drivertest.Limits(t, drivertest.LimitHarness{
		Open: func(t drivertest.T, n int) []limits.Store {
			path := filepath.Join(t.TempDir(), "limits.db")
			all := make([]limits.Store, n)
			for i := range all {
				all[i] = openAt(t, path)
			}
			return all
		},
		Kept: func(t drivertest.T, l limits.Store) (n int) {
			err := l.(*Store).readers.QueryRow("SELECT (SELECT count(*) FROM baton_limit) + (SELECT count(*) FROM baton_limit_id)").Scan(&n)
			if err != nil {
				t.Errorf("count: %v", err)
			}
			return n
		},
	})
}

func bucketOf(n int64, per time.Duration, burst int64) limits.Limit {
	return limits.Limit{Algorithm: limits.TokenBucket, N: n, Period: per, Burst: burst}
}

func takeOne(t *testing.T, s *Store, key string, l limits.Limit, cost int64) limits.Taken {
	t.Helper()
	d, err := s.Take(t.Context(), limits.Request{Takes: []limits.Take{{Key: key, Limit: l, Cost: cost}}})
	if err != nil {
		t.Fatalf("take %d of %q: %v", cost, key, err)
	}
	return d
}

// childLimit takes from one limit as fast as it can and writes how often that
// was allowed.
func childLimit() {
	s := childStore()
	var yes atomic.Int64
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range 3 {
				d, err := s.Take(context.Background(), limits.Request{Takes: []limits.Take{{Key: "k", Limit: bucketOf(1, 1000*time.Hour, 50), Cost: 1}}})
				if err != nil {
					panic(err)
				}
				if d.OK {
					yes.Add(1)
				}
			}
		})
	}
	wg.Wait()
	fmt.Println(yes.Load())
	if err := s.Close(); err != nil {
		panic(err)
	}
}

// Four processes with fifty goroutines each take from a limit of fifty.
func TestLimitsOfProcesses(t *testing.T) {
	t.Parallel()
	s := openNew(t)
	var cmds []*exec.Cmd
	var outs []*strings.Builder
	for range 4 {
		cmd, out := child(t, "limit", s.path), new(strings.Builder)
		cmd.Stdout = out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		cmds, outs = append(cmds, cmd), append(outs, out)
	}
	sum := 0
	for i, cmd := range cmds {
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(strings.TrimSpace(outs[i].String()))
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	if sum != 50 {
		t.Errorf("%d were allowed of 50", sum)
	}
}

// What was taken before a reboot counts after it, and comes back while the
// machine is down.
func TestLimitsThroughReboot(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := openNew(t, w.option)
	l := bucketOf(10, 10*time.Second, 10)
	before := takeOne(t, s, "k", l, 10)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	w.bootID.Store("second")
	w.boottime.Store(time.Second.Microseconds())
	w.wall.Add(4_000_000)
	s = openAt(t, s.path, w.option)
	d := takeOne(t, s, "k", l, 5)
	if d.OK || d.Limits[0].Remaining != 4 || d.Retry != time.Second || d.At-before.At != 4_000_000 {
		t.Errorf("four seconds later: %+v, before %+v", d, before)
	}
}

// A reboot with a wall clock that is far behind locks no caller out for long.
func TestLimitsThroughRebootInThePast(t *testing.T) {
	t.Parallel()
	for _, l := range []limits.Limit{
		bucketOf(10, 10*time.Second, 10),
		{Algorithm: limits.SlidingLog, N: 10, Period: 10 * time.Second},
		{Algorithm: limits.FixedWindow, N: 10, Period: 10 * time.Second},
	} {
		w := newWorld()
		s := openNew(t, w.option)
		takeOne(t, s, "k", l, 10)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		w.bootID.Store("second")
		w.boottime.Store(time.Second.Microseconds())
		w.wall.Store(time.Minute.Microseconds()) // no battery
		s = openAt(t, s.path, w.option)
		if d := takeOne(t, s, "k", l, 10); !d.OK {
			if d.Retry > 20*time.Second {
				t.Errorf("%v: %+v", l.Algorithm, d)
			}
			w.pass(d.Retry)
			if d := takeOne(t, s, "k", l, 10); !d.OK {
				t.Errorf("%v, as late as told: %+v", l.Algorithm, d)
			}
		}
	}
}

// The clock of the limits follows the wall clock when that is set, in all
// processes, and only then.
func TestLimitsFollowTheWallClock(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := openNew(t, w.option)
	other := openAt(t, s.path, w.option)
	l := bucketOf(1, time.Hour, 5)
	at := func(s *Store) int64 { return takeOne(t, s, "k", l, 0).At }
	first := at(s)
	if a, b := at(s), at(other); a != first || b != first {
		t.Fatalf("at %d, %d and %d", first, a, b)
	}
	w.wall.Add(900_000) // slewed or adjusted: no jump
	w.boottime.Add(2_000_000)
	w.wall.Add(2_000_000)
	if a, b := at(s), at(other); a != first+2_000_000 || b != a {
		t.Errorf("two seconds later %d and %d", a-first, b-first)
	}
	for _, by := range []time.Duration{time.Hour, -24 * time.Hour} {
		w.wall.Add(by.Microseconds())
		w.pass(2 * time.Second)
		if a, b := at(s), at(other); a != w.wall.Load() || b != a {
			t.Errorf("set by %v: %d and %d, want %d", by, a, b, w.wall.Load())
		}
		if a := at(s); a != w.wall.Load() {
			t.Errorf("set by %v, again: %d, want %d", by, a, w.wall.Load())
		}
	}
	w.wall.Add(time.Hour.Microseconds())
	w.pass(2 * time.Second)
	undone := errors.New("undone")
	if err := s.do(t.Context(), func(t *tx) error {
		_, err := t.limitClock()
		return errors.Join(err, undone)
	}); err == nil {
		t.Error("the transaction that noticed was not undone")
	}
	if a, b := at(s), at(other); a != w.wall.Load() || b != a {
		t.Errorf("set, and that was undone: %d and %d, want %d", a, b, w.wall.Load())
	}
}

// The wall clock is set, and one process has not noticed: no time that one of
// them writes is over for the other, be it of a limit or of a record.
func TestLimitsOfAProcessThatHasNotSeenTheClockSet(t *testing.T) {
	t.Parallel()
	for _, by := range []time.Duration{time.Hour, -time.Hour} {
		w := newWorld()
		s := openNew(t, w.option)
		other := openAt(t, s.path, w.option)
		l := bucketOf(5, 20*time.Minute, 5)
		takeOne(t, other, "k", l, 0)
		w.pass(1500 * time.Millisecond)
		takeOne(t, s, "k", l, 0) // has just compared the clocks, the other has not
		w.wall.Add(by.Microseconds())
		allowed := 0
		for range 10 {
			for _, s := range []*Store{other, s} {
				if takeOne(t, s, "k", l, 1).OK {
					allowed++
				}
			}
		}
		if allowed != 5 {
			t.Errorf("set by %v: %d were allowed of 5", by, allowed)
		}
		for n, at := range [][2]*Store{{other, s}, {s, other}} {
			begin(t, at[0], int64(2*n+1), 20*time.Minute)
			finish(t, at[0], int64(2*n+1), "done", 20*time.Minute)
			if r := begin(t, at[1], int64(2*n+2), 20*time.Minute); !r.Done {
				t.Errorf("set by %v: what is done begins again: %+v", by, r)
			}
			if err := at[0].ForgetRecord(t.Context(), "job"); err != nil {
				t.Errorf("set by %v: %v", by, err)
			}
		}
	}
}

// A process that is stopped between its looks at the two clocks does not take
// that for a clock that was set.
func TestLimitsStoppedBetweenTheClocks(t *testing.T) {
	t.Parallel()
	w := newWorld()
	var stop atomic.Bool
	s := openNew(t, w.option, func(o *options) {
		o.wall = func() int64 {
			now := w.wall.Load()
			if stop.CompareAndSwap(true, false) {
				w.pass(time.Hour)
			}
			return now
		}
	})
	l := bucketOf(1, time.Hour, 5)
	first := takeOne(t, s, "k", l, 0).At
	w.pass(2 * time.Second)
	stop.Store(true)
	takeOne(t, s, "k", l, 0)
	w.pass(2 * time.Second)
	if at := takeOne(t, s, "k", l, 0).At; at-first != (time.Hour + 4*time.Second).Microseconds() {
		t.Errorf("%v after the first", time.Duration(at-first)*time.Microsecond)
	}
}

// A state that no store has written is a fresh key.
func TestLimitGarbage(t *testing.T) {
	t.Parallel()
	s := openNew(t)
	for i, text := range []string{
		"x", "1", "1 2", "1 5 -3 4", "3 1", "9 9 9 9 9 9", "3 99999999999999999999 0 1 1 0", "1 5 9007199254740993 1",
		" ", "1  5", "1 5 9000000000000000 3 ", "2 1 1 1 1 1", "3 1 1 1 1 1", "3.5", "1 5 0x10 1",
	} {
		key := fmt.Sprint("k", i)
		takeOne(t, s, key, bucketOf(1, time.Hour, 5), 5)
		if err := s.do(t.Context(), func(*tx) error {
			_, err := s.conn.ExecContext(context.Background(), "UPDATE baton_limit SET state = ? WHERE k = ?", text, []byte(key))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if d := takeOne(t, s, key, bucketOf(1, time.Hour, 5), 5); !d.OK {
			t.Errorf("after %q: %+v", text, d)
		}
	}
}

// A file that was made before there were limits gets their tables, and keeps
// its locks.
func TestLimitsInAnOldFile(t *testing.T) {
	t.Parallel()
	s := openNew(t)
	p := writer(t, s, "k")
	p.hold(time.Hour)
	if err := s.do(t.Context(), func(*tx) error {
		_, err := s.conn.ExecContext(context.Background(), "DROP TABLE baton_limit; DROP TABLE baton_limit_id")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openAt(t, s.path)
	if d := takeOne(t, s, "k", bucketOf(1, time.Hour, 5), 5); !d.OK {
		t.Errorf("%+v", d)
	}
	if n := len(writer(t, s, "k").inspect().Holders); n != 1 {
		t.Errorf("the lock has %d holders", n)
	}
}

// A request that is refused, or only looks, writes nothing. An error about a calendar
// does not undo the requests that share the transaction.
func TestLimitsThatWriteNothing(t *testing.T) {
	t.Parallel()
	s := openNew(t)
	l := bucketOf(1, time.Hour, 5)
	takeOne(t, s, "k", l, 5)
	size := func() int64 {
		info, err := os.Stat(s.path + "-wal")
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	before := size()
	for range 20 {
		if d := takeOne(t, s, "k", l, 1); d.OK {
			t.Errorf("%+v", d)
		}
		takeOne(t, s, "k", l, 0)
		takeOne(t, s, "new", l, 0)
	}
	if after := size(); after != before {
		t.Errorf("the log has grown from %d to %d bytes", before, after)
	}

	block, blocked := make(chan bool), make(chan bool)
	var wg sync.WaitGroup
	wg.Go(func() {
		s.do(t.Context(), func(*tx) error {
			close(blocked)
			<-block
			return nil
		})
	})
	<-blocked
	past := limits.Limit{Algorithm: limits.FixedWindow, N: 1, Windows: [4]int64{1, 2, 3, 4}}
	wg.Go(func() {
		_, err := s.Take(t.Context(), limits.Request{Takes: []limits.Take{{Key: "past", Limit: past, Cost: 1}}})
		if clock, ok := errors.AsType[*limits.ClockError](err); !ok || clock.Ahead < 24*time.Hour {
			t.Errorf("%v", err)
		}
	})
	for range 20 {
		wg.Go(func() { takeOne(t, s, "hot", bucketOf(1, 1000*time.Hour, 15), 1) })
	}
	await(t, time.Now().Add(10*time.Second), "the requests wait", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.queue) == 21
	})
	close(block)
	wg.Wait()
	if d := takeOne(t, s, "hot", bucketOf(1, 1000*time.Hour, 15), 0); d.Limits[0].Remaining != 0 || d.Limits[0].Reset > 15*1000*time.Hour {
		t.Errorf("twenty takes of fifteen: %+v", d)
	}
}

// A caller that gives up while another process is in the middle of a write has taken
// nothing.
func TestLimitsLeavingTheQueue(t *testing.T) {
	t.Parallel()
	s := openNew(t)
	block, blocked := make(chan bool), make(chan bool)
	done := make(chan error, 1)
	go func() {
		done <- s.do(t.Context(), func(*tx) error {
			close(blocked)
			<-block
			return nil
		})
	}()
	<-blocked
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	l := bucketOf(1, time.Hour, 5)
	go func() {
		_, err := s.Take(ctx, limits.Request{Takes: []limits.Take{{Key: "k", Limit: l, Cost: 5}}})
		left <- err
	}()
	await(t, time.Now().Add(10*time.Second), "the request waits", s.waiting)
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) || errors.Is(err, driver.ErrUnknown) {
		t.Errorf("%v", err)
	}
	close(block)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if d := takeOne(t, s, "k", l, 0); d.Limits[0].Remaining != 5 {
		t.Errorf("%+v", d)
	}
}

// The rows of keys and IDs that are not used any more do not pile up, however
// many IDs one key has.
func TestLimitsSweep(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := openNew(t, w.option)
	for i := range 1000 {
		d, err := s.Take(t.Context(), limits.Request{
			Takes: []limits.Take{{Key: "k", Limit: bucketOf(1000, time.Second, 1000), Cost: 1}, {Key: fmt.Sprint("once/", i), Limit: bucketOf(1, time.Second, 1), Cost: 1}},
			ID:    driver.NewID(), Keep: 10 * time.Second,
		})
		if err != nil || !d.OK {
			t.Fatalf("%+v, %v", d, err)
		}
		w.pass(100 * time.Millisecond)
	}
	if n := rows(t, s, "SELECT count(*) FROM baton_limit"); n > 200 {
		t.Errorf("%d rows are left of 1000 keys, of which ten count", n)
	}
	if n := rows(t, s, "SELECT count(*) FROM baton_limit_id"); n > 300 {
		t.Errorf("%d IDs are left of 1000, of which a hundred count", n)
	}
}
