package lockfeed

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/driver"
)

var errAway = errors.New("the store is away")

// listing is a store whose locks a test sets.
type listing struct {
	mu    sync.Mutex
	keys  []driver.KeyInfo
	err   error
	takes time.Duration
	asked atomic.Int64
}

func (l *listing) set(err error, keys ...driver.KeyInfo) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keys, l.err = keys, err
}

func (l *listing) list(_ context.Context, prefix string) iter.Seq2[driver.KeyInfo, error] {
	return func(yield func(driver.KeyInfo, error) bool) {
		l.asked.Add(1)
		l.mu.Lock()
		keys, err := l.keys, l.err
		l.mu.Unlock()
		time.Sleep(l.takes) // of the store, in fake time
		if err != nil {
			yield(driver.KeyInfo{}, err)
			return
		}
		for _, k := range keys {
			if strings.HasPrefix(k.Key, prefix) && !yield(k, nil) {
				return
			}
		}
	}
}

func nothing([]Event) error { return nil }

func held(key, grant string, waiters ...string) driver.KeyInfo {
	k := driver.KeyInfo{Key: key}
	if grant != "" {
		k.Holders = []driver.HolderInfo{{Owner: "o" + grant, Grant: grant, Token: 1, Weight: driver.Whole, Capacity: driver.Whole}}
	}
	for _, w := range waiters {
		k.Waiters = append(k.Waiters, driver.WaiterInfo{Owner: w})
	}
	return k
}

// A feed tells the state at its beginning, each change, that the store is silent, and what
// changed meanwhile. Then it ends.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &listing{keys: []driver.KeyInfo{held("a", "1", "w"), held("b", "2")}}
		ctx, cancel := context.WithCancel(t.Context())
		told := make(chan string, 100)
		ended := make(chan error, 1)
		last := int64(0)
		go func() {
			ended <- New(store.list).Follow(ctx, "", func(all []Event) error {
				for _, e := range all {
					if e.ID <= last {
						t.Errorf("%d after %d", e.ID, last)
					}
					last = e.ID
					text := e.What + " " + e.Key + " " + e.Owner
					if e.Waiting != nil {
						text += fmt.Sprint(*e.Waiting) + fmt.Sprint(e.Owners)
					}
					told <- text
				}
				return nil
			})
		}()
		next := func(want ...string) {
			t.Helper()
			time.Sleep(time.Second)
			synctest.Wait()
			for _, w := range want {
				select {
				case got := <-told:
					if strings.TrimSpace(got) != w {
						t.Errorf("got %q, want %q", got, w)
					}
				default:
					t.Errorf("nothing, want %q", w)
				}
			}
			if len(told) > 0 {
				t.Errorf("beside %q there is %q", want, <-told)
			}
		}
		next("got a o1", "waits a 1[w]", "got b o2", "ready")
		next()
		store.set(nil, held("a", "3"), held("c\xff", "4"))
		next("ended a o1", "got a o3", "waits a 0[]", "ended b o2", "got c� o4")
		store.set(errAway)
		next("unknown")
		store.set(nil, held("a", "3"))
		next("ended c� o4", "ready")
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := New((&listing{err: errAway}).list).Follow(t.Context(), "", nothing); !errors.Is(err, errAway) {
			t.Errorf("the first look: %v", err)
		}
		many := &listing{}
		for i := range MaxKeys + 1 {
			many.keys = append(many.keys, held(fmt.Sprint(i), "1"))
		}
		if err := New(many.list).Follow(t.Context(), "", nothing); !errors.As(err, new(*TooManyError)) {
			t.Errorf("too many: %v", err)
		}
		if err := New(store.list).Follow(t.Context(), "", func([]Event) error { return errAway }); !errors.Is(err, errAway) {
			t.Errorf("tell's error: %v", err)
		}
	})
}

// The readers of one prefix share the looks. Each gets the state after it came, and the
// looks end with the last reader.
func TestReadersShareLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &listing{}
		feeds := New(store.list)
		follow := func() (told chan string, leave func()) {
			ctx, cancel := context.WithCancel(t.Context())
			told = make(chan string, 100)
			ended := make(chan error, 1)
			go func() {
				ended <- feeds.Follow(ctx, "", func(all []Event) error {
					for _, e := range all {
						told <- e.What + e.Key
					}
					return nil
				})
			}()
			return told, func() {
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}
		}
		var leave []func()
		for range 10 {
			told, end := follow()
			leave = append(leave, end)
			if got := <-told; got != Ready {
				t.Errorf("got %s", got)
			}
		}
		store.set(nil, held("late", "1"))
		told, end := follow()
		leave = append(leave, end)
		if got := <-told; got != Got+"late" {
			t.Errorf("of what came before its reader: %s", got)
		}
		before := store.asked.Load()
		time.Sleep(10 * time.Second)
		if n := store.asked.Load() - before; n > 21 {
			t.Errorf("11 readers asked the store %d times in 10 s", n)
		}
		for _, end := range leave {
			end()
		}
		before = store.asked.Load()
		time.Sleep(10 * time.Second)
		if n := store.asked.Load() - before; n > 0 || len(feeds.by) > 0 {
			t.Errorf("without readers the store was asked %d times", n)
		}
	})
}

// A reader that has missed that the store does not answer is told so again.
func TestUnknownIsMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &listing{keys: []driver.KeyInfo{held("a", "1")}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		unknown := 0
		if err := New(store.list).Follow(ctx, "", func(all []Event) error {
			for _, e := range all {
				switch e.What {
				case Ready:
					store.set(errAway)
				case Unknown:
					if unknown++; unknown == 1 {
						return ErrMissed
					}
				}
			}
			return nil
		}); err != nil || unknown != 2 {
			t.Errorf("%v, told %d times", err, unknown)
		}
	})
}

// tell is called once a second, however long a look takes. A reader that has missed events
// gets the whole state.
func TestFollowOfSlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &listing{takes: 20 * time.Second, keys: []driver.KeyInfo{held("a", "1")}}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		last, whole := time.Now(), 0
		if err := New(store.list).Follow(ctx, "", func(all []Event) error {
			if d := time.Since(last); d > time.Second {
				t.Errorf("nothing for %v", d)
			}
			last = time.Now()
			if len(all) == 0 {
				return nil
			}
			if len(all) != 2 || all[0].What != Got || all[1].What != Ready {
				t.Errorf("told %v", all)
			}
			whole++
			return ErrMissed
		}); err != nil || whole < 3 {
			t.Errorf("%v, told %d times", err, whole)
		}
	})
}
