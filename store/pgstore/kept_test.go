package pgstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

func recordHarness(url func(t drivertest.T) string, open func(drivertest.T, string, ...option) *Store) drivertest.RecordHarness {
	return drivertest.RecordHarness{
		Open: func(t drivertest.T, n int) []driver.Records {
			u := url(t)
			all := make([]driver.Records, n)
			for i := range all {
				all[i] = open(t, u)
			}
			return all
		},
		Kept: func(t drivertest.T, r driver.Records) (n int) {
			if err := r.(*Store).pool.QueryRow(context.Background(), `SELECT count(*) FROM baton_kept`, pgx.QueryExecModeExec).Scan(&n); err != nil {
				t.Fatalf("count: %v", err)
			}
			return n
		},
		Expire: func(t drivertest.T, r driver.Records, key string) {
			if _, err := r.(*Store).pool.Exec(context.Background(), `UPDATE baton_kept SET until = clock_timestamp() WHERE key = $1`, pgx.QueryExecModeExec, []byte("records/"+key)); err != nil {
				t.Fatalf("expire: %v", err)
			}
		},
	}
}

func TestRecords(t *testing.T) {
	testserver.NeedPostgres(t)
	t.Parallel()
	server := testserver.SharedPostgres(t)
	drivertest.Records(t, recordHarness(func(t drivertest.T) string { return server.URL(server.Database(tb{t})) }, openDirect))
}

func TestRecordsPgBouncer(t *testing.T) {
	testserver.Long(t)
	testserver.NeedPgBouncer(t)
	t.Parallel()
	server := testserver.Postgres(t, "-c", "max_connections=300") // the pooler keeps some for each database
	bouncer := testserver.PgBouncer(t, server)
	drivertest.Records(t, recordHarness(func(t drivertest.T) string { return bouncer.URL(server.Database(tb{t})) }, openAt))
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

// The answer to each call is lost after its effect: the error says that it may
// have happened, and asking again finds it.
func TestRecordAnswerCut(t *testing.T) {
	t.Parallel()
	server, url := database(t)
	proxy := faultproxy.New(t, server.Addr)
	plain := openAt(t, url)
	s := openAt(t, strings.Replace(url, server.Addr, proxy.Addr, 1))
	cut := func(what, carries string, act func() error) {
		t.Helper()
		sprung := proxy.CutAfterRequest(func(request []byte) bool { return bytes.Contains(request, []byte(carries)) })
		if err := act(); !errors.Is(err, driver.ErrUnknown) {
			t.Errorf("%s: %v, want driver.ErrUnknown", what, err)
		}
		<-sprung
	}
	const key = "key-that-is-cut"
	cut("begin", key, func() error { _, err := s.BeginAttempt(t.Context(), attempt(key, 7), time.Hour); return err })
	if r := beginRecord(t, plain, key, 7); r.Done || r.Attempts != 1 {
		t.Errorf("begun again: %+v", r)
	}
	cut("finish", "first", func() error {
		_, err := s.FinishAttempt(t.Context(), attempt(key, 7), driver.Outcome{Result: []byte("first")}, time.Hour)
		return err
	})
	if r := finishRecord(t, plain, key, 7, "second"); string(r.Result) != "first" || r.Attempts != 1 {
		t.Errorf("finished again: %+v", r)
	}
	cut("find", key, func() error { _, err := s.FindRecord(t.Context(), key); return err })
	cut("forget", "succeeded", func() error { return s.ForgetRecord(t.Context(), key) })
	if err := plain.ForgetRecord(t.Context(), key); !errors.Is(err, driver.ErrNoRecord) {
		t.Errorf("forgotten again: %v", err)
	}
	proxy.Swallow(faultproxy.ToServer)
	proxy.Swallow(faultproxy.ToClient)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := s.BeginAttempt(ctx, attempt("k", 1), time.Hour); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("silence: %v", err)
	}
}

