package mysqlstore

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// recordHarness gives each case a database, as limitHarness does, and the one that
// restarts it a server.
func recordHarness(all *testing.T, open func(t drivertest.T, d *database) *Store) drivertest.RecordHarness {
	var mu sync.Mutex
	var free []*database
	get := func(t drivertest.T) (d *database) {
		if strings.Contains(t.Name(), "restart") {
			return newDatabase(t, testserver.MariaDB(tb{t}))
		}
		mu.Lock()
		defer mu.Unlock()
		if n := len(free); n > 0 {
			d, free = free[n-1], free[:n-1]
		} else {
			d = shared(all)
		}
		t.Cleanup(func() { // after the stores were closed
			if _, err := d.plain.Exec("DELETE FROM baton_kept"); err == nil {
				mu.Lock()
				defer mu.Unlock()
				free = append(free, d)
			}
		})
		return d
	}
	return drivertest.RecordHarness{
		Open: func(t drivertest.T, n int) []driver.Records {
			d := get(t)
			handles := make([]driver.Records, n)
			for i := range handles {
				s := open(t, d)
				databases.put(s, d)
				handles[i] = s
			}
			return handles
		},
		Restart: func(t drivertest.T, all []driver.Records) {
			server := databases.of(all[0].(*Store)).server
			server.Kill()
			server.Restart()
			for _, r := range all {
				awaitReachable(t, r.(*Store))
			}
		},
		Kept: func(t drivertest.T, r driver.Records) (n int) {
			if err := databases.of(r.(*Store)).plain.QueryRow("SELECT COUNT(*) FROM baton_kept").Scan(&n); err != nil {
				t.Fatalf("count: %v", err)
			}
			return n
		},
		Expire: func(t drivertest.T, r driver.Records, key string) {
			if _, err := databases.of(r.(*Store)).plain.Exec("UPDATE baton_kept SET until=UTC_TIMESTAMP(6) WHERE k=?", "records/"+key); err != nil {
				t.Fatalf("expire: %v", err)
			}
		},
	}
}

func TestRecords(t *testing.T) {
	t.Parallel()
	testserver.NeedMariaDB(t)
	drivertest.Records(t, recordHarness(t, func(t drivertest.T, d *database) *Store {
		return d.openWith(t, func(_ *Server, o *options) { o.sweepEvery, o.stall = time.Second, 60 })
	}))
}

// TestRecordsOnPool runs on a pool that the program has opened.
func TestRecordsOnPool(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	testserver.NeedMariaDB(t)
	h := recordHarness(t, func(t drivertest.T, d *database) *Store {
		s := hardPool(t, d)
		o := standard
		o.stall = 60
		patient, err := build(t.Context(), &Store{single: s.single, slow: s.slow, apart: s.apart, opts: o})
		if err != nil {
			t.Fatalf("%v", err)
		}
		t.Cleanup(func() { patient.Close() })
		return patient
	})
	h.Kept, h.Restart = nil, nil // there is nothing of the pool in it
	drivertest.Records(t, h)
}

func attempt(key string, token int64) driver.Attempt {
	return driver.Attempt{Key: key, Token: token, Owner: "me"}
}

func beginRecord(t *testing.T, s *Store, key string, token int64) driver.Record {
	t.Helper()
	r, err := s.BeginAttempt(t.Context(), attempt(key, token), time.Hour)
	if err != nil {
		t.Fatalf("attempt %d of %q begins: %v", token, key, err)
	}
	return r
}

func finishRecord(t *testing.T, s *Store, key string, token int64, result string) driver.Record {
	t.Helper()
	r, err := s.FinishAttempt(t.Context(), attempt(key, token), driver.Outcome{Result: []byte(result)}, time.Hour)
	if err != nil {
		t.Fatalf("attempt %d of %q finishes: %v", token, key, err)
	}
	return r
}

