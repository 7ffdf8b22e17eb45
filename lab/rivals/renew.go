package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"modernc.org/sqlite"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/sqlitestore"
)

// renewEvery is the renewal period: Baton renews every third of the TTL.
const renewEvery = ttl / 3

var renewRivals = []rival{
	{name: "redis", about: "one Locker on redisstore; requests are commands sent"},
	{name: "sqlite", about: "one Locker on sqlitestore; requests are write transactions"},
}

// measureRenew holds many leases on each store, on all stores at once, and counts the
// renewal requests.
func measureRenew(ctx context.Context, b *bench, w *workload, rivals []rival) (map[string]metrics, error) {
	fmt.Fprintf(b.log, "1/1  %-12s holding %d leases on each store for %v\n", w.name, b.leases, b.hold)
	var mu sync.Mutex
	var wg sync.WaitGroup
	all, errs := make(map[string]metrics), make([]error, len(rivals))
	for i, r := range rivals {
		wg.Go(func() {
			open := map[string]func(*env) (*countedStore, error){"redis": countedRedis, "sqlite": countedSQLite}[r.name]
			s, err := open(b.env)
			if err != nil {
				errs[i] = err
				return
			}
			defer s.close()
			m, err := holdMany(ctx, s, b.leases, b.hold)
			if err != nil {
				errs[i] = fmt.Errorf("%s: %w", r.name, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			all[r.name] = m
			b.progress(w, r.name, m)
		})
	}
	wg.Wait()
	return all, errors.Join(errs...)
}

// countedStore is a store with the number of its requests so far.
type countedStore struct {
	driver.Locks
	requests *atomic.Int64
	close    func()
}

func countedRedis(e *env) (*countedStore, error) {
	e = e.counted()
	store, end, err := e.redisStore()
	if err != nil {
		return nil, err
	}
	return &countedStore{store, &e.commands.n, end}, nil
}

// commits counts the commits of connections that are opened while it is set.
var commits atomic.Pointer[atomic.Int64]

var watchCommits = sync.OnceFunc(func() {
	sqlite.RegisterConnectionHook(func(conn sqlite.ExecQuerierContext, _ string) error {
		n := commits.Load()
		if c, ok := conn.(sqlite.HookRegisterer); ok && n != nil {
			c.RegisterCommitHook(func() int32 {
				n.Add(1)
				return 0
			})
		}
		return nil
	})
})

func countedSQLite(e *env) (*countedStore, error) {
	watchCommits()
	n := new(atomic.Int64)
	commits.Store(n)
	defer commits.Store(nil)
	store, err := sqlitestore.Open(context.Background(), filepath.Join(e.dir, "renew.db"))
	if err != nil {
		return nil, err
	}
	if n.Load() == 0 {
		return nil, errors.Join(errors.New("the commits of the SQLite store cannot be counted"), store.Close())
	}
	return &countedStore{store, n, func() { _ = store.Close() }}, nil // the file is removed with its directory
}

// holdMany acquires n leases, holds them, and checks that none is lost.
func holdMany(ctx context.Context, s *countedStore, n int, hold time.Duration) (metrics, error) {
	const hands = 64
	var lost atomic.Int64
	locker, err := baton.New(s.Locks, baton.Config{TTL: ttl, Events: &baton.Events{
		Lost: func(context.Context, baton.LockEvent) { lost.Add(1) },
	}})
	if err != nil {
		return nil, err
	}
	leases := make([]*baton.Lease, n)
	each := func(f func(i int) error) error {
		errs := make([]error, hands)
		var wg sync.WaitGroup
		for h := range hands {
			wg.Go(func() {
				for i := h; i < n && errs[h] == nil; i += hands {
					errs[h] = f(i)
				}
			})
		}
		wg.Wait()
		return errors.Join(errs...)
	}
	began := time.Now()
	err = each(func(i int) (err error) {
		leases[i], err = locker.Lock(ctx, fmt.Sprintf("bench/renew/%d", i))
		return err
	})
	if err != nil {
		return nil, err
	}
	took := time.Since(began)

	before, cpu := s.requests.Load(), cpuTime()
	if err := sleep(ctx, hold); err != nil {
		return nil, err
	}
	requests, used := s.requests.Load()-before, cpuTime()-cpu
	gone := int64(0)
	for _, lease := range leases {
		if lease.Err() != nil {
			gone++
		}
	}
	err = each(func(i int) error {
		err := leases[i].Unlock()
		if errors.Is(err, baton.ErrLost) {
			return nil // counted
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	periods := hold.Seconds() / renewEvery.Seconds()
	return metrics{
		"requests": float64(requests) / periods,
		"lost":     float64(max(gone, lost.Load())),
		"leases":   float64(n),
		"taking":   float64(took),
		"cpu":      float64(used) / periods,
	}, nil
}
