package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
)

// The traps of the SQL stores, each as the interleaving that was feared.

// sweeps makes rows old at once.
func sweeps(_ *Server, o *options) { o.sweepAge = time.Microsecond }

// patient waits for a row for as long as a slow machine needs.
func patient(_ *Server, o *options) { o.stall = 60 }

// lockRow locks the row of key as another program's transaction would.
func lockRow(t *testing.T, d *database, table, key string) *sql.Tx {
	t.Helper()
	tx := begin(t, d.plain, sql.LevelReadCommitted)
	rows, err := tx.Query("SELECT 1 FROM "+table+" WHERE k=? FOR UPDATE", key)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	if !rows.Next() {
		t.Fatalf("no row of %q in %s: %v", key, table, rows.Err())
	}
	return tx
}

// awaitBlocked returns once n statements wait for rows of d's tables.
func awaitBlocked(t *testing.T, d *database, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d blocked transactions", n), 10*time.Second, func() bool {
		time.Sleep(120 * time.Millisecond) // the server answers from memory if it is asked again within 100 ms
		var have int
		err := d.plain.QueryRow(`SELECT COUNT(*) FROM information_schema.INNODB_TRX x JOIN information_schema.PROCESSLIST p ON p.ID=x.trx_mysql_thread_id
			WHERE x.trx_state='LOCK WAIT' AND p.DB=?`, d.name).Scan(&have)
		return err == nil && have >= n
	})
}

func commit(t *testing.T, tx *sql.Tx) {
	t.Helper()
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}

// Trap 1: what the sweep removes comes back with a higher token, and a counter
// that is ahead of the clock is not removed.
func TestTokensRiseThroughTheSweep(t *testing.T) {
	t.Parallel()
	d := shared(t)
	s := d.openWith(t, sweeps)
	var keys []string
	before := map[string]int64{}
	for i := range 5 {
		key := fmt.Sprint("k", i)
		c, g := take(t, s, claimOf(key, "a"), time.Minute, false)
		keys, before[key] = append(keys, key), g.Token
		if i < 4 {
			mustRelease(t, s, c)
		}
	}
	d.exec(t, "UPDATE baton_lock SET last=last+1000000000 WHERE k='k3'")
	before["k3"] += 1_000_000_000
	rows := func() (n int) {
		if err := d.plain.QueryRow("SELECT COUNT(*) FROM baton_lock").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	eventually(t, "only the one that is held and the one that is ahead are left", 10*time.Second, func() bool {
		if _, err := s.sweepStep(t.Context(), "", 100); err != nil {
			t.Fatal(err)
		}
		return rows() == 2
	})
	for _, key := range keys[:4] {
		if _, g := take(t, s, claimOf(key, "b"), time.Minute, false); g.Token <= before[key] {
			t.Errorf("%s: token %d after %d", key, g.Token, before[key])
		}
	}
}

// Trap 1, with everything at once: many acquire and release while the sweep
// removes what it can.
func TestTokensRiseWhileTheSweepRuns(t *testing.T) {
	t.Parallel()
	d := shared(t)
	sweeper := d.openWith(t, sweeps)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			if _, err := sweeper.sweepStep(ctx, "", 100); err != nil && ctx.Err() == nil {
				t.Errorf("sweep: %v", err)
			}
		}
	})
	var users sync.WaitGroup
	for i := range 4 {
		s := d.open(t)
		users.Go(func() {
			last := int64(0)
			for range 50 {
				c := claimOf(fmt.Sprint("k", i), "a")
				g, err := s.Acquire(t.Context(), driver.Request{Claim: c, TTL: time.Minute})
				if err != nil {
					t.Errorf("acquire: %v", err)
					return
				}
				if g.Token <= last {
					t.Errorf("token %d after %d", g.Token, last)
				}
				last = g.Token
				if err := s.Release(t.Context(), c); err != nil {
					t.Errorf("release: %v", err)
				}
			}
		})
	}
	users.Wait()
	cancel()
	wg.Wait()
}