// The answer to each request is lost. Where the request only looks nothing has happened;
// otherwise asking again tells what has, once. The server may see the cut before it comes
// to the commit.
func TestRecordAnswerCut(t *testing.T) {
	t.Parallel()
	d := shared(t)
	s, proxy := proxied(t, d)
	plain := d.open(t)
	cut := func(what, request string, want error, act func() error) {
		t.Helper()
		sprung := proxy.CutAfterRequest(carries(request))
		if err := act(); !errors.Is(err, want) {
			t.Errorf("%s, cut after %q: %v, want %v", what, request, err, want)
		}
		<-sprung
	}
	begin := func() error { _, err := s.BeginAttempt(t.Context(), attempt("k", 7), time.Hour); return err }
	finish := func() error {
		_, err := s.FinishAttempt(t.Context(), attempt("k", 7), driver.Outcome{Result: []byte("first")}, time.Hour)
		return err
	}
	find := func() error { _, err := s.FindRecord(t.Context(), "k"); return err }

	cut("begin", "UPDATE baton_kept", driver.ErrUnknown, begin)
	if r := beginRecord(t, plain, "k", 7); r.Done || r.Attempts != 1 {
		t.Errorf("begun again: %+v", r)
	}
	cut("finish", "UPDATE baton_kept", driver.ErrUnknown, finish)
	r := finishRecord(t, plain, "k", 7, "second")
	if again := finishRecord(t, plain, "k", 7, "third"); !r.Done || r.Attempts != 1 || string(again.Result) != string(r.Result) {
		t.Errorf("finished again: %+v, and then %+v", r, again)
	}
	cut("find", "FROM baton_kept", driver.ErrUnavailable, find)
	cut("forget", "DELETE FROM baton_kept", driver.ErrUnknown, func() error { return s.ForgetRecord(t.Context(), "k") })
	if err := plain.ForgetRecord(t.Context(), "k"); err != nil && !errors.Is(err, driver.ErrNoRecord) {
		t.Errorf("forgotten again: %v", err)
	}

	proxy.Swallow(faultproxy.ToServer)
	proxy.Swallow(faultproxy.ToClient)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := s.BeginAttempt(ctx, attempt("silence", 1), time.Hour); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("silence: %v", err)
	}
}

// Many clients of two kinds want few operations, which expire and are removed all the
// time: no caller is told of a deadlock.
func TestRecordsNoDeadlockSurfaces(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	d := shared(t)
	stores := []*Store{d.openWith(t, patient), d.openWith(t, patient), d.wrap(t, d.config())}
	var wg sync.WaitGroup
	for client := range 16 {
		wg.Go(func() {
			s := stores[client%len(stores)]
			random := mathrand.New(mathrand.NewPCG(uint64(client), 1))
			for range 12 {
				key, token := fmt.Sprint("job ", random.IntN(6)), random.Int64N(100)+1
				var err error
				switch random.IntN(7) {
				case 0:
					err = s.ForgetRecord(t.Context(), key)
				case 1:
					_, err = s.FinishAttempt(t.Context(), attempt(key, token), driver.Outcome{}, time.Minute)
				case 2:
					// A statement of an operator: it may lose against the others.
					_, _ = d.plain.ExecContext(t.Context(), "UPDATE baton_kept SET until=UTC_TIMESTAMP(6) WHERE k=?", "records/"+key)
				case 3:
					s.sweepTexts(t.Context())
				default:
					_, err = s.BeginAttempt(t.Context(), attempt(key, token), time.Minute)
				}
				if err != nil && !errors.Is(err, driver.ErrSuperseded) && !errors.Is(err, driver.ErrNoRecord) {
					t.Errorf("%q: %v", key, err)
				}
			}
		})
	}
	wg.Wait()
}

// The clock is read after the wait for the row: a record that expires meanwhile is
// gone, and one that was made again is kept for as long as was asked.
func TestRecordTimeIsReadAfterTheWait(t *testing.T) {
	t.Parallel()
	d := shared(t)
	s := d.openWith(t, func(c *Server, o *options) { c.Connections, o.stall = 12, 60 })
	beginRecord(t, s, "finish", 7)
	beginRecord(t, s, "begin", 7)
	tx, err := d.plain.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := tx.Exec("UPDATE baton_kept SET until=UTC_TIMESTAMP(6)+INTERVAL 200000 MICROSECOND"); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := s.FinishAttempt(context.Background(), attempt("finish", 7), driver.Outcome{}, time.Hour)
		if e, ok := errors.AsType[*driver.SupersededError](err); !ok || e.Last != 0 {
			t.Errorf("finish: %v", err)
		}
	})
	wg.Go(func() {
		r, err := s.BeginAttempt(context.Background(), attempt("begin", 3), time.Hour)
		if err != nil || r.Token != 3 || r.Attempts != 1 || r.Left < 50*time.Minute {
			t.Errorf("begin: %+v, %v", r, err)
		}
	})
	awaitBlocked(t, d, 2)
	if _, err := tx.Exec("DO SLEEP(0.3)"); err != nil { // until they have expired
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
}
