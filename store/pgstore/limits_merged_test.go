package pgstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/testserver"
)

// jamLimits makes a decision wait for a row that was locked by hand, on the only
// connection of s, so that what comes next waits until free is called.
func jamLimits(t *testing.T, s, plain *Store) (free func()) {
	t.Helper()
	mustTake(t, s, take(window(5), 1, "jam"))
	tx := begin(t, plain, pgx.ReadCommitted)
	if _, err := tx.Exec(t.Context(), `SELECT FROM baton_limit WHERE key = 'jam' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() { _, err := s.Take(context.Background(), take(window(5), 1, "jam")); got <- err }()
	awaitBlocked(t, plain, 1)
	return func() {
		t.Helper()
		if err := tx.Rollback(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-got; err != nil {
			t.Errorf("alone: %v", err)
		}
	}
}

// inLimitLine waits until that many decisions wait.
func inLimitLine(t *testing.T, s *Store, n int) {
	t.Helper()
	eventually(t, fmt.Sprint(n, " in line"), 20*time.Second, func() bool { return s.limits.Waiting() == n })
}

// Decisions that wait are each answered as if they were alone, one after the other:
// what one is refused does not matter to the next.
func TestMergedDecisions(t *testing.T) {
	t.Parallel()
	s, plain, _ := oneConnection(t)
	calendar := limits.Limit{Algorithm: limits.FixedWindow, N: 5, Windows: [4]int64{1, 2, 3, 4}}
	forget := take(bucket(7), 0, "forgotten")
	forget.Mode = limits.Forget
	mustTake(t, s, take(bucket(7), 7, "forgotten"))
	back := take(window(9), 2, "back")
	back.Mode, back.At = limits.GiveBack, mustTake(t, s, take(window(9), 5, "back")).At
	owes := take(bucket(4), 6, "owes")
	owes.Mode = limits.TakeAnyway
	mustTake(t, s, take(bucket(4), 4, "refuses"))
	mustTake(t, s, take(bucket(4), 1, "refuses")) // so that it is only looked at from now on

	free := jamLimits(t, s, plain)
	var wg sync.WaitGroup
	n := 0
	start := func(r limits.Request, ok bool, remaining int64) {
		t.Helper()
		wg.Go(func() {
			if d, err := s.Take(context.Background(), r); err != nil || d.OK != ok || d.Limits[0].Remaining != remaining {
				t.Errorf("%+v: %+v, %v, want %v and %d left", r, d, err, ok, remaining)
			}
		})
		n++
		inLimitLine(t, s, n)
	}
	for i := range 3 { // 7, 4, 1, and 1
		start(take(bucket(7), 3, "hot"), i < 2, []int64{4, 1, 1}[i])
	}
	start(take(bucket(7), 0, "hot"), true, 1)
	start(take(window(3), 1, "a"), true, 2)
	start(take(bucket(4), 1, "refuses"), false, 0)
	start(take(bucket(4), 0, "new"), true, 4)
	start(take(bucket(4), 5, "new"), false, 4)
	start(forget, true, 7)
	start(take(bucket(7), 2, "forgotten"), true, 5)
	start(back, true, 6)
	start(owes, true, 0)
	start(take(bucket(7), 1, "hot"), true, 0)
	wg.Go(func() {
		if _, err := s.Take(context.Background(), take(calendar, 1, "calendar")); !errors.As(err, new(*limits.ClockError)) {
			t.Errorf("outside of the calendar: %v", err)
		}
	})
	inLimitLine(t, s, n+1)
	free()
	wg.Wait()
	var commits int
	err := plain.pool.QueryRow(t.Context(), `SELECT count(DISTINCT xmin::text) FROM baton_limit WHERE key IN ('hot', 'a', 'forgotten', 'back', 'owes')`).Scan(&commits)
	if err != nil || commits != 1 {
		t.Errorf("decided in %d commits, want 1; %v", commits, err)
	}
	for key, want := range map[string]int64{"hot": 0, "forgotten": 5, "new": 7} {
		if d := mustTake(t, plain, take(bucket(7), 0, key)); d.Limits[0].Remaining != want {
			t.Errorf("%q: %+v, want %d left", key, d, want)
		}
	}
	if n := countKept(t, plain); n != 7 { // with jam, refuses, a, back, owes
		t.Errorf("%d rows", n)
	}
}

// One request that the server cannot serve fails alone.
func TestMergedDecisionFails(t *testing.T) {
	t.Parallel()
	s, plain, _ := oneConnection(t)
	exec(t, plain, `CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no''; END'`)
	exec(t, plain, `CREATE TRIGGER fail BEFORE INSERT ON baton_limit FOR EACH ROW WHEN (NEW.key = 'm') EXECUTE FUNCTION fail()`)
	free := jamLimits(t, s, plain)
	var wg sync.WaitGroup
	for i, key := range []string{"a", "m", "z", "a"} {
		wg.Go(func() {
			_, err := s.Take(context.Background(), take(window(5), 1, key))
			if key != "m" && err != nil || key == "m" && (!errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrUnknown)) {
				t.Errorf("%q: %v", key, err)
			}
		})
		inLimitLine(t, s, i+1)
	}
	free()
	wg.Wait()
	for key, want := range map[string]int64{"a": 3, "m": 5, "z": 4} {
		if d := mustTake(t, plain, take(window(5), 0, key)); d.Limits[0].Remaining != want {
			t.Errorf("%q: %+v, want %d left", key, d, want)
		}
	}
}

