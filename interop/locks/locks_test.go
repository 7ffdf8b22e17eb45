// Package locks lets the locks and limits of other libraries, and etcdctl, compete with Baton's
// on the same servers, and shows what the pages of docs/coming-from say of them.
package locks

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/open"
)

func TestMain(m *testing.M) {
	if whose := os.Getenv(workerEnv); whose != "" {
		if err := workerMain(whose, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, whose+":", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// newLocker opens a store for one test.
func newLocker(t *testing.T, url string, config baton.Config) *baton.Locker {
	t.Helper()
	store, err := open.Store(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	locks, err := baton.New(store, config)
	if err != nil {
		t.Fatal(err)
	}
	return locks
}

// onRedis returns a client of the Redis that the tests share, and its URL.
func onRedis(t *testing.T) (client *redis.Client, url string) {
	t.Helper()
	addr := testserver.SharedRedis(t).Addr
	client = redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { client.Close() })
	return client, "redis://" + addr
}

// awaitWaiters returns once the store has n waiters in the queue of key.
func awaitWaiters(t *testing.T, locks *baton.Locker, key string, n int) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		info, err := locks.Inspect(t.Context(), key)
		if err == nil && len(info.Waiters) == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d waiters (%v), want %d", len(info.Waiters), err, n)
		}
	}
}

// An arena is the critical section of goroutines.
type arena struct {
	inside atomic.Int64 // the number of the goroutine in the section
	total  atomic.Int64 // counted up by a read and a write, which a lock must keep together
	broken atomic.Int64
}

// run is the work of one goroutine with the lock, whose number is not 0.
func (a *arena) run(me int64) {
	if !a.inside.CompareAndSwap(0, me) {
		a.broken.Add(1)
	}
	n := a.total.Load()
	pause(time.Millisecond)
	a.total.Store(n + 1)
	if !a.inside.CompareAndSwap(me, 0) {
		a.broken.Add(1)
	}
}

// check fails the test if the lock did not do its job in so many runs.
func (a *arena) check(t *testing.T, runs int64) {
	t.Helper()
	if n := a.broken.Load(); n > 0 {
		t.Errorf("two were in the section at once, %d times", n)
	}
	if n := a.total.Load(); n != runs {
		t.Errorf("%d runs counted to %d", runs, n)
	}
}

// pause stands for work.
func pause(d time.Duration) { <-time.After(d) }

// A section is the critical section of processes: it adds one to the number in a file, and
// notices another process that is there already.
type section struct{ dir string }

func (s section) path(name string) string { return filepath.Join(s.dir, name) }

func (s section) run() error {
	inside := os.Mkdir(s.path("inside"), 0o700)
	if inside != nil {
		inside = fmt.Errorf("another process is inside: %w", inside)
	}
	n, err := s.count()
	return errors.Join(inside, err, os.WriteFile(s.path("counter"), []byte(strconv.Itoa(n+1)), 0o600), os.Remove(s.path("inside")))
}

// shell is the same for a shell.
func (s section) shell() string {
	return fmt.Sprintf(`cd '%s'; mkdir inside || echo overlap >>overlaps; n=$(cat counter || echo 0); echo $((n+1)) >counter; rmdir inside || echo overlap >>overlaps`, s.dir)
}

func (s section) count() (int, error) {
	text, err := os.ReadFile(s.path("counter"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}
