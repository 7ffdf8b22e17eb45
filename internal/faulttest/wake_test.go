//go:build linux

package faulttest

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
)

// crowdSize is how many waiters one key has. BATON_WAITERS=10000 makes more of them.
func crowdSize() int { return fromEnv("BATON_WAITERS", 500) }

// fromEnv is how much of a test there is: the number in an environment variable,
// or the usual one.
func fromEnv(name string, usual int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return usual
}

// oneByOne runs f on each store while nothing else happens in this process.
func oneByOne(t *testing.T, f func(t *testing.T, url string)) {
	for _, name := range slices.Sorted(maps.Keys(stores)) {
		t.Run(name, func(t *testing.T) {
			mostlyLong(t, name)
			f(t, stores[name](t))
		})
	}
	t.Run("zookeeper", func(t *testing.T) {
		testserver.Long(t)
		f(t, fmt.Sprintf("zk://%s/wake?session=20s", testserver.ZooKeeper(t, "tickTime=1000").Addr))
	})
}

// traffic is how much this process has written until some moment, to any file.
type traffic struct{ calls, bytes int64 }

func trafficNow(t *testing.T) (now traffic) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/io")
	if err != nil {
		t.Skipf("it takes Linux: %v", err)
	}
	for l := range strings.Lines(string(b)) {
		if n, ok := strings.CutPrefix(l, "syscw: "); ok {
			now.calls = number(t, strings.TrimSpace(n))
		} else if n, ok := strings.CutPrefix(l, "wchar: "); ok {
			now.bytes = number(t, strings.TrimSpace(n))
		}
	}
	if now.calls == 0 || now.bytes == 0 {
		t.Skip("the kernel does not count what is written")
	}
	return now
}

// since is how many requests may have been written after before. Go's runtime writes
// eight bytes to wake itself for a timer, and a crowd has many; a request has at
// least twenty.
func (now traffic) since(before traffic) float64 {
	calls, bytes := now.calls-before.calls, now.bytes-before.bytes
	return float64(min(calls, (bytes-8*calls)/(20-8)))
}

// idle is how many requests this process writes in a second when nothing happens, but
// for those that keep waiters alive.
func idle(t *testing.T) float64 {
	t.Helper()
	const long = 300 * time.Millisecond
	before, begun := trafficNow(t), time.Now()
	<-time.After(long) // time passing is what is looked at
	return trafficNow(t).since(before) / time.Since(begun).Seconds()
}

// A woke is what one release did.
type woke struct {
	waiting int
	woken   int     // of the waiters
	writes  float64 // more than are made by then anyway
	idle    float64 // writes per second while nothing happens
}

// fewer checks that what happens does not depend on how many waiters there are.
func fewer(t *testing.T, few, many woke) {
	t.Helper()
	t.Logf("%d wait: %d woken, %.0f writes, %.0f/s when idle; %d wait: %d woken, %.0f writes, %.0f/s when idle",
		few.waiting, few.woken, few.writes, few.idle, many.waiting, many.woken, many.writes, many.idle)
	if few.woken > 2 || many.woken > 2 {
		t.Errorf("a release woke %d of %d, and %d of %d", few.woken, few.waiting, many.woken, many.waiting)
	}
	if most := max(few.writes, 0) + 60; many.writes > most {
		t.Errorf("a release took %.0f writes with %d waiters, and %.0f with %d", few.writes, few.waiting, many.writes, many.waiting)
	}
	if many.idle > 2*few.idle+300 { // a store that polls does so once for all
		t.Errorf("%d waiters write %.0f times a second, and %d waiters %.0f", few.waiting, few.idle, many.waiting, many.idle)
	}
}

// A crowd of waiters in the store's queue, as if each were another program's: the
// release of the lock wakes the first and no other, and makes the same number of
// requests however many wait.
func TestReleaseWakesOnePlace(t *testing.T) {
	testserver.Long(t)
	oneByOne(t, func(t *testing.T, url string) {
		few, ok := wakePlaces(t, url, 50)
		if !ok {
			tooBusy(t, 50)
		}
		many, ok := wakePlaces(t, url, crowdSize())
		if !ok {
			tooBusy(t, crowdSize())
		}
		fewer(t, few, many)
	})
}

