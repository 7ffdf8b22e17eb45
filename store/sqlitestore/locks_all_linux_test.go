package sqlitestore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/sqlstore"
	"github.com/batonhq/baton/internal/testserver"
)

func requests(ttl time.Duration, keys ...string) (all []driver.Request) {
	for _, key := range keys {
		c := driver.Claim{Key: key, ID: driver.NewID(), Owner: "test", Weight: driver.Whole, Capacity: driver.Whole}
		all = append(all, driver.Request{Claim: c, TTL: ttl})
	}
	return all
}

func takeAll(t *testing.T, s *Store, all ...driver.Request) (claims []driver.Claim) {
	t.Helper()
	grants, err := s.AcquireAll(t.Context(), all)
	if err != nil {
		t.Fatalf("acquire several: %v", err)
	}
	for i, r := range all {
		r.Ticket = grants[i].Ticket
		claims = append(claims, r.Claim)
	}
	return claims
}

// allRows counts the rows of locks and claims.
const allRows = "SELECT (SELECT count(*) FROM baton_lock) + (SELECT count(*) FROM baton_claim)"

// The most keys that may be asked for cost one commit, new or known. A refusal leaves
// no row that was not there before, and no ticket drawn.
func TestTogetherIsOneCommit(t *testing.T) {
	t.Parallel()
	s := openNew(t)
	commits := func() (n int) {
		s.do(t.Context(), func(*tx) error { // not counted yet
			n, s.sweeper.commits = s.sweeper.commits, 0
			return nil
		})
		return n
	}
	var keys []string
	for i := range check.MaxTogether {
		keys = append(keys, fmt.Sprint("k", i))
	}
	blocker := writer(t, s, "k40")
	token := blocker.hold(time.Minute)
	before := rows(t, s, allRows)
	_, err := s.AcquireAll(t.Context(), requests(time.Minute, keys...))
	if held, ok := errors.AsType[*driver.HeldError](err); !ok || held.Key != "k40" || held.Remaining <= 0 {
		t.Errorf("%v, want a *driver.HeldError that names k40", err)
	}
	var last int64
	if err := s.readers.QueryRow("SELECT last FROM baton_lock").Scan(&last); err != nil || last != token || rows(t, s, allRows) != before {
		t.Errorf("after a refusal there are %d rows, and the last ticket is %d of %d, %v", rows(t, s, allRows), last, token, err)
	}
	blocker.release()
	for _, state := range []string{"new", "known"} {
		commits()
		claims := takeAll(t, s, requests(time.Minute, keys...)...)
		if n := commits(); n != 2 { // and that of the question before
			t.Errorf("%s: %d commits, want 1", state, n-1)
		}
		for _, c := range claims {
			if err := s.Release(t.Context(), c); err != nil {
				t.Error(err)
			}
		}
	}
}

// setOf are the keys of a set that a child takes.
func setOf(i int) (keys []string) {
	for n := range 8 {
		keys = append(keys, fmt.Sprintf("set %d/%d", i, n))
	}
	return keys
}

// childTogether takes ever new sets of keys at once, and says which it has. With
// SQLITESTORE_STUCK it stays in the middle of the first.
func childTogether() {
	s := childStore()
	if os.Getenv("SQLITESTORE_STUCK") != "" {
		s.do(context.Background(), func(tx *tx) error {
			_, refused, err := sqlstore.AcquireAll(tx, requests(time.Hour, setOf(0)...), &tx.fx)
			if refused != nil || err != nil {
				panic("acquire several")
			}
			fmt.Println("stuck")
			select {}
		})
	}
	for i := 0; ; i++ {
		if _, err := s.AcquireAll(context.Background(), requests(time.Hour, setOf(i)...)); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		fmt.Println(i)
	}
}