// The sweep locks no row that is in use, not even for a moment: a renewal would skip the
// row and have to ask for its lease alone.
func TestSweepLocksNothingThatIsUsed(t *testing.T) {
	t.Parallel()
	d := shared(t)
	s, sweeper := d.open(t), d.openWith(t, sweeps)
	take(t, s, claimOf("used", "a"), time.Minute, false)
	ctx, cancel := context.WithCancel(t.Context())
	var steps atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			if _, err := sweeper.sweepStep(ctx, "", 100); err != nil && ctx.Err() == nil {
				t.Errorf("sweep: %v", err)
				return
			}
			steps.Add(1)
		}
	})
	for i := 0; (i < 200 || steps.Load() < 200) && !t.Failed(); i++ {
		var key string
		if err := d.plain.QueryRow("SELECT k FROM baton_lock WHERE k='used' FOR UPDATE NOWAIT").Scan(&key); err != nil {
			t.Fatalf("look %d, after %d steps: %v", i, steps.Load(), err)
		}
	}
	cancel()
	wg.Wait()
}

// The sweep serves keys whose waiters have all died, and removes them then.
func TestSweepOfTheDead(t *testing.T) {
	t.Parallel()
	d := shared(t)
	s := d.openWith(t, sweeps)
	take(t, s, claimOf("k", "a"), 100*time.Millisecond, false)
	for range 40 {
		take(t, s, claimOf("k", "dead"), 100*time.Millisecond, true)
	}
	d.exec(t, "UPDATE baton_claim SET ends=UTC_TIMESTAMP(6)")
	eventually(t, "nothing is left", 20*time.Second, func() bool {
		if _, err := s.sweepStep(t.Context(), "", 100); err != nil {
			t.Fatal(err)
		}
		var n int
		err := d.plain.QueryRow("SELECT (SELECT COUNT(*) FROM baton_lock)+(SELECT COUNT(*) FROM baton_claim)").Scan(&n)
		return err == nil && n == 0
	})
}

// A transaction of another program has locked a row for long. The sweep passes over it to
// those behind, in a page and from page to page.
func TestSweepPassesLockedRows(t *testing.T) {
	t.Parallel()
	d := shared(t)
	s := d.openWith(t, sweeps)
	keys := []string{"a", "b", "c"}
	for _, key := range keys {
		take(t, s, claimOf(key, "a"), time.Minute, false)
		take(t, s, claimOf(key, "dead"), time.Minute, true)
		takeOne(t, s, key, bucketOf(1, time.Hour, 10), 1)
	}
	d.exec(t, "UPDATE baton_claim SET ends=UTC_TIMESTAMP(6)")
	d.exec(t, "UPDATE baton_lock SET ends='2020-01-01',last=1")
	d.exec(t, "UPDATE baton_limit SET ends='2020-01-01'")
	left := func(table string) (all []string) {
		rows, err := d.plain.Query("SELECT DISTINCT k FROM " + table + " ORDER BY k")
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			var key string
			if err := rows.Scan(&key); err != nil {
				t.Fatal(err)
			}
			all = append(all, key)
		}
		return all
	}
	held, heldLimit := lockRow(t, d, "baton_lock", "a"), lockRow(t, d, "baton_limit", "b")

	if last, err := s.sweepStep(t.Context(), "", 1); err != nil || last != "a" {
		t.Errorf("a page with a locked row ended at %q, %v, want a", last, err)
	}
	if _, err := s.sweepStep(t.Context(), "", 10); err != nil {
		t.Errorf("sweep: %v", err)
	}
	if got := left("baton_claim"); !slices.Equal(got, keys[:1]) {
		t.Errorf("claims are left of %q, want those of a", got)
	}
	if _, err := s.sweepLimits(t.Context(), "", 10); err != nil {
		t.Errorf("sweep of limits: %v", err)
	}
	if got := left("baton_limit"); !slices.Equal(got, keys[1:2]) {
		t.Errorf("states are left of %q, want that of b", got)
	}

	commit(t, held)
	commit(t, heldLimit)
	for range 2 { // serves, then removes
		if _, err := s.sweepStep(t.Context(), "", 10); err != nil {
			t.Errorf("sweep: %v", err)
		}
	}
	if _, err := s.sweepLimits(t.Context(), "", 10); err != nil {
		t.Errorf("sweep of limits: %v", err)
	}
	if locks, limits := left("baton_lock"), left("baton_limit"); len(locks)+len(limits) > 0 {
		t.Errorf("in the end locks %q and states %q are left", locks, limits)
	}
}