// What was answered has survived the crash of the server, whatever the user's
// settings; what was not changed did not wait for the disk.
func TestRecordsThroughACrash(t *testing.T) {
	testserver.NeedPostgres(t)
	t.Parallel()
	server := testserver.Postgres(t)
	url := server.URL(server.Database(t))
	openAt(t, url)
	s := openOn(t, newPool(t, url, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
		c.ConnConfig.RuntimeParams["default_transaction_isolation"] = "repeatable read"
	}))
	beginRecord(t, s, "begun", 8)
	beginRecord(t, s, "done", 5)
	finishRecord(t, s, "done", 5, "x")
	beginRecord(t, s, "forgotten", 5)
	if err := s.ForgetRecord(t.Context(), "forgotten"); err != nil {
		t.Fatal(err)
	}
	server.Kill()
	server.Restart()
	awaitReachable(t, s)
	if r := beginRecord(t, s, "done", 6); !r.Done || string(r.Result) != "x" || r.Token != 5 {
		t.Errorf("%+v", r)
	}
	if _, err := s.BeginAttempt(t.Context(), attempt("begun", 7), time.Hour); !errors.Is(err, driver.ErrSuperseded) {
		t.Errorf("a lower token: %v", err)
	}
	finishRecord(t, s, "begun", 8, "y")
	if r, err := s.FindRecord(t.Context(), "forgotten"); !errors.Is(err, driver.ErrNoRecord) {
		t.Errorf("%+v, %v", r, err)
	}
}

// Time is read after the wait for the row: a record that expires meanwhile is gone, and
// one that was made again is kept for as long as was asked.
func TestRecordTimeIsReadAfterTheWait(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s := openAt(t, url)
	beginRecord(t, s, "finish", 7)
	beginRecord(t, s, "begin", 7)
	tx := begin(t, s, pgx.ReadCommitted)
	if _, err := tx.Exec(t.Context(), `UPDATE baton_kept SET until = clock_timestamp() + interval '200 ms'`); err != nil {
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
	awaitBlocked(t, s, 2)
	if _, err := tx.Exec(t.Context(), `SELECT pg_sleep(0.3)`); err != nil { // until they have expired
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
}

// Many clients want few operations, whose records expire and are removed all the time:
// no caller is told of a deadlock.
func TestRecordsNoDeadlockSurfaces(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	_, url := database(t)
	stores := []*Store{openAt(t, url), openDirect(t, url)}
	var wg sync.WaitGroup
	for client := range 16 {
		wg.Go(func() {
			s := stores[client%2]
			random := mathrand.New(mathrand.NewPCG(uint64(client), 1))
			for range 60 {
				key, token := fmt.Sprint("job ", random.IntN(6)), random.Int64N(100)+1
				var err error
				switch random.IntN(6) {
				case 0:
					err = s.ForgetRecord(t.Context(), key)
				case 1:
					_, err = s.FinishAttempt(t.Context(), attempt(key, token), driver.Outcome{}, check.MinRecordKeep)
				case 2:
					_, err = s.pool.Exec(t.Context(), `UPDATE baton_kept SET until = clock_timestamp() WHERE key = $1`, []byte("records/"+key))
				default:
					_, err = s.BeginAttempt(t.Context(), attempt(key, token), check.MinRecordKeep)
				}
				if err != nil && !errors.Is(err, driver.ErrSuperseded) && !errors.Is(err, driver.ErrNoRecord) {
					t.Errorf("%q: %v", key, err)
				}
			}
		})
	}
	wg.Wait()
}

// An attempt that begins looks for a few expired records, and for that reads
// none of the others.
func TestRecordsThatStandAreNotReadByOthers(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s := openAt(t, url)
	exec(t, s, `INSERT INTO baton_kept SELECT ('k' || i)::bytea, 'text', clock_timestamp() + interval '1 hour' * (i > 3)::int FROM generate_series(1, 20000) AS i`)
	exec(t, s, `VACUUM ANALYZE baton_kept`)
	for key, old := range map[string]string{"new": "", "k9": "text"} {
		tx := begin(t, s, pgx.ReadCommitted)
		counted := func() (read, removed int64) {
			const sql = `SELECT seq_tup_read + idx_tup_fetch, n_tup_del FROM pg_stat_xact_user_tables WHERE relname = 'baton_kept'`
			if err := tx.QueryRow(t.Context(), sql).Scan(&read, &removed); err != nil {
				t.Fatal(err)
			}
			return read, removed
		}
		read, removed := counted() // it is not of this transaction alone
		var swapped bool
		if err := tx.QueryRow(t.Context(), `SELECT swapped FROM baton_swap_1($1, $2, 'next', 3600000000)`, []byte(key), []byte(old)).Scan(&swapped); err != nil || !swapped {
			t.Fatalf("%s: swapped %v, %v", key, swapped, err)
		}
		readNow, removedNow := counted()
		if read, removed = readNow-read, removedNow-removed; read > 100 || removed != 3 {
			t.Errorf("%s: of 20000 rows %d were read and %d removed, want but few, and 3", key, read, removed)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
