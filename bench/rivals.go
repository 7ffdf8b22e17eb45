package main

import (
	"context"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/open"
)

// ttl is how long every lock lasts without renewal.
const ttl = 15 * time.Second

// A rival is one way to lock.
type rival struct {
	name  string
	about string // what it is and how it is used here, for the report

	// open connects it for that many goroutines.
	open func(e *env, goroutines int) (*room, error)

	// prepare, if not nil, makes a key ready to be locked, once.
	prepare func(e *env, key string) error
}

// A room is a rival that is ready to run.
type room struct {
	seat  func(i int) seat // for goroutine i alone
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

// common gives all goroutines the same seat, which must be safe for that.
func common(s seat) func(int) seat { return func(int) seat { return s } }

// A system is what locks live in, with the rivals that lock there.
type system struct {
	name   string // the first word of the titles of its tables
	rivals []rival
	start  func(t testserver.TB, e *env) error // nil: nothing has to run
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

	"limit-redis":   {"Redis", redisLimitRivals, likewise("limit-redis", "redis", startRedis)},
	"limit-memory":  {"In process", memoryLimitRivals, nil},
	"limit-pg":      {"PostgreSQL", postgresLimitRivals, likewise("limit-pg", "pg", startPostgres)},
	"limit-mariadb": {"MariaDB", mariadbLimitRivals, likewise("limit-mariadb", "mariadb", startMariaDB)},
}

// batonRoom locks through store. Its close is the given one.
func batonRoom(store driver.Locks, lockers int, cfg baton.Config, close func()) (*room, error) {
	seats := make([]seat, lockers)
	for i := range seats {
		l, err := baton.New(store, cfg)
		if err != nil {
			close()
			return nil, err
		}
		seats[i] = batonSeat{l}
	}
	return &room{seat: func(i int) seat { return seats[i%lockers] }, close: close}, nil
}

type batonSeat struct{ *baton.Locker }

func (s batonSeat) Lock(ctx context.Context, key string) (unlocker, error) {
	lease, err := s.Locker.Lock(ctx, key)
	if err != nil {
		return nil, err
	}
	return lease, nil
}

// batonRivals are Baton on the store that a URL names, with and without the local
// queue.
func batonRivals(store string, url func(*env) string) []rival {
	with := func(lockers func(goroutines int) int) func(*env, int) (*room, error) {
		return func(e *env, goroutines int) (*room, error) {
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			s, err := open.Store(ctx, url(e))
			if err != nil {
				return nil, err
			}
			return batonRoom(s, lockers(goroutines), baton.Config{TTL: ttl}, func() { _ = s.Close() }) // nothing is held
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
			about: "Baton with one Locker for each goroutine over one store, so that every goroutine waits in " + store,
			open:  with(func(goroutines int) int { return goroutines }),
		},
	}
}