// tooBusy skips the test where that many waiters did not stay alive: the machine is to
// blame, or the store. It fails the test if the environment asks for a crowd of a
// certain size.
func tooBusy(t *testing.T, n int) {
	t.Helper()
	if os.Getenv("BATON_WAITERS") != "" {
		t.Fatalf("%d places cannot be kept alive", n)
	}
	t.Skipf("this machine is too busy to keep %d places alive", n)
}

// places are claims that wait for one key.
type places struct {
	store driver.Store
	ttl   time.Duration

	mu     sync.Mutex
	claims []driver.Claim
	woken  map[string]int // hints by ID
	news   chan string    // IDs that were woken
}

func (p *places) wake(id string) {
	p.mu.Lock()
	p.woken[id]++
	p.mu.Unlock()
	select {
	case p.news <- id:
	default: // more than one is too many anyway
	}
}

// confirm renews all claims that are in the queue by now and counts those that wait and
// those that hold. It forgets those that are lost, as a program would.
func (p *places) confirm(ctx context.Context) (waiting, held int) {
	p.mu.Lock()
	claims := slices.Clone(p.claims)
	p.mu.Unlock()
	// No program has more than one position in a queue, so no store is made for a call
	// with very many.
	const most = 100
	parts := make(chan []driver.Claim)
	var asking sync.WaitGroup
	var count struct {
		sync.Mutex
		waiting, held int
		lost          map[string]bool
	}
	count.lost = map[string]bool{}
	for range 16 {
		asking.Go(func() {
			for part := range parts {
				answers := p.store.Renew(ctx, part, p.ttl)
				count.Lock()
				for i, r := range answers {
					switch r.State {
					case driver.Waiting:
						count.waiting++
					case driver.Held:
						count.held++
					case driver.Lost:
						count.lost[part[i].ID] = true
					}
				}
				count.Unlock()
			}
		})
	}
	for part := range slices.Chunk(claims, most) {
		parts <- part
	}
	close(parts)
	asking.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.claims = slices.DeleteFunc(p.claims, func(c driver.Claim) bool { return count.lost[c.ID] })
	return count.waiting, count.held
}

// join adds n waiters to the queue. Those that are there are kept alive meanwhile.
func (p *places) join(t *testing.T, ctx context.Context, key string, n int) {
	t.Helper()
	w, ok := p.store.(driver.Watcher)
	if !ok {
		t.Fatal("the store gives no hints")
	}
	joined, stop := context.WithCancel(ctx)
	var keeper, joining sync.WaitGroup
	keeper.Go(func() {
		for joined.Err() == nil {
			p.confirm(ctx)
			select {
			case <-time.After(driver.RefreshEvery):
			case <-joined.Done():
			}
		}
	})
	var left atomic.Int64
	left.Store(int64(n))
	for range 32 {
		joining.Go(func() {
			for left.Add(-1) >= 0 {
				c := driver.Claim{Key: key, ID: driver.NewID(), Weight: driver.Whole, Capacity: driver.Whole}
				t.Cleanup(w.Watch(c, func(driver.Hint) { p.wake(c.ID) }))
				g, err := p.store.Acquire(ctx, driver.Request{Claim: c, TTL: p.ttl, Queue: true})
				if err != nil || !g.Waiting {
					continue // on a busy machine
				}
				c.Ticket = g.Ticket
				p.mu.Lock()
				p.claims = append(p.claims, c)
				p.mu.Unlock()
			}
		})
	}
	joining.Wait()
	stop()
	keeper.Wait()
}

// wakePlaces has n claims wait for a lock, releases it, and tells what that did. It
// reports false if they do not stay alive.
func wakePlaces(t *testing.T, url string, n int) (woke, bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	for range 3 {
		other, p := openStore(t, url), &places{store: openStore(t, url), woken: map[string]int{}, news: make(chan string, 100)}
		key := t.Name() + "/" + driver.NewID()
		p.ttl = within(p.store, 10*time.Second)
		holder := newHolder(t, ctx, other, key)
		p.join(t, ctx, key, n)
		waiting, _ := p.confirm(ctx)
		if waiting < n*9/10 {
			holder.end()
			t.Logf("%d of %d places stayed alive", waiting, n)
			continue
		}
		w := woke{waiting: waiting, idle: idle(t)}
		p.mu.Lock()
		clear(p.woken)
		p.mu.Unlock()
		for len(p.news) > 0 {
			<-p.news
		}
		checkpoint(t, url)
		before, begun := trafficNow(t), time.Now()
		holder.end()
		if !p.served(ctx) {
			continue // they have died meanwhile
		}
		w.writes = trafficNow(t).since(before) - w.idle*time.Since(begun).Seconds()
		_, held := p.confirm(ctx)
		if held > 1 {
			t.Errorf("a release served %d", held)
		}
		p.mu.Lock()
		w.woken = len(p.woken)
		p.mu.Unlock()
		return w, true
	}
	return woke{}, false
}

