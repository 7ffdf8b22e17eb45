package sqlitestore

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/drivertest"
)

func TestRecords(t *testing.T) {
	drivertest.Records(t, drivertest.RecordHarness{
		Open: func(t drivertest.T, n int) []driver.Records {
			path := filepath.Join(t.TempDir(), "records.db")
			all := make([]driver.Records, n)
			for i := range all {
				all[i] = openAt(t, path)
			}
			return all
		},
		Restart: func(t drivertest.T, all []driver.Records) {
			for i, r := range all {
				s := r.(*Store)
				if err := s.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
				all[i] = openAt(t, s.path)
			}
		},
		Kept: func(t drivertest.T, r driver.Records) (n int) {
			if err := r.(*Store).readers.QueryRow("SELECT count(*) FROM baton_kept").Scan(&n); err != nil {
				t.Errorf("count: %v", err)
			}
			return n
		},
	})
}

func begin(t *testing.T, s *Store, token int64, keep time.Duration) driver.Record {
	t.Helper()
	r, err := s.BeginAttempt(t.Context(), driver.Attempt{Key: "job", Token: token, Owner: "me"}, keep)
	if err != nil {
		t.Fatalf("attempt %d begins: %v", token, err)
	}
	return r
}

func finish(t *testing.T, s *Store, token int64, result string, keep time.Duration) driver.Record {
	t.Helper()
	r, err := s.FinishAttempt(t.Context(), driver.Attempt{Key: "job", Token: token}, driver.Outcome{Result: []byte(result)}, keep)
	if err != nil {
		t.Fatalf("attempt %d finishes: %v", token, err)
	}
	return r
}

// An operation that was finished before a reboot is finished after it, and what
// the machine was down for counts.
func TestRecordsThroughReboot(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := openNew(t, w.option)
	begin(t, s, 7, time.Hour)
	before := finish(t, s, 7, "paid", time.Hour)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	w.bootID.Store("second")
	w.boottime.Store(time.Second.Microseconds())
	w.wall.Add(time.Minute.Microseconds())
	s = openAt(t, s.path, w.option)
	r, err := s.FindRecord(t.Context(), "job")
	if err != nil || !r.Done || string(r.Result) != "paid" || r.Left != 59*time.Minute ||
		!r.Began.Equal(before.Began) || !r.Finished.Equal(before.Finished) {
		t.Errorf("a minute later: %+v, %v", r, err)
	}
	w.pass(59 * time.Minute)
	if r, err := s.FindRecord(t.Context(), "job"); !errors.Is(err, driver.ErrNoRecord) {
		t.Errorf("an hour later: %+v, %v", r, err)
	}
}

// A file that was made before there were records gets their table, and keeps its
// locks.
func TestRecordsInAnOldFile(t *testing.T) {
	t.Parallel()
	s := openNew(t)
	p := writer(t, s, "job")
	p.hold(time.Hour)
	if err := s.do(t.Context(), func(*tx) error {
		_, err := s.conn.ExecContext(context.Background(), "DROP TABLE baton_kept")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openAt(t, s.path)
	begin(t, s, 1, time.Hour)
	if n := len(writer(t, s, "job").inspect().Holders); n != 1 {
		t.Errorf("the lock has %d holders", n)
	}
}

// A caller that gives up in the middle of a write is told that it may have happened.
// Asking again, it is told what has, once.
func TestRecordsUnknown(t *testing.T) {
	t.Parallel()
	reached, goOn := make(chan bool), make(chan bool)
	var stop atomic.Bool
	s := openNew(t, func(o *options) {
		clock := o.clock
		o.clock = func() int64 {
			if stop.CompareAndSwap(true, false) {
				reached <- true
				<-goOn
			}
			return clock()
		}
	})
	leave := func(call func(context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error, 1)
		stop.Store(true)
		go func() { left <- call(ctx) }()
		<-reached // as the check of the file, before the request is taken out of the queue
		stop.Store(true)
		goOn <- true
		<-reached // within the transaction
		cancel()
		if err := <-left; !errors.Is(err, driver.ErrUnknown) || !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want driver.ErrUnknown and context.Canceled", err)
		}
		goOn <- true
	}
	a := driver.Attempt{Key: "job", Token: 7, Owner: "me"}
	leave(func(ctx context.Context) error {
		_, err := s.BeginAttempt(ctx, a, time.Hour)
		return err
	})
	if r := begin(t, s, 7, time.Hour); r.Done || r.Attempts != 1 {
		t.Errorf("begun again: %+v", r)
	}
	leave(func(ctx context.Context) error {
		_, err := s.FinishAttempt(ctx, a, driver.Outcome{Result: []byte("first")}, time.Hour)
		return err
	})
	if r := finish(t, s, 7, "second", time.Hour); string(r.Result) != "first" || r.Attempts != 1 {
		t.Errorf("finished again: %+v", r)
	}
	leave(func(ctx context.Context) error { return s.ForgetRecord(ctx, "job") })
	if err := s.ForgetRecord(t.Context(), "job"); err != nil { // the one before had only looked
		t.Errorf("forgotten again: %v", err)
	}
	if r, err := s.FindRecord(t.Context(), "job"); !errors.Is(err, driver.ErrNoRecord) {
		t.Errorf("forgotten: %+v, %v", r, err)
	}
}

// A call that only looks, or comes too late, writes nothing.
func TestRecordsThatWriteNothing(t *testing.T) {
	t.Parallel()
	s := openNew(t)
	begin(t, s, 7, time.Hour)
	finish(t, s, 7, "paid", time.Hour)
	changes := func() (n int64) {
		if err := s.do(t.Context(), func(*tx) error {
			return s.conn.QueryRowContext(context.Background(), "SELECT total_changes()").Scan(&n)
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := changes()
	begin(t, s, 8, time.Hour)
	finish(t, s, 7, "again", time.Hour)
	if _, err := s.FinishAttempt(t.Context(), driver.Attempt{Key: "job", Token: 8}, driver.Outcome{}, time.Hour); !errors.Is(err, driver.ErrSuperseded) {
		t.Errorf("%v", err)
	}
	if _, err := s.FindRecord(t.Context(), "job"); err != nil {
		t.Error(err)
	}
	if after := changes(); after != before {
		t.Errorf("%d rows were changed", after-before)
	}
}

// A list reads what begins with the prefix, and nothing beside it.
func TestListReadsARange(t *testing.T) {
	t.Parallel()
	s := openNew(t, newWorld().option)
	for table, text := range map[string]string{"baton_kept": listTextsSQL, "baton_limit": listStatesSQL} {
		steps := explain(t, s, text)
		if len(steps) != 1 || !strings.Contains(steps[0], "SEARCH "+table) || !strings.HasSuffix(steps[0], "(k>? AND k<?)") {
			t.Errorf("the plan is %q", steps)
		}
	}
}
