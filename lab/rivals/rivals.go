package main

import (
	"context"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/open"
)

// ttl is the duration of every lock without renewal.
const ttl = 15 * time.Second

// A rival is one way to lock.
type rival struct {
	name  string
	about string // for the report: its name and its settings here

	// open connects it for that many goroutines.
	open func(e *env, goroutines int) (*room, error)

	// prepare, if not nil, prepares a key before its first lock.
	prepare func(e *env, key string) error

	manyStores bool // a store for each goroutine: the warm-up takes longer
}

// A room is an open rival.
type room struct {
	seat  func(i int) seat // for goroutine i only
	close func()
}

// A seat locks for one goroutine.
type seat interface {
	Lock(ctx context.Context, key string) (unlocker, error)
}

type unlocker interface{ Unlock() error }

// A pairSeat locks by one call and unlocks by another.
type pairSeat struct {
	lock, unlock func(ctx context.Context, key string) error

	key string
}

func (s *pairSeat) Lock(ctx context.Context, key string) (unlocker, error) {
	if err := s.lock(ctx, key); err != nil {
		return nil, err
	}
	s.key = key
	return s, nil
}

func (s *pairSeat) Unlock() error { return s.unlock(context.Background(), s.key) }

// common gives all goroutines the same seat, which must be safe for concurrent use.
func common(s seat) func(int) seat { return func(int) seat { return s } }

// A system is where the locks are, with its rivals.
type system struct {
	name   string // the first word of the titles of its tables
	rivals []rival
	start  func(t testserver.TB, e *env) error // nil: no process is needed
}

// systems are all systems, by the first word of the names of their workloads.
var systems = map[string]system{
	"redis":   {"Redis", redisRivals, startRedis},
	"sqlite":  {"SQLite", sqliteRivals, startSQLite},
	"memory":  {"Memory", memoryRivals, nil},
	"pg":      {"PostgreSQL", postgresRivals, startPostgres},
	"mariadb": {"MariaDB", mariadbRivals, startMariaDB},
	"zk":      {"ZooKeeper", zookeeperRivals, startZooKeeper},
	"etcd":    {"etcd", etcdRivals, startEtcd},
	"redlock": {"Redlock of five", redlockRivals, startRedlock},
	"renew":   {"Renewal", renewRivals, nil}, // on other systems
	"agent":   {"Agent", nil, startAgent},    // a rival of Redis
	"serve":   {"Server", nil, startServe},   // another

	"rls":      {"Rate limit service", nil, startRLS}, // a rival of the limits on Redis
	"rls-incr": {"INCRBY and EXPIRE", nil, startIncr}, // another

	"limit-redis":   {"Redis", redisLimitRivals, likewise("limit-redis", "redis", startRedis)},
	"limit-memory":  {"In process", memoryLimitRivals, nil},
	"limit-pg":      {"PostgreSQL", postgresLimitRivals, likewise("limit-pg", "pg", startPostgres)},
	"limit-mariadb": {"MariaDB", mariadbLimitRivals, likewise("limit-mariadb", "mariadb", startMariaDB)},
}

// batonRoom opens that many stores, each with one Locker, and gives them to the goroutines in
// turn. With one store all goroutines wait in its Locker's local queue; with one for each
// goroutine, the server sees them as that many processes. Each store locks once before the
// measurement, which makes its connections and prepares its statements.
func batonRoom(stores int, cfg baton.Config, open func() (store driver.Locks, end func(), err error)) (*room, error) {
	var ends []func()
	closeAll := func() {
		for _, end := range ends {
			end()
		}
	}
	seats := make([]seat, stores)
	for i := range seats {
		store, end, err := open()
		if err == nil {
			ends = append(ends, end)
			seats[i], err = warmSeat(store, cfg)
		}
		if err != nil {
			closeAll()
			return nil, err
		}
	}
	return &room{seat: func(i int) seat { return seats[i%stores] }, close: closeAll}, nil
}

func warmSeat(store driver.Locks, cfg baton.Config) (seat, error) {
	l, err := baton.New(store, cfg)
	if err != nil {
		return nil, err
	}
	lease, err := l.TryLock(context.Background(), "bench/first/"+driver.NewID())
	if err != nil {
		return nil, err
	}
	return batonSeat{l}, lease.Unlock()
}

type batonSeat struct{ *baton.Locker }

func (s batonSeat) Lock(ctx context.Context, key string) (unlocker, error) {
	lease, err := s.Locker.Lock(ctx, key)
	if err != nil {
		return nil, err
	}
	return lease, nil
}

// noLine is the note of the rival baton-noline.
func noLine(store string) string {
	return "Baton with one store and one Locker for each goroutine, as that many processes have them: every goroutine waits in " + store + ", on connections of its own"
}

// batonRivals are Baton on the store of a URL: with one store for all goroutines, and with
// one for each.
func batonRivals(store string, url func(*env) string) []rival {
	with := func(stores func(goroutines int) int) func(*env, int) (*room, error) {
		return func(e *env, goroutines int) (*room, error) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			return batonRoom(stores(goroutines), baton.Config{TTL: ttl}, func() (driver.Locks, func(), error) {
				s, err := open.Store(ctx, url(e))
				return s, func() { _ = s.Close() }, err // nothing is held
			})
		}
	}
	return []rival{
		{
			name:  "baton",
			about: "Baton on " + store + " as its URL opens it, TTL 15 s: fencing token, queue, renewal, in-process line",
			open:  with(func(int) int { return 1 }),
		},
		{
			name:  "baton-noline",
			about: noLine(store),
			open:  with(func(goroutines int) int { return goroutines }), manyStores: true,
		},
	}
}