// A process is killed when it has written all rows and not committed, or at any
// time. Nothing is there then, or all; and all if it was told so.
func TestTogetherKilledInTheMiddle(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	s := openAt(t, path)
	stuck := child(t, "together", path, "SQLITESTORE_STUCK=1")
	out, err := stuck.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := stuck.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("%q, %v", line, err)
	}
	stuck.Process.Kill()
	stuck.Wait()
	if n := rows(t, s, allRows); n != 0 {
		t.Errorf("%d rows are left", n)
	}
	for _, c := range takeAll(t, s, requests(time.Minute, setOf(0)...)...) {
		if err := s.Release(t.Context(), c); err != nil {
			t.Error(err)
		}
	}

	for round := range 5 {
		path := filepath.Join(t.TempDir(), "locks.db")
		s := openAt(t, path)
		busy := child(t, "together", path)
		out, err := busy.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := busy.Start(); err != nil {
			t.Fatal(err)
		}
		told := -1
		lines := bufio.NewScanner(out)
		for killAt := rand.IntN(30); lines.Scan(); {
			if told++; told == killAt {
				busy.Process.Kill()
			}
		}
		busy.Wait()
		for i := range told + 3 {
			held := 0
			for _, key := range setOf(i) {
				info, err := s.Inspect(t.Context(), key)
				if err != nil {
					t.Fatal(err)
				}
				held += len(info.Holders)
			}
			if held != 0 && held != 8 || i <= told && held != 8 {
				t.Errorf("round %d, killed after %d: %d of 8 locks of set %d are held", round, told, held, i)
			}
		}
		sound(t, s)
	}
}

// Sixty-four clients of four processes want sets of keys that overlap, in any order, or
// one of them alone, and renew many at once. No two claims hold at once that must not,
// and no caller has a part of what it asked for.
func TestTogetherCrowd(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	const keys, clients = 24, 64
	path := filepath.Join(t.TempDir(), "locks.db")
	var stores []*Store
	for range 4 {
		stores = append(stores, openAt(t, path, func(o *options) { o.sweepAge, o.sweepGap = 0, 8 }))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var inside [keys]atomic.Int64
	var several, refused atomic.Int64
	end := time.Now().Add(time.Second)
	work := func(s *Store, random *rand.Rand) error {
		at := random.Perm(keys)[:1+random.IntN(4)]
		var all []driver.Request
		for _, n := range at {
			all = append(all, requests(2*time.Minute, fmt.Sprint("k", n))...)
		}
		grants, err := s.AcquireAll(ctx, all)
		if errors.Is(err, driver.ErrHeld) {
			refused.Add(1)
			for n := 0; n < len(all) && random.IntN(8) == 0; n++ {
				if err := s.Release(ctx, all[n].Claim); !errors.Is(err, driver.ErrLost) {
					return fmt.Errorf("a part was left after a refusal: release: %v", err)
				}
			}
			return nil
		}
		if err != nil {
			return err
		}
		several.Add(1)
		var claims []driver.Claim
		for i, n := range at {
			all[i].Ticket = grants[i].Ticket
			claims = append(claims, all[i].Claim)
			if inside[n].Add(1) > 1 {
				t.Errorf("k%d has two holders", n)
			}
		}
		for i, r := range s.Renew(ctx, claims, 2*time.Minute) {
			if r.State != driver.Held {
				err = errors.Join(err, fmt.Errorf("a holder of %s is %v: %w", claims[i].Key, r.State, r.Err))
			}
		}
		for _, n := range at {
			inside[n].Add(-1)
		}
		for _, c := range claims {
			err = errors.Join(err, s.Release(ctx, c))
		}
		return err
	}
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 13))
			for n := 0; (n == 0 || time.Now().Before(end)) && !t.Failed(); n++ {
				if err := work(stores[i%len(stores)], random); err != nil {
					t.Errorf("client %d: %v", i, err)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d times several were granted, %d times refused", several.Load(), refused.Load())
	if several.Load() == 0 {
		t.Error("no client was granted several")
	}
	sound(t, stores[0])
}