// Trap 2: a release that waits for the key's row must see claims that joined the queue while it
// waited.
func TestReleaseSeesClaimsThatJoinedWhileItWaited(t *testing.T) {
	t.Parallel()
	d := shared(t)
	a, b := d.openWith(t, patient), d.openWith(t, patient)
	for round := range 5 {
		key := fmt.Sprint("k", round)
		h, _ := take(t, a, claimOf(key, "h"), time.Minute, false)
		blocker := lockRow(t, d, "baton_lock", key)
		w := claimOf(key, "w")
		var wg sync.WaitGroup
		wg.Go(func() {
			g, err := b.Acquire(t.Context(), driver.Request{Claim: w, TTL: time.Minute, Queue: true})
			if err != nil {
				t.Errorf("join: %v", err)
			}
			w.Ticket = g.Ticket
		})
		awaitBlocked(t, d, 1)
		wg.Go(func() {
			if err := a.Release(t.Context(), h); err != nil {
				t.Errorf("release: %v", err)
			}
		})
		awaitBlocked(t, d, 2)
		commit(t, blocker)
		wg.Wait()
		if r := renewOne(t, b, w, time.Minute); r.State != driver.Held {
			t.Fatalf("round %d: %+v, want it held", round, r)
		}
	}
}

// Trap 3: a holder is renewing while another reads that it has ended.
func TestRenewedClaimIsNotRemoved(t *testing.T) {
	t.Parallel()
	d := shared(t)
	s := d.openWith(t, patient)
	reader := claimOf("k", "reader")
	reader.Weight = 1
	reader, _ = take(t, s, reader, time.Minute, false)
	writer, _ := take(t, s, claimOf("k", "writer"), time.Minute, true)
	d.exec(t, "UPDATE baton_claim SET ends=UTC_TIMESTAMP(6) WHERE k='k' AND held=1")
	renewing := begin(t, d.plain, sql.LevelReadCommitted)
	if _, err := renewing.Exec("UPDATE baton_claim SET ends=UTC_TIMESTAMP(6)+INTERVAL 60 SECOND WHERE k='k' AND held=1"); err != nil {
		t.Fatal(err)
	}
	got := make(chan driver.Renewal, 1)
	go func() { got <- s.Renew(t.Context(), []driver.Claim{writer}, time.Minute)[0] }()
	awaitBlocked(t, d, 1) // at the reader's row
	commit(t, renewing)
	if r := <-got; r.State == driver.Held {
		t.Errorf("the writer holds beside the reader: %+v", r)
	}
	if r := renewOne(t, s, reader, time.Minute); r.State != driver.Held {
		t.Errorf("the reader: %+v", r)
	}
}

