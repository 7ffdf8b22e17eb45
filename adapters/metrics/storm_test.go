package metrics_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/adapters/metrics"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/memstore"
)

func memory(t testing.TB) *memstore.Store {
	s := memstore.New()
	t.Cleanup(func() { s.Close() })
	return s
}

// unreliable does not answer some requests to acquire.
type unreliable struct{ *memstore.Store }

func (u unreliable) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := u.Store.Acquire(ctx, r)
	if err == nil && rand.IntN(50) == 0 {
		return driver.Grant{}, driver.ErrUnknown
	}
	return g, err
}

// In the midst of a storm and after it, the gauges are what the counters say.
func TestGaugesAfterAStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, events := newFake(t, metrics.Config{})
		store := unreliable{memory(t)}
		var lockers []*baton.Locker
		for range 3 {
			l, err := baton.New(store, baton.Config{TTL: 2 * time.Second, MaxHold: 3 * time.Second, Events: events.Locks})
			if err != nil {
				t.Fatal(err)
			}
			lockers = append(lockers, l)
		}
		var wg sync.WaitGroup
		for i := range 300 {
			wg.Go(func() {
				l := lockers[i%len(lockers)]
				time.Sleep(rand.N(10 * time.Second))
				ctx, cancel := context.WithTimeout(t.Context(), rand.N(8*time.Second)+time.Second)
				defer cancel()
				key := fmt.Sprint("storm/", i%12)
				var opts []baton.Option
				if i%3 == 0 {
					opts = append(opts, baton.Shared())
				}
				lease, err := l.Lock(ctx, key, opts...)
				if err != nil {
					return
				}
				switch i % 7 {
				case 0: // lost
					if _, err := l.Break(t.Context(), key); err != nil {
						t.Error(err)
					}
					<-lease.Done()
				case 1:
					<-lease.Done() // by MaxHold
				default:
					time.Sleep(rand.N(300 * time.Millisecond))
				}
				lease.Unlock()
			})
		}
		agree := func() {
			t.Helper()
			synctest.Wait()
			acquired, ended := f.sum("baton.lock.acquired"), f.sum("baton.lock.released")+f.sum("baton.lock.lost")
			if held := f.sum("baton.lock.held"); held != acquired-ended || held < 0 {
				t.Errorf("%v acquired, %v released or lost, %v held", acquired, ended, held)
			}
		}
		time.Sleep(5 * time.Second)
		agree()
		if f.sum("baton.lock.waiting") < 1 {
			t.Errorf("it is no storm:\n%s", f.text())
		}
		wg.Wait()
		time.Sleep(10 * time.Second)
		agree()
		if held, waiting := f.sum("baton.lock.held"), f.sum("baton.lock.waiting"); held != 0 || waiting != 0 {
			t.Errorf("after the storm %v are held, %v wait", held, waiting)
		}
		for _, name := range []string{"baton.lock.acquired", "baton.lock.failed", "baton.lock.lost", "baton.lock.released", "baton.renewal.claims"} {
			if f.sum(name) < 1 {
				t.Errorf("%s is %v: the test is none", name, f.sum(name))
			}
		}
		if calls := f.sum("baton.lock.acquired") + f.sum("baton.lock.failed"); calls != 300 {
			t.Errorf("%v calls have ended", calls)
		}
	})
}
