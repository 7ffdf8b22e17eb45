package lockfeed

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/driver"
)

var errAway = errors.New("the store is away")

// listing is a store whose locks a test sets.
type listing struct {
	keys []driver.KeyInfo
	err  error
}

func (l *listing) list(_ context.Context, prefix string) iter.Seq2[driver.KeyInfo, error] {
	return func(yield func(driver.KeyInfo, error) bool) {
		if l.err != nil {
			yield(driver.KeyInfo{}, l.err)
			return
		}
		for _, k := range l.keys {
			if strings.HasPrefix(k.Key, prefix) && !yield(k, nil) {
				return
			}
		}
	}
}

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

// A feed tells what stood at its begin, each change, that the store is silent, and what has
// changed meanwhile; and it ends.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &listing{keys: []driver.KeyInfo{held("a", "1", "w"), held("b", "2")}}
		ctx, cancel := context.WithCancel(t.Context())
		told := make(chan string, 100)
		ended := make(chan error, 1)
		last := int64(0)
		go func() {
			ended <- Follow(ctx, store.list, "", func(all []Event) error {
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
		store.keys = []driver.KeyInfo{held("a", "3"), held("c\xff", "4")}
		next("ended a o1", "got a o3", "waits a 0[]", "ended b o2", "got c� o4")
		store.err = errAway
		next("unknown")
		store.err, store.keys = nil, store.keys[:1]
		next("ended c� o4", "ready")
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := Follow(t.Context(), (&listing{err: errAway}).list, "", nil); !errors.Is(err, errAway) {
			t.Errorf("the first look: %v", err)
		}
		many := &listing{}
		for i := range MaxKeys + 1 {
			many.keys = append(many.keys, held(fmt.Sprint(i), "1"))
		}
		if err := Follow(t.Context(), many.list, "", nil); !errors.As(err, new(*TooManyError)) {
			t.Errorf("too many: %v", err)
		}
		if err := Follow(t.Context(), store.list, "", func([]Event) error { return errAway }); !errors.Is(err, errAway) {
			t.Errorf("tell's error: %v", err)
		}
	})
}
