package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/batontest"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/memstore"
	"github.com/batonhq/baton/store/redlock"
)

// Of many that come while the lock is held, one gets it and all others are told that a
// newer one came: whatever the order, and whether or not the store has a queue.
func TestNewestOfMany(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) driver.Locks{
		"memory": func(*testing.T) driver.Locks { return memstore.New() },
		"redlock": func(t *testing.T) driver.Locks {
			nodes := []redlock.Member{memstore.New(), memstore.New(), memstore.New()}
			s, err := redlock.New(nodes, redlock.Config{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = s.Close()
				time.Sleep(time.Hour) // until its workers have ended
			})
			time.Sleep(redlock.DefaultLongestTTL + time.Minute) // until then a server that has started does not vote
			return s
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := open(t)
				locker := func(owner string) *baton.Locker {
					l, err := baton.New(store, baton.Config{Owner: owner, TTL: 3 * time.Second})
					if err != nil {
						t.Fatal(err)
					}
					return l
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				holder, err := locker("holder").Lock(ctx, "k")
				if err != nil {
					t.Fatal(err)
				}
				var mu sync.Mutex
				var wg sync.WaitGroup
				got, gave := 0, 0
				for i := range 8 {
					l := locker("waiter") // of one name, as nightly jobs are
					wg.Go(func() {
						time.Sleep(time.Duration(i%4) * 100 * time.Millisecond) // in pairs
						lease, err := awaitNewest(ctx, l, l, "k", 3*time.Second, nil)
						mu.Lock()
						defer mu.Unlock()
						var given *exit
						switch {
						case err == nil:
							got++
							_ = lease.Unlock()
						case errors.As(err, &given) && given.Code == exitNotAcquired:
							gave++
						default:
							t.Errorf("waiter %d: %v", i, err)
						}
					})
				}
				time.Sleep(10 * time.Second) // on Redlock a broken lease is noticed by its renewal
				mu.Lock()
				if got != 0 || gave != 7 {
					t.Errorf("while the lock is held %d got it and %d gave way, want 0 and 7", got, gave)
				}
				mu.Unlock()
				if err := holder.Unlock(); err != nil {
					t.Error(err)
				}
				wg.Wait()
				if fmt.Sprint(got, gave) != "1 7" {
					t.Errorf("%d got the lock and %d gave way, want 1 and 7", got, gave)
				}
			})
		})
	}
}

// A waiter that is granted the lock after a newer one has come, and has not heard of it,
// gives the lock back: it was stopped, say.
func TestNewestGrantedTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		deaf := deafStore{store} // no hint comes: the loss is noticed by a renewal, a second later
		older, err := baton.New(deaf, baton.Config{TTL: 3 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		newer, err := baton.New(store, baton.Config{TTL: 3 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		holder, err := newer.Lock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		result := make(chan error, 1)
		go func() {
			lease, err := awaitNewest(t.Context(), older, older, "k", 3*time.Second, nil)
			if lease != nil {
				_ = lease.Unlock()
			}
			result <- err
		}()
		synctest.Wait()
		if n, err := store.Break(t.Context(), newestPrefix+"k"); n != 1 || err != nil {
			t.Fatalf("broke %d, %v", n, err)
		}
		if err := holder.Unlock(); err != nil { // grants the older one
			t.Fatal(err)
		}
		var given *exit
		if err := <-result; !errors.As(err, &given) || given.Code != exitNotAcquired {
			t.Errorf("the older waiter: %v, want exit %d", err, exitNotAcquired)
		}
		if lease, err := newer.TryLock(t.Context(), "k"); err != nil {
			t.Errorf("the lock was not given back: %v", err)
		} else {
			_ = lease.Unlock()
		}
	})
}

// A store that is out of reach while a waiter becomes the newest is tried again, as Lock does.
func TestNewestWhileTheStoreIsAway(t *testing.T) {
	for _, op := range []batontest.Op{batontest.Acquire, batontest.Inspect, batontest.Break} {
		t.Run(string(op), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := batontest.New(t)
				release := store.Hold("k", "holder")
				older := store.Hold(newestPrefix+"k", "older")
				locks, err := baton.New(store, baton.Config{TTL: 3 * time.Second})
				if err != nil {
					t.Fatal(err)
				}
				away := store.Fail(op, driver.ErrUnavailable)
				result := make(chan error, 1)
				go func() {
					lease, err := awaitNewest(t.Context(), locks, locks, "k", 3*time.Second, nil)
					if lease != nil {
						err = lease.Unlock()
					}
					result <- err
				}()
				time.Sleep(4 * time.Second)
				away.Stop()
				store.AwaitWaiters("k", 1)
				older()
				release()
				if err := <-result; err != nil {
					t.Error(err)
				}

				release = store.Hold("k", "holder")
				older = store.Hold(newestPrefix+"k", "older")
				away = store.Fail(op, driver.ErrUnavailable)
				began := time.Now()
				if _, err := awaitNewest(t.Context(), locks, locks, "k", 3*time.Second, nil); !errors.Is(err, baton.ErrUnavailable) || time.Since(began) > 10*time.Second {
					t.Errorf("of a store that stays away it says %v after %v", err, time.Since(began))
				}
				away.Stop()
				older()
				release()
			})
		})
	}
}

// A deafStore is a store without hints.
type deafStore struct{ mem *memstore.Store }

func (s deafStore) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	return s.mem.Acquire(ctx, r)
}

func (s deafStore) Renew(ctx context.Context, c []driver.Claim, ttl time.Duration) []driver.Renewal {
	return s.mem.Renew(ctx, c, ttl)
}

func (s deafStore) Release(ctx context.Context, c driver.Claim) error { return s.mem.Release(ctx, c) }
func (s deafStore) Traits() driver.Traits                             { return s.mem.Traits() }

func (s deafStore) As(target any) bool {
	in, ok := target.(*driver.Inspector)
	if ok {
		*in = s.mem
	}
	return ok
}