// Trap 4: a request that waited for the row is granted its whole time, and by
// the slow path from when it got the row.
func TestClockAfterARowLock(t *testing.T) {
	t.Parallel()
	d := shared(t)
	s := d.openWith(t, patient)
	const ttl = 30 * time.Second
	now := func() int64 {
		at, err := s.ServerTime(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return at.UnixMicro()
	}
	for _, weight := range []int64{driver.Whole, 1} {
		key := fmt.Sprint("k", weight)
		first, _ := take(t, s, claimOf(key, "first"), time.Minute, false)
		mustRelease(t, s, first)
		blocker := lockRow(t, d, "baton_lock", key)
		sent := now()
		c := claimOf(key, "c")
		c.Weight = weight
		done := make(chan error, 1)
		go func() {
			_, err := s.Acquire(t.Context(), driver.Request{Claim: c, TTL: ttl})
			done <- err
		}()
		awaitBlocked(t, d, 1)
		freed := now()
		commit(t, blocker)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		info, err := s.Inspect(t.Context(), key)
		if err != nil || len(info.Holders) != 1 {
			t.Fatalf("%+v, %v", info, err)
		}
		from := sent
		if weight == 1 {
			from = freed
		}
		if ends := now() + info.Holders[0].Remaining.Microseconds(); ends < from+ttl.Microseconds() {
			t.Errorf("weight %d: it ends %d µs before its time", weight, from+ttl.Microseconds()-ends)
		}
	}
}

// Trap 4: all statements tell the time by the one function that is the same in all
// sessions. One condition compares two others with each other.
func TestOneClock(t *testing.T) {
	t.Parallel()
	other := regexp.MustCompile(`(?i)\b(now|sysdate|current_timestamp|localtime|localtimestamp|curtime|utc_time|unix_timestamp)\s*\(|UTC_TIMESTAMP\((|[^6])\)`)
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, f := range files {
		if strings.HasSuffix(f.Name(), "_test.go") || !strings.HasSuffix(f.Name(), ".go") && f.Name() != "schema.sql" {
			continue
		}
		text, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		seen++
		for _, found := range other.FindAllString(strings.NewReplacer("Now()", "", onward, "", elapsed, "").Replace(string(text)), -1) {
			t.Errorf("%s tells the time by %s", f.Name(), found)
		}
	}
	if seen < 10 {
		t.Errorf("read only %d files", seen)
	}
}

// Trap 6: a renewal never misses a claim that is just being granted.
func TestRenewalsDuringTheHandOver(t *testing.T) {
	t.Parallel()
	d := shared(t)
	a, b := d.open(t), d.open(t)
	for range 20 {
		h, _ := take(t, a, claimOf("k", "h"), time.Minute, true)
		w, _ := take(t, b, claimOf("k", "w"), time.Minute, true)
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				if r := b.Renew(t.Context(), []driver.Claim{w}, time.Minute)[0]; r.State == driver.Lost {
					t.Error("a claim was lost while it was granted")
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
		mustRelease(t, a, h)
		close(stop)
		wg.Wait()
		mustRelease(t, b, w)
	}
}

// Trap 7: a row that another transaction has locked is not lost, and does not hold up
// the others of the batch.
func TestLockedRowIsNotLost(t *testing.T) {
	t.Parallel()
	d := shared(t)
	s := d.open(t)
	const ttl = 10 * time.Second
	locked, _ := take(t, s, claimOf("locked", "a"), time.Minute, false)
	reader := claimOf("reader", "r")
	reader.Weight = 1
	reader, _ = take(t, s, reader, time.Minute, false)
	other, _ := take(t, s, claimOf("other", "b"), time.Minute, false)
	for _, c := range []struct{ table, key string }{{"baton_lock", "locked"}, {"baton_claim", "reader"}} {
		blocker := lockRow(t, d, c.table, c.key)
		for i, r := range s.Renew(t.Context(), []driver.Claim{locked, reader, other}, ttl) {
			isIt := c.key == []string{"locked", "reader", "other"}[i]
			if isIt && (r.State != driver.Unknown || r.Err == nil) || !isIt && r.State != driver.Held {
				t.Errorf("%s is locked: claim %d: %+v", c.key, i, r)
			}
		}
		commit(t, blocker)
		for i, r := range s.Renew(t.Context(), []driver.Claim{locked, reader, other}, time.Minute) {
			if r.State != driver.Held {
				t.Errorf("%s was locked: claim %d: %+v", c.key, i, r)
			}
		}
	}
}

// Trap 7, of the sweep: rows that another transaction has locked hold up neither sweep.
func TestSweepWaitsForNoTransaction(t *testing.T) {
	t.Parallel()
	d := shared(t)
	s := d.openWith(t, patient)
	for i := range 10 {
		d.exec(t, "INSERT INTO baton_kept (k,text,until) VALUES (?,'',UTC_TIMESTAMP(6))", fmt.Sprint("k", i))
		d.exec(t, "INSERT INTO baton_limit_id (k,id,at,wait,ends) VALUES (?,'id',0,0,UTC_TIMESTAMP(6))", fmt.Sprint("k", i))
	}
	records, ids := lockRow(t, d, "baton_kept", "k3"), lockRow(t, d, "baton_limit_id", "k3")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := s.sweepSomeTexts(ctx); err != nil {
		t.Errorf("records: %v", err)
	}
	if err := s.sweepIDs(ctx, 10); err != nil {
		t.Errorf("IDs: %v", err)
	}
	commit(t, records)
	commit(t, ids)
	for _, table := range []string{"baton_kept", "baton_limit_id"} {
		var left string
		if err := d.plain.QueryRow("SELECT GROUP_CONCAT(k) FROM " + table).Scan(&left); err != nil || left != "k3" {
			t.Errorf("%s: %q is left, %v", table, left, err)
		}
	}
}

// Trap 8: what SET writes must not depend on the order in which it does.
func TestSetInAnyOrder(t *testing.T) {
	t.Parallel()
	d := shared(t)
	for _, mode := range []string{"''", "'" + hardModes(t) + "'"} {
		c := d.config()
		c.Params = map[string]string{"sql_mode": mode}
		s := d.wrap(t, c)
		last := int64(0)
		for range 3 {
			claim, g := take(t, s, claimOf("k", "a"), time.Minute, false)
			_, again := take(t, s, claim, time.Minute, false)
			var counter, token int64
			if err := d.plain.QueryRow("SELECT last, token FROM baton_lock WHERE k='k'").Scan(&counter, &token); err != nil {
				t.Fatal(err)
			}
			if g.Token <= last || again.Token != g.Token || token != g.Token || counter < token {
				t.Errorf("sql_mode %s: tokens %d and %d after %d, in the row %d, counter %d", mode, g.Token, again.Token, last, token, counter)
			}
			last = g.Token
			mustRelease(t, s, claim)
		}
	}
}

// Trap 10: the repeated acquire of a holder is answered with its token, not
// with the counter that waiters have raised.
func TestTokenIsNotTheCounter(t *testing.T) {
	t.Parallel()
	d := shared(t)
	s := d.open(t)
	h, first := take(t, s, claimOf("k", "h"), time.Minute, false)
	w, _ := take(t, s, claimOf("k", "w"), time.Minute, true)
	h.Ticket = 0
	again, err := s.Acquire(t.Context(), driver.Request{Claim: h, TTL: time.Minute, Retry: true})
	if err != nil || again.Token != first.Token {
		t.Fatalf("%+v, %v, want token %d again", again, err, first.Token)
	}
	mustRelease(t, s, h)
	r := renewOne(t, s, w, time.Minute)
	if r.State != driver.Held || r.Grant.Token <= again.Token {
		t.Errorf("%+v after token %d", r, again.Token)
	}
}

// A person deletes the row of a key and forgets its claims: the holders are told, and
// are not there again when the key is.
func TestDeletedRowWithClaimsLeft(t *testing.T) {
	t.Parallel()
	d := shared(t)
	for i, s := range []*Store{d.open(t), d.wrap(t, d.config())} {
		key := fmt.Sprint("k", i)
		reader := claimOf(key, "reader")
		reader.Weight = 1
		reader, g := take(t, s, reader, time.Minute, false)
		d.exec(t, "DELETE FROM baton_lock WHERE k=?", key)
		if r := renewOne(t, s, reader, time.Minute); r.State != driver.Lost {
			t.Errorf("the reader: %+v, want it lost", r)
		}
		h, next := take(t, s, claimOf(key, "h"), time.Minute, false)
		if next.Token <= g.Token {
			t.Errorf("token %d after %d", next.Token, g.Token)
		}
		w, _ := take(t, s, claimOf(key, "w"), time.Minute, true)
		if r := renewOne(t, s, reader, time.Minute); r.State != driver.Lost {
			t.Errorf("the reader: %+v, want it lost", r)
		}
		mustRelease(t, s, h)
		if r := renewOne(t, s, w, time.Minute); r.State != driver.Held {
			t.Errorf("the next: %+v, want it held", r)
		}
	}
}

// A key that is only bytes: nothing folds or trims it.
func TestKeysAreBytes(t *testing.T) {
	t.Parallel()
	d := shared(t)
	for _, s := range []*Store{d.open(t), d.wrap(t, d.config())} {
		var held []driver.Claim
		for _, key := range []string{"a", "A", "a ", "á", "a\u0301", "'", `\`, `"`, ";", "%", "a?", strings.Repeat("é", 256)} {
			c, _ := take(t, s, claimOf(key, "o'wner\\"), time.Minute, false)
			held = append(held, c)
			if info, err := s.Inspect(t.Context(), key); err != nil || info.Key != key || len(info.Holders) != 1 || info.Holders[0].Owner != c.Owner {
				t.Errorf("%q: %+v, %v", key, info, err)
			}
			if _, err := s.Acquire(t.Context(), driver.Request{Claim: claimOf(key, "b"), TTL: time.Minute}); !errors.Is(err, driver.ErrHeld) {
				t.Errorf("%q: %v, want it held", key, err)
			}
		}
		for _, c := range held {
			mustRelease(t, s, c)
		}
	}
}