// The answer to all of them is lost after its effect: the callers of that statement do
// not know, and what they took was taken once.
func TestMergedDecisionsCut(t *testing.T) {
	t.Parallel()
	s, plain, proxy := oneConnection(t)
	free := jamLimits(t, s, plain)
	errs := make(chan error, 3)
	for i := range 3 {
		go func() { _, err := s.Take(context.Background(), take(window(9), 1, "key-that-is-cut")); errs <- err }()
		inLimitLine(t, s, i+1)
	}
	sprung := proxy.CutAfterRequest(saves("key-that-is-cut"))
	free()
	<-sprung
	for range 3 {
		if err := <-errs; !errors.Is(err, driver.ErrUnknown) {
			t.Errorf("cut: %v, want driver.ErrUnknown", err)
		}
	}
	for _, store := range []*Store{s, plain} {
		if d := mustTake(t, store, take(window(9), 0, "key-that-is-cut")); d.Limits[0].Remaining != 6 {
			t.Errorf("%+v, want 6 left", d)
		}
	}
}

// A caller that gives up while it waits has taken nothing; one that gives up when all
// was sent does not know; and the others are served.
func TestMergedDecisionCallersLeave(t *testing.T) {
	t.Parallel()
	s, plain, _ := oneConnection(t)
	tx := begin(t, plain, pgx.ReadCommitted)
	free := jamLimits(t, s, plain)
	ctx, cancel := context.WithCancel(t.Context())
	leaves, goes, stays := make(chan error, 1), make(chan error, 1), make(chan error, 1)
	ask := func(ctx context.Context, key string, answer chan<- error) {
		_, err := s.Take(ctx, take(window(9), 1, key))
		answer <- err
	}
	go ask(ctx, "k", leaves)
	inLimitLine(t, s, 1)
	cancel()
	if err := <-leaves; !errors.Is(err, context.Canceled) || errors.Is(err, driver.ErrUnknown) {
		t.Errorf("left the queue: %v", err)
	}
	if _, err := tx.Exec(t.Context(), `INSERT INTO baton_limit VALUES ('m', '', '-infinity')`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	go ask(ctx, "m", goes)
	inLimitLine(t, s, 1)
	go ask(context.Background(), "k", stays)
	inLimitLine(t, s, 2)
	free()
	awaitBlocked(t, plain, 1) // for m
	cancel()
	if err := <-goes; !errors.Is(err, context.Canceled) || !errors.Is(err, driver.ErrUnknown) {
		t.Errorf("left on its way: %v", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-stays; err != nil {
		t.Errorf("beside a caller that left: %v", err)
	}
	for _, key := range []string{"k", "m"} {
		if d := mustTake(t, plain, take(window(9), 0, key)); d.Limits[0].Remaining != 8 {
			t.Errorf("%q: %+v, want 8 left", key, d)
		}
	}
}

// A single decision costs a transaction; those that wait share some.
func TestMergedDecisionsSpareCommits(t *testing.T) {
	t.Parallel()
	server := testserver.Postgres(t) // its own, because commits are counted
	s := openOn(t, newPool(t, server.URL("postgres"), func(c *pgxpool.Config) { c.MaxConns = 1 }))
	commits := func() (n int64) {
		if err := s.pool.QueryRow(t.Context(), `SELECT pg_current_xact_id()::text::bigint`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	const clients, rounds = 32, 20
	before := commits()
	for range rounds {
		mustTake(t, s, take(window(1000), 1, "alone"))
	}
	if n := commits() - before; n != rounds+1 {
		t.Errorf("%d commits for %d decisions alone", n-1, rounds)
	}
	before = commits()
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			for j := range rounds {
				d, err := s.Take(t.Context(), take(window(rounds), 1, fmt.Sprint("own", i)))
				if err != nil || d.Limits[0].Remaining != int64(rounds-j-1) {
					t.Errorf("client %d, round %d: %+v, %v", i, j, d, err)
				}
				if d, err = s.Take(t.Context(), take(bucket(clients*rounds), 1, "hot")); err != nil || !d.OK {
					t.Errorf("client %d, round %d: %+v, %v", i, j, d, err)
				}
			}
		})
	}
	wg.Wait()
	if n := commits() - before; n > clients*rounds {
		t.Errorf("%d commits for %d decisions", n, 2*clients*rounds)
	}
	if d := mustTake(t, s, take(bucket(clients*rounds), 0, "hot")); d.Limits[0].Remaining != 0 {
		t.Errorf("%+v, want none left", d)
	}
}
