package main

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strconv"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/redisstore"
)

var redisRivals = []rival{
	{
		name:  "raw",
		about: "the bare exchange on rueidis: SET key id NX PX, then a script that compares and deletes; one constant id, no waiting, no renewal, no token",
		open:  openRaw,
	},
	{
		name:  "raw-blpop",
		about: "the bare hand-over on go-redis, one connection for each goroutine: BLPOP takes the only element of a list, RPUSH gives it back; no expiry, no renewal, no token: a crash blocks it for ever",
		open:  openBLPOP, prepare: prepareBLPOP,
	},
	{
		name:  "baton",
		about: "Baton on redisstore as its URL opens it, TTL 15 s: fencing token, queue, renewal, in-process line",
		open:  openBaton,
	},
	{
		name:  "baton-client",
		about: "Baton on redisstore over the program's client of go-redis, which is as redislock has it",
		open:  openBatonClient,
	},
	{
		name:  "baton-noline",
		about: noLine("Redis"),
		open:  openBatonRedis, manyStores: true,
	},
	{
		name:  "agent",
		about: "baton agent over Baton on redisstore, one session for each goroutine, from a client in Go by a Unix socket: as baton, and a client that dies frees its locks at once",
		open:  openAgent,
	},
	{
		name:  "serve",
		about: "baton serve over Baton on redisstore, by JSON over HTTP/1.1, one connection for each goroutine, with an op for each lock: leases that no connection has, which the client renews",
		open:  openServe,
	},
	{
		name:  "serve-connect",
		about: "the same from Connect's client in Go, which is as busy as the server",
		open:  openConnect,
	},
	{
		name:  "redislock",
		about: "bsm/redislock on go-redis, polling every 1 ms where it has to wait; no renewal, no token",
		open:  openRedislock,
	},
	{
		name:  "rueidislock",
		about: "rueidislock with KeyMajority 1 and NoLoopTracking, as its documentation says for one server, and TryNextAfter 1 s, because with the default of 20 ms all its waiters can hang for ever after one slow answer; renewal, no token",
		open:  openRueidislock,
	},
	{
		name:  "redsync",
		about: "redsync on go-redis, one server, a new Mutex for each acquisition; no renewal, no token",
		open:  openRedsync,
	},
}

// rueidisClient connects to the server, and counts commands if the environment asks for
// it.
func (e *env) rueidisClient() (rueidis.Client, error) { return rueidis.NewClient(e.rueidisOption()) }

func (e *env) rueidisOption() rueidis.ClientOption {
	o := rueidis.ClientOption{InitAddress: e.at["redis"]}
	if e.commands != nil {
		o.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return e.commands.wrap(d.DialContext(ctx, "tcp", addr))
		}
	}
	return o
}

func (e *env) goRedisClient(poolSize int) *redis.Client {
	o := &redis.Options{Addr: e.at["redis"][0], PoolSize: poolSize}
	if e.commands != nil {
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			var d net.Dialer
			return e.commands.wrap(d.DialContext(ctx, network, addr))
		}
	}
	return redis.NewClient(o)
}

// --- raw

var compareAndDelete = rueidis.NewLuaScript(`if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end return 0`)

var errTaken = errors.New("raw: the key is taken")

func openRaw(e *env, _ int) (*room, error) {
	c, err := e.rueidisClient()
	if err != nil {
		return nil, err
	}
	return &room{
		seat:  func(i int) seat { return &rawSeat{client: c, id: "id-of-goroutine-" + strconv.Itoa(i)} },
		close: c.Close,
	}, nil
}

type rawSeat struct {
	client  rueidis.Client
	id, key string
}

func (s *rawSeat) Lock(ctx context.Context, key string) (unlocker, error) {
	err := s.client.Do(ctx, s.client.B().Set().Key(key).Value(s.id).Nx().Px(ttl).Build()).Error()
	if rueidis.IsRedisNil(err) {
		return nil, errTaken
	}
	if err != nil {
		return nil, err
	}
	s.key = key
	return s, nil
}

func (s *rawSeat) Unlock() error {
	n, err := compareAndDelete.Exec(context.Background(), s.client, []string{s.key}, []string{s.id}).AsInt64()
	if err == nil && n != 1 {
		return errTaken
	}
	return err
}

// --- raw-blpop

const blpopToken = "1" // the only element; the holder has removed it from the list

func prepareBLPOP(e *env, key string) error {
	c := e.goRedisClient(1)
	defer c.Close()
	ctx := context.Background()
	if err := c.Del(ctx, key).Err(); err != nil {
		return err
	}
	return c.RPush(ctx, key, blpopToken).Err()
}

