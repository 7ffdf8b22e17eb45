package page

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/store/memstore"
)

// slow is a store in memory that takes its time, and counts what it is asked.
type slow struct {
	*memstore.Store
	list, inspect time.Duration

	mu                sync.Mutex
	lists, inspected  int
	busy              time.Duration // with lists
	atOnce, mostLists int
	fail              error
}

func (s *slow) List(ctx context.Context, prefix string) iter.Seq2[driver.KeyInfo, error] {
	return func(yield func(driver.KeyInfo, error) bool) {
		s.mu.Lock()
		s.lists++
		s.atOnce++
		s.mostLists = max(s.mostLists, s.atOnce)
		fail, list := s.fail, s.list
		s.mu.Unlock()
		began := time.Now()
		defer func() {
			s.mu.Lock()
			s.busy += time.Since(began)
			s.atOnce--
			s.mu.Unlock()
		}()
		select {
		case <-time.After(list):
		case <-ctx.Done():
			yield(driver.KeyInfo{}, ctx.Err())
			return
		}
		if fail != nil {
			yield(driver.KeyInfo{}, fail)
			return
		}
		for info, err := range s.Store.List(ctx, prefix) {
			if !yield(info, err) {
				return
			}
		}
	}
}

func (s *slow) Inspect(ctx context.Context, key string) (driver.KeyInfo, error) {
	s.mu.Lock()
	s.inspected++
	s.mu.Unlock()
	time.Sleep(s.inspect)
	return s.Store.Inspect(ctx, key)
}

func (s *slow) counts() (lists, inspected int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lists, s.inspected
}

// The store is asked only while there are viewers.
func TestNobodyLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slow{Store: memstore.New(), list: 10 * time.Millisecond, inspect: time.Millisecond}
		s := newSite(t, store, nil)
		lease := mustLock(t, s.locks, "k")
		time.Sleep(time.Hour)
		if lists, inspected := store.counts(); lists+inspected > 0 {
			t.Fatalf("%d lists and %d inspections before anybody looked", lists, inspected)
		}
		b := s.open(t, look{Kind: kindLocks})
		b.until("the lock", func(s shot) bool { _, ok := s.row("k"); return ok })
		time.Sleep(10 * time.Second)
		lists, inspected := store.counts()
		if lists < 5 || inspected < 5 {
			t.Errorf("%d lists and %d inspections in 10 s", lists, inspected)
		}
		b.close()
		time.Sleep(linger + time.Second)
		lists, inspected = store.counts()
		_ = lease.Unlock()
		time.Sleep(time.Hour)
		if l, i := store.counts(); l != lists || i != inspected {
			t.Errorf("%d lists and %d inspections after all had gone", l-lists, i-inspected)
		}
	})
}

// With any number of viewers and lists, lists are read for a tenth of the time at most,
// one at a time.
func TestTenthOfTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slow{Store: memstore.New(), list: 400 * time.Millisecond}
		s := newSite(t, store, nil)
		began := time.Now()
		for i := range 10 {
			b := s.open(t, look{Kind: kindLocks, Prefix: fmt.Sprint(i % 4)})
			go func() {
				for {
					select {
					case <-b.frames:
					case <-t.Context().Done():
						return
					}
				}
			}()
		}
		time.Sleep(5 * time.Minute)
		// One that comes and goes does not cost more.
		for range 300 {
			b := s.open(t, look{Kind: kindLocks, Prefix: "x"})
			time.Sleep(time.Second)
			b.close()
		}
		store.mu.Lock()
		defer store.mu.Unlock()
		took := time.Since(began)
		if share := float64(store.busy) / float64(took); share > 0.101 || share < 0.09 {
			t.Errorf("lists were read for %.3f of the time", share)
		}
		if store.mostLists != 1 {
			t.Errorf("%d lists were read at a time", store.mostLists)
		}
	})
}