// checkpoint has SQLite copy what the crowd has written into its file. The next commit
// would do so otherwise, and count as part of the release.
func checkpoint(t *testing.T, url string) {
	t.Helper()
	path, ok := strings.CutPrefix(url, "sqlite:")
	if !ok {
		return
	}
	db, err := sql.Open("sqlite", "file:"+path+"?_busy_timeout=5000")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var busy, pages, copied int
	if err := db.QueryRow("PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &pages, &copied); err != nil || busy != 0 {
		t.Fatalf("busy %d, %d of %d pages, %v", busy, copied, pages, err)
	}
}

// served returns once a waiter that was woken holds the lock.
func (p *places) served(ctx context.Context) bool {
	end := time.After(5 * time.Second)
	for {
		select {
		case id := <-p.news:
			p.mu.Lock()
			i := slices.IndexFunc(p.claims, func(c driver.Claim) bool { return c.ID == id })
			p.mu.Unlock()
			if i >= 0 && p.store.Renew(ctx, p.claims[i:i+1], p.ttl)[0].State == driver.Held {
				return true
			}
		case <-end:
			return false
		}
	}
}

// within is ttl, or the longest that the store accepts.
func within(store driver.Store, ttl time.Duration) time.Duration {
	if most := store.Traits().MaxTTL; most > 0 {
		ttl = min(ttl, most)
	}
	return ttl
}

// A holder holds a lock, renewed, until its end.
type holder struct {
	lease *baton.Lease
	t     *testing.T
}

func newHolder(t *testing.T, ctx context.Context, store driver.Store, key string) *holder {
	t.Helper()
	locks, err := baton.New(store, baton.Config{TTL: within(store, 10*time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	lease, err := locks.Lock(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	return &holder{lease, t}
}

func (h *holder) end() {
	if err := h.lease.Unlock(); err != nil {
		h.t.Log(err) // lost on a busy machine
	}
}

// A crowd of goroutines of one program: the release of the lock serves one, makes the
// same number of requests however many wait, and so does waiting.
func TestReleaseWakesOneGoroutine(t *testing.T) {
	oneByOne(t, func(t *testing.T, url string) {
		fewer(t, wakeGoroutines(t, url, 50), wakeGoroutines(t, url, crowdSize()))
	})
}

func wakeGoroutines(t *testing.T, url string, n int) woke {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	other, store := openStore(t, url), openStore(t, url)
	locks, err := baton.New(store, baton.Config{TTL: within(store, 10*time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	key := t.Name() + "/" + driver.NewID()
	holder := newHolder(t, ctx, other, key)
	served := make(chan *baton.Lease, n)
	var crowd sync.WaitGroup
	for range n {
		crowd.Go(func() {
			if lease, err := locks.Lock(ctx, key); err == nil {
				served <- lease
			}
		})
	}
	awaitWaiters(t, locks, key, 1)
	if info, err := locks.Inspect(ctx, key); err != nil || len(info.Waiters) > 1 {
		t.Errorf("%d waiters in the store, error %v", len(info.Waiters), err)
	}
	for end := time.Now().Add(time.Minute); runtime.NumGoroutine() < n; time.Sleep(time.Millisecond) { // they start without an event
		if time.Now().After(end) {
			t.Fatalf("only %d goroutines wait", runtime.NumGoroutine())
		}
	}
	w := woke{waiting: n, idle: idle(t)}
	before, begun := trafficNow(t), time.Now()
	holder.end()
	first := <-served
	w.writes = trafficNow(t).since(before) - w.idle*time.Since(begun).Seconds()
	w.woken = 1 + len(served)
	cancel() // all others give up
	crowd.Wait()
	if err := first.Unlock(); err != nil {
		t.Log(err) // lost on a busy machine
	}
	return w
}