func openBLPOP(e *env, goroutines int) (*room, error) {
	c := e.goRedisClient(goroutines)
	conns := make([]*redis.Conn, goroutines)
	for i := range conns {
		conns[i] = c.Conn()
		if err := conns[i].Ping(context.Background()).Err(); err != nil {
			c.Close()
			return nil, err
		}
	}
	return &room{
		seat: func(i int) seat { return &blpopSeat{conn: conns[i]} },
		close: func() {
			for _, conn := range conns {
				_ = conn.Close() // nothing is under way
			}
			_ = c.Close()
		},
	}, nil
}

type blpopSeat struct {
	conn *redis.Conn
	key  string
}

func (s *blpopSeat) Lock(ctx context.Context, key string) (unlocker, error) {
	if err := s.conn.BLPop(ctx, 30*time.Second, key).Err(); err != nil {
		return nil, err
	}
	s.key = key
	return s, nil
}

func (s *blpopSeat) Unlock() error {
	return s.conn.RPush(context.Background(), s.key, blpopToken).Err()
}

// --- baton

func openBaton(e *env, _ int) (*room, error) { return openBatonRedis(e, 1) }

// redisStore opens the store by its URL, or, if commands are counted, over a client that
// counts them.
func (e *env) redisStore() (store *redisstore.Store, end func(), err error) {
	if e.commands != nil {
		return e.clientStore()
	}
	store, err = redisstore.Open(context.Background(), redisstore.Server{Addrs: e.at["redis"]}, redisstore.Config{})
	return store, func() { _ = store.Close() }, err // nothing is held
}

// clientStore makes the store over the program's own client.
func (e *env) clientStore() (store *redisstore.Store, end func(), err error) {
	c := e.goRedisClient(0)
	if store, err = redisstore.New(c, redisstore.Config{}); err != nil {
		_ = c.Close()
		return nil, nil, err
	}
	return store, func() {
		_ = store.Close() // nothing is held
		_ = c.Close()
	}, nil
}

func openBatonRedis(e *env, stores int) (*room, error) {
	return batonRoom(stores, baton.Config{TTL: ttl}, func() (driver.Locks, func(), error) { return e.redisStore() })
}

func openBatonClient(e *env, _ int) (*room, error) {
	return batonRoom(1, baton.Config{TTL: ttl}, func() (driver.Locks, func(), error) { return e.clientStore() })
}

// --- redislock

func openRedislock(e *env, _ int) (*room, error) {
	c := e.goRedisClient(0)
	return &room{
		seat:  common(redislockSeat{redislock.New(c)}),
		close: func() { _ = c.Close() },
	}, nil
}

type redislockSeat struct{ client *redislock.Client }

var everyMillisecond = redislock.Options{RetryStrategy: redislock.LinearBackoff(time.Millisecond)}

func (s redislockSeat) Lock(ctx context.Context, key string) (unlocker, error) {
	lock, err := s.client.Obtain(ctx, key, ttl, &everyMillisecond)
	if err != nil {
		return nil, err
	}
	return redislockHeld{lock}, nil
}

type redislockHeld struct{ *redislock.Lock }

func (h redislockHeld) Unlock() error { return h.Release(context.Background()) }

// --- rueidislock

func openRueidislock(e *env, _ int) (*room, error) {
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   e.rueidisOption(),
		KeyMajority:    1,
		NoLoopTracking: true,
		KeyValidity:    ttl,
		TryNextAfter:   time.Second,
	})
	if err != nil {
		return nil, err
	}
	return &room{seat: common(rueidislockSeat{l}), close: l.Close}, nil
}

type rueidislockSeat struct{ locker rueidislock.Locker }

func (s rueidislockSeat) Lock(ctx context.Context, key string) (unlocker, error) {
	held, cancel, err := s.locker.WithContext(ctx, key)
	if err != nil {
		return nil, err
	}
	return rueidislockHeld{held, cancel}, nil
}

type rueidislockHeld struct {
	ctx    context.Context
	cancel context.CancelFunc
}

func (h rueidislockHeld) Unlock() error {
	err := h.ctx.Err() // not nil if it was lost
	h.cancel()
	return err
}

// --- redsync

func openRedsync(e *env, _ int) (*room, error) {
	c := e.goRedisClient(0)
	return &room{
		seat:  common(redsyncSeat{redsync.New(goredis.NewPool(c))}),
		close: func() { _ = c.Close() },
	}, nil
}

type redsyncSeat struct{ sync *redsync.Redsync }

func (s redsyncSeat) Lock(ctx context.Context, key string) (unlocker, error) {
	m := s.sync.NewMutex(key, redsync.WithExpiry(ttl))
	if err := m.LockContext(ctx); err != nil {
		return nil, err
	}
	return redsyncHeld{m}, nil
}

type redsyncHeld struct{ *redsync.Mutex }

func (h redsyncHeld) Unlock() error {
	ok, err := h.Mutex.Unlock()
	if err == nil && !ok {
		err = errors.New("redsync: the lock was lost")
	}
	return err
}