// A change by another process to a lock on the screen is seen within a second, even if the
// list takes long; a change by this process is seen at once.
func TestChangesAreSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slow{Store: memstore.New(), inspect: 300 * time.Microsecond}
		s := newSite(t, store, nil)
		for i := range 80 {
			mustLock(t, s.others, fmt.Sprintf("k/%02d", i))
		}
		lease := mustLock(t, s.others, "a")
		b := s.open(t, look{Kind: kindLocks})
		b.until("the first page", func(s shot) bool { return len(s.Keys) == pageRows && s.List.Total == 81 })
		store.mu.Lock()
		store.list = 2 * time.Second // from now on
		store.mu.Unlock()
		b.until("a slow list", func(s shot) bool { return s.List.Took >= 2000 })

		for range 5 {
			began := time.Now()
			_ = lease.Unlock()
			b.until("the lock is free", func(s shot) bool { _, ok := s.row("a"); return !ok })
			if d := time.Since(began); d > time.Second {
				t.Errorf("the release was seen after %v", d)
			}
			// It is not on the screen now. This process has it, which is seen at once.
			began = time.Now()
			own := mustLock(t, s.locks, "a")
			b.until("the own lock", func(s shot) bool { r, ok := s.row("a"); return ok && r.Owner == "here" })
			if d := time.Since(began); d > 250*time.Millisecond {
				t.Errorf("the own lock was seen after %v", d)
			}
			if r, _ := b.now.row("a"); r.Token != token(own.Token()) {
				t.Errorf("token %s, want %d", r.Token, own.Token())
			}
			began = time.Now()
			_ = own.Unlock()
			lease = mustLock(t, s.others, "a")
			b.until("the other process", func(s shot) bool { r, ok := s.row("a"); return ok && r.Owner == "there" })
			if d := time.Since(began); d > time.Second {
				t.Errorf("the other process was seen after %v", d)
			}
		}
	})
}

// A row that has not changed is not sent again, although its times go on.
func TestOnlyChangesAreSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := inMemory(t, nil)
		for i := range 40 {
			if _, err := s.store.Acquire(t.Context(), driver.Request{Claim: driver.Claim{Key: fmt.Sprint("k", i), ID: driver.NewID(), Weight: driver.Whole, Capacity: driver.Whole, Owner: "o"}, TTL: time.Hour}); err != nil {
				t.Fatal(err)
			}
		}
		b := s.open(t, look{Kind: kindLocks})
		b.until("all", func(s shot) bool { return len(s.Keys) == 40 })
		rows := 0
		began := time.Now()
		for time.Since(began) < time.Minute {
			b.next()
			rows += len(b.now.Rows)
		}
		if rows != 0 {
			t.Errorf("%d rows were sent again within a minute", rows)
		}
		if _, err := s.others.Break(t.Context(), "k7"); err != nil {
			t.Fatal(err)
		}
		mustLock(t, s.others, "k7")
		b.until("the change", func(s shot) bool { r, _ := s.row("k7"); return r.Owner == "there" })
		if len(b.now.Rows) != 1 {
			t.Errorf("%d rows were sent for one change", len(b.now.Rows))
		}
	})
}

func TestOrdersAndPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := inMemory(t, nil)
		for i := range 120 {
			mustLock(t, s.others, fmt.Sprintf("k/%03d", i))
			time.Sleep(time.Second)
		}
		for _, key := range []string{"k/077", "k/055", "k/077"} { // each of another process
			l, err := baton.New(s.store, baton.Config{})
			if err != nil {
				t.Fatal(err)
			}
			go func() { _, _ = l.Lock(t.Context(), key) }()
		}
		synctest.Wait() // they wait
		first := func(l look) []string {
			b := s.open(t, l)
			defer b.close()
			b.until("the list", func(s shot) bool { return s.List.Read && s.List.Total > 0 })
			return b.now.Keys
		}
		if got := first(look{Kind: kindLocks}); len(got) != pageRows || got[0] != "k/000" || got[49] != "k/049" {
			t.Errorf("by key: %v", got)
		}
		if got := first(look{Kind: kindLocks, From: 100}); len(got) != 20 || got[0] != "k/100" {
			t.Errorf("the last page: %v", got)
		}
		if got := first(look{Kind: kindLocks, From: 100_000}); len(got) != 20 || got[0] != "k/100" {
			t.Errorf("behind the last page: %v", got)
		}
		if got := first(look{Kind: kindLocks, Order: "waiting"}); !slices.Equal(got[:2], []string{"k/077", "k/055"}) {
			t.Errorf("by waiters: %v", got[:2])
		}
		if got := first(look{Kind: kindLocks, Order: "oldest", Prefix: "k/1"}); len(got) != 20 || got[0] != "k/100" || got[19] != "k/119" {
			t.Errorf("the oldest with a prefix: %v", got)
		}
	})
}

func TestLimitsAndRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := inMemory(t, nil)
		counts, _ := driver.As[limits.Store](s.store)
		limiter, err := ratelimit.New(counts, ratelimit.TokenBucket(10, time.Hour, 10), ratelimit.Observe(s.recent.Events().Limits))
		if err != nil {
			t.Fatal(err)
		}
		for range 12 {
			if _, err := limiter.Allow(t.Context(), "busy"); err != nil {
				t.Fatal(err)
			}
		}
		b := s.open(t, look{Kind: kindLimits, Order: "used"})
		b.until("the limit", func(s shot) bool { r, _ := s.row("busy"); return r.Used == 10 && r.Of == 10 })
		if h := b.now.Hot; len(h) != 1 || h[0].Key != "busy" || h[0].N != 12 || h[0].Refused != 2 {
			t.Errorf("hottest: %+v", h)
		}

		b = s.open(t, look{Kind: kindOnce})
		if _, err := s.page.cfg.Once.Do(t.Context(), "pay/7", func(context.Context, once.Attempt) ([]byte, error) { return []byte("x"), nil }); err != nil {
			t.Fatal(err)
		}
		b.until("the record", func(s shot) bool { r, _ := s.row("pay/7"); return r.State == "done" && r.Attempts == 1 })
		b.until("its events", func(s shot) bool { return s.happened("began", "pay/7") && s.happened("finished", "pay/7") })
	})
}

// An error of the store is shown, and the rows stay.
func TestStoreFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slow{Store: memstore.New()}
		s := newSite(t, store, nil)
		mustLock(t, s.others, "k")
		b := s.open(t, look{Kind: kindLocks})
		b.until("the lock", func(s shot) bool { _, ok := s.row("k"); return ok })
		store.mu.Lock()
		store.fail = fmt.Errorf("bad \x1b[31mnews: %w", driver.ErrUnavailable)
		store.mu.Unlock()
		b.until("the failure", func(s shot) bool { return s.Failed != "" })
		if _, ok := b.now.row("k"); !ok {
			t.Error("the lock is not shown any more")
		}
		if want := driver.Printable(b.now.Failed); b.now.Failed != want {
			t.Errorf("the error is not quoted: %q", b.now.Failed)
		}
		store.mu.Lock()
		store.fail = nil
		store.mu.Unlock()
		b.until("the end of it", func(s shot) bool { return s.Failed == "" })
	})
}

// Usual events do not push out others, and events are in order.
func TestEventsAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := inMemory(t, nil)
		lost := mustLock(t, s.locks, "lost")
		if _, err := s.others.Break(t.Context(), "lost"); err != nil {
			t.Fatal(err)
		}
		<-lost.Done()
		for range 1000 {
			if err := mustLock(t, s.locks, "k").Unlock(); err != nil {
				t.Fatal(err)
			}
		}
		got, last := s.recent.since(0, 10_000, func(string) bool { return true })
		if len(got) != maxUsual+1 || got[0].What != "lost" || !got[0].Trouble || got[0].Error == "" {
			t.Fatalf("%d events, the first %+v", len(got), got[0])
		}
		if !slices.IsSortedFunc(got, func(a, b event) int { return int(a.Seq - b.Seq) }) || got[len(got)-1].Seq != last {
			t.Error("the events are not in order")
		}
		if more, _ := s.recent.since(last, 10, func(string) bool { return true }); len(more) != 0 {
			t.Errorf("%d events after the last", len(more))
		}
		if _, err := s.others.TryLock(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
		if _, err := s.locks.TryLock(t.Context(), "x"); !errors.Is(err, baton.ErrHeld) {
			t.Fatal(err)
		}
		got, _ = s.recent.since(last, 10, func(string) bool { return true })
		if len(got) != 1 || got[0].What != "failed" || got[0].Trouble {
			t.Errorf("a lock that is held: %+v", got)
		}
	})
}
