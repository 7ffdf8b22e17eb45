package pagetest

import (
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/open"
	"github.com/batonhq/baton/store/memstore"
)

// The page shows a store's change within a second, and this process's own actions at once: with few
// locks and with many, on stores of each kind.
func TestSeenWithinASecond(t *testing.T) {
	for _, of := range []struct {
		name  string
		store func(t *testing.T) (here, there driver.Store)
	}{
		{"memory", func(t *testing.T) (here, there driver.Store) {
			store := memstore.New()
			return store, store
		}},
		{"sqlite", func(t *testing.T) (here, there driver.Store) {
			url := "sqlite:" + filepath.Join(t.TempDir(), "db")
			return openStore(t, url), openStore(t, url)
		}},
		{"redis", func(t *testing.T) (here, there driver.Store) {
			url := "redis://" + testserver.Redis(t).Addr
			return openStore(t, url), openStore(t, url)
		}},
	} {
		t.Run(of.name, func(t *testing.T) {
			testserver.Chromium(t)
			here, there := of.store(t)
			s := serve(t, here, there, nil)
			tb := browse(t, s.url, options{})
			n := 0
			for _, size := range []int{3, 300, 10_000} {
				hold(t, here, n, size)
				n = size
				tb.until(fmt.Sprintf(`document.querySelector("#tabs .n").innerText === %q`, thousands(size)))
				seenWithin(t, tb, s, size)
			}
		})
	}
}

func openStore(t *testing.T, url string) driver.Store {
	t.Helper()
	store, err := open.Store(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}

func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d,%03d", n/1000, n%1000)
}

// hold takes the locks with the numbers from up to, but without, to.
func hold(t *testing.T, store driver.Locks, from, to int) {
	t.Helper()
	numbers := make(chan int)
	var workers sync.WaitGroup
	for range 16 {
		workers.Go(func() {
			for i := range numbers {
				r := driver.Request{Claim: driver.Claim{Key: fmt.Sprintf("lock/%05d", i), ID: driver.NewID(), Owner: "crowd", Weight: driver.Whole, Capacity: driver.Whole}, TTL: time.Hour}
				if _, err := store.Acquire(t.Context(), r); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := from; i < to; i++ {
		numbers <- i
	}
	close(numbers)
	workers.Wait()
}

// shownToken is the token of a key's holder in the store's answer. Not every store has it.
func shownToken(t *testing.T, s *site, key string) string {
	t.Helper()
	info, err := s.others.Inspect(t.Context(), key)
	if err != nil || len(info.Holders) != 1 {
		t.Fatalf("%d holders, %v", len(info.Holders), err)
	}
	if info.Holders[0].Token == 0 {
		return "–"
	}
	return fmt.Sprint(info.Holders[0].Token)
}

// seenWithin changes locks, and measures how long after that the page shows it. Half of the attempts must
// be within a second: the others may wait for the processors, which tests share.
func seenWithin(t *testing.T, tb *tab, s *site, size int) {
	t.Helper()
	took := map[string][]time.Duration{}
	see := func(what, expression string) {
		t.Helper()
		began := time.Now()
		tb.until(expression)
		took[what] = append(took[what], time.Since(began).Round(time.Millisecond))
	}
	for i := range 3 {
		key := fmt.Sprintf("lock/%05d", i)
		if _, err := s.others.Break(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		lease := lock(t, s.others, key)
		see("another process takes a lock on the screen", hasRow(key, "theirs:2", shownToken(t, s, key)))
		_ = lease.Unlock()
		hold(t, s.store, i, i+1)
		see("and releases it", hasRow(key, "crowd"))
	}
	for range 3 {
		lease := lock(t, s.locks, "aaa")
		see("this process takes a lock that was not on the screen", hasRow("aaa", "ours:1", shownToken(t, s, "aaa")))
		_ = lease.Unlock()
		see("and releases it, too", "!("+hasRow("aaa")+")")
	}
	// That another process takes a free lock is seen when the list is read next. For a long list
	// that may be much later, which the page says.
	for range 3 {
		if size > 300 {
			break
		}
		lease := lock(t, s.others, "aab")
		tb.until(hasRow("aab", "theirs:2"))
		_ = lease.Unlock()
		see("another process releases a lock on the screen", "!("+hasRow("aab")+")")
	}
	for what, all := range took {
		slices.Sort(all)
		t.Logf("%d locks: %s: seen after %v", size, what, all)
		if all[len(all)/2] > time.Second {
			t.Errorf("%d locks: %s: seen after %v, want a second", size, what, all)
		}
	}
}
