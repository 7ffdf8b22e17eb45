package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/goredisstore.v9"
	"github.com/ulule/limiter/v3"
	ulule "github.com/ulule/limiter/v3/drivers/store/redis"
	uber "go.uber.org/ratelimit"
	xrate "golang.org/x/time/rate"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/store/memstore"
)

// Limiters are seats that decide instead of locking; their Unlock does nothing. The limit is
// so high that nearly every decision allows: an allowed request costs a write.
const (
	limitN     = 1_000_000
	limitEvery = time.Second
)

// errRefused ends a measurement: the limit cannot have been reached.
var errRefused = errors.New("a decision that must be yes is no")

type deciding func(ctx context.Context, key string) (bool, error)

func (d deciding) Lock(ctx context.Context, key string) (unlocker, error) {
	ok, err := d(ctx, key)
	if err == nil && !ok {
		err = errRefused
	}
	return nothing{}, err
}

type nothing struct{}

func (nothing) Unlock() error { return nil }

// limiterRoom has one limiter for all goroutines.
func limiterRoom(store limits.Store, limit ratelimit.Limit, end func()) (*room, error) {
	l, err := ratelimit.New(store, limit)
	if err != nil {
		return nil, err
	}
	return &room{seat: common(deciding(func(ctx context.Context, key string) (bool, error) {
		r, err := l.Allow(ctx, key)
		return r.OK, err
	})), close: end}, nil
}

var redisLimitRivals = []rival{
	{
		name:  "raw",
		about: "the bare exchange on rueidis: a script that does INCR, and PEXPIRE the first time; a fixed window that begins with the first request, and nothing but the count in the answer",
		open:  openRawIncr,
	},
	{
		name:  "baton",
		about: "Baton's token bucket on redisstore",
		open: func(e *env, _ int) (*room, error) {
			return openRedisLimiter(e, ratelimit.TokenBucket(limitN, limitEvery, limitN))
		},
	},
	{
		name:  "baton-client",
		about: "the same over the program's client of go-redis, which is as redis_rate has it",
		open: func(e *env, _ int) (*room, error) {
			store, end, err := e.clientStore()
			if err != nil {
				return nil, err
			}
			return limiterRoom(store, ratelimit.TokenBucket(limitN, limitEvery, limitN), end)
		},
	},
	{
		name:  "baton-sliding",
		about: "Baton's sliding window (ten sub-windows, strict) on redisstore",
		open: func(e *env, _ int) (*room, error) {
			return openRedisLimiter(e, ratelimit.SlidingWindow(limitN, limitEvery))
		},
	},
	{
		name:  "redis_rate",
		about: "go-redis/redis_rate: GCRA in one script, floating point",
		open: func(e *env, n int) (*room, error) {
			c := e.goRedisClient(n)
			l, limit := redis_rate.NewLimiter(c), redis_rate.Limit{Rate: limitN, Burst: limitN, Period: limitEvery}
			return goRedisRoom(c, func(ctx context.Context, key string) (bool, error) {
				r, err := l.Allow(ctx, key, limit)
				return err == nil && r.Allowed == 1, err
			}), nil
		},
	},
	{
		name:  "ulule",
		about: "ulule/limiter on go-redis: a fixed window that begins with the first request",
		open: func(e *env, n int) (*room, error) {
			c := e.goRedisClient(n)
			store, err := ulule.NewStore(c)
			if err != nil {
				return nil, errors.Join(err, c.Close())
			}
			l := limiter.New(store, limiter.Rate{Period: limitEvery, Limit: limitN})
			return goRedisRoom(c, func(ctx context.Context, key string) (bool, error) {
				r, err := l.Get(ctx, key)
				return err == nil && !r.Reached, err
			}), nil
		},
	},
	{
		name:  "rls",
		about: "Envoy's rate limit service over Baton's fixed window on redisstore, asked by grpc-go",
		open:  openRLS("rls"),
	},
	{
		name:  "rls-incr",
		about: "the same service as envoyproxy/ratelimit decides: INCRBY and EXPIRE in a pipeline of go-redis, behind grpc-go",
		open:  openRLS("rls-incr"),
	},
	{
		name:  "throttled",
		about: "throttled on go-redis: GCRA by compare-and-swap of the client; only where no two want one key, for it gives up after ten attempts",
		open: func(e *env, n int) (*room, error) {
			c := e.goRedisClient(n)
			store, err := goredisstore.NewCtx(c, "throttled:")
			if err != nil {
				return nil, errors.Join(err, c.Close())
			}
			l, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{MaxRate: throttled.PerDuration(limitN, limitEvery), MaxBurst: limitN - 1})
			if err != nil {
				return nil, errors.Join(err, c.Close())
			}
			return goRedisRoom(c, func(ctx context.Context, key string) (bool, error) {
				limited, _, err := l.RateLimitCtx(ctx, key, 1)
				return !limited, err
			}), nil
		},
	},
}

func goRedisRoom(c *redis.Client, d deciding) *room {
	return &room{seat: common(d), close: func() { _ = c.Close() }} // no request depends on it
}

var increment = rueidis.NewLuaScript(`local n = redis.call("INCR", KEYS[1]) if n == 1 then redis.call("PEXPIRE", KEYS[1], ARGV[1]) end return n`)

func openRawIncr(e *env, _ int) (*room, error) {
	c, err := e.rueidisClient()
	if err != nil {
		return nil, err
	}
	ms := strconv.FormatInt(limitEvery.Milliseconds(), 10)
	return &room{seat: common(deciding(func(ctx context.Context, key string) (bool, error) {
		n, err := increment.Exec(ctx, c, []string{key}, []string{ms}).AsInt64()
		return n <= limitN, err
	})), close: c.Close}, nil
}

func openRedisLimiter(e *env, limit ratelimit.Limit) (*room, error) {
	store, end, err := e.redisStore()
	if err != nil {
		return nil, err
	}
	return limiterRoom(store, limit, end)
}

var memoryLimitRivals = []rival{
	{
		name:  "x/time",
		about: "golang.org/x/time/rate, one Limiter for each key in a sync.Map, as its users write it; nothing is ever removed",
		open: func(*env, int) (*room, error) {
			var all sync.Map
			return memoryRoom(func(_ context.Context, key string) (bool, error) {
				l, ok := all.Load(key)
				if !ok {
					l, _ = all.LoadOrStore(key, xrate.NewLimiter(limitMany, limitMany))
				}
				return l.(*xrate.Limiter).Allow(), nil
			}), nil
		},
	},
	{
		name:  "baton",
		about: "Baton's token bucket on memstore, asked for what x/time answers, a yes or a no (Allowed), by name, with a context",
		open: func(*env, int) (*room, error) {
			store := memstore.New()
			l, err := ratelimit.New(store, ratelimit.TokenBucket(limitMany, time.Second, limitMany))
			return &room{seat: common(deciding(func(ctx context.Context, key string) (bool, error) {
				return l.Allowed(ctx, key)
			})), close: func() { _ = store.Close() }}, err
		},
	},
	{
		name:  "baton-result",
		about: "the same with the whole result (Allow): what remains, when there is more, when all is back",
		open: func(*env, int) (*room, error) {
			store := memstore.New()
			return limiterRoom(store, ratelimit.TokenBucket(limitMany, time.Second, limitMany), func() { _ = store.Close() })
		},
	},
	{
		name:  "floor",
		about: "the least that an exact decision takes: a look at the monotonic clock and a compare-and-swap, on one number for all keys, which are not looked at",
		open: func(*env, int) (*room, error) {
			var full atomic.Int64
			start := time.Now()
			return memoryRoom(func(context.Context, string) (bool, error) {
				for {
					now, was := int64(time.Since(start)), full.Load()
					if was-now > int64(time.Second) {
						return false, nil
					}
					if full.CompareAndSwap(was, max(was, now)+int64(time.Second)/limitMany) {
						return true, nil
					}
				}
			}), nil
		},
	},
	{
		name:  "go-limiter",
		about: "sethvargo/go-limiter's memory store: a fixed window that begins with the first request; what it answers is not looked at, because with so high a limit it hands out too little after the first window",
		open: func(*env, int) (*room, error) {
			store, err := memorystore.New(&memorystore.Config{Tokens: limitMany, Interval: time.Second})
			if err != nil {
				return nil, err
			}
			r := memoryRoom(func(ctx context.Context, key string) (bool, error) {
				_, _, _, _, err := store.Take(ctx, key)
				return true, err
			})
			r.close = func() { _ = store.Close(context.Background()) }
			return r, nil
		},
	},
	{
		name:  "uber",
		about: "go.uber.org/ratelimit, one for each key in a sync.Map: it can only wait, and never has to here",
		open: func(*env, int) (*room, error) {
			var all sync.Map
			return memoryRoom(func(_ context.Context, key string) (bool, error) {
				l, ok := all.Load(key)
				if !ok {
					l, _ = all.LoadOrStore(key, uber.New(limitMany))
				}
				l.(uber.Limiter).Take()
				return true, nil
			}), nil
		},
	},
}

// limitMany is more than a loop can take.
const limitMany = 100_000_000

func memoryRoom(d deciding) *room { return &room{seat: common(d), close: func() {}} }

var decisionColumns = []column{
	{"rate", "decisions/s", rate, true},
	{"p50", "p50", span, false},
	{"p99", "p99", span, false},
	{"servercpu", "server CPU/decision", span, false},
	{"cpu", "client CPU/decision", span, false},
}

var oneDecisionColumns = []column{{"p50", "p50", span, true}, {"p99", "p99", span, false}, {"rate", "decisions/s", rate, false}}

var localDecisionColumns = []column{
	{"p50", "p50", span, true},
	{"rate", "decisions/s", rate, false},
}

// freeLimitOf is for one caller with a cancellable context.
func freeLimitOf(system string, names ...string) *workload {
	return &workload{
		name: system + "-free", title: systems[system].name + ": a rate limit, one goroutine, not pinned",
		system: system, base: names[0], names: names, columns: oneDecisionColumns, measure: measurePair(Pairing{Batch: 1}),
	}
}

// limitWorkloads are about rate limits.
func limitWorkloads() []*workload {
	all := []*workload{freeLimitOf("limit-redis", "raw", "baton", "baton-client", "baton-sliding", "redis_rate"), {
		name: "limit-redis-one", title: "Redis: a rate limit, one goroutine, client and server pinned to one CPU",
		system: "limit-redis", base: "raw", names: []string{"raw", "baton", "baton-client", "baton-sliding", "redis_rate", "ulule", "throttled"},
		columns: oneDecisionColumns, measure: measurePairPinned,
	}}
	rls := func(name, title string, columns []column, measure func(context.Context, *bench, *workload, []rival) (map[string]metrics, error)) *workload {
		return &workload{
			name: name, title: "Redis: Envoy's rate limit service, " + title, system: "limit-redis", also: []string{"rls", "rls-incr"},
			base: "rls-incr", names: []string{"rls-incr", "rls"}, columns: columns, measure: measure,
		}
	}
	all = append(all,
		rls("rls-redis-free", "one goroutine, not pinned", oneDecisionColumns, measurePair(Pairing{Batch: 1})),
		rls("rls-redis", "one goroutine, all pinned to one CPU", oneDecisionColumns, measurePairPinned),
		rls("rls-redis64", "64 goroutines, one connection", decisionColumns, oneByOne(measureDecisions(64, 64, 1))))
	for _, keys := range []int{1, 10_000} {
		of := "one key"
		rivals := []string{"raw", "baton", "baton-sliding", "redis_rate", "ulule"}
		if keys > 1 {
			of = fmt.Sprint(keys, " keys")
			rivals = append(rivals, "throttled")
		}
		all = append(all, &workload{
			name: fmt.Sprintf("limit-redis-k%d", keys), title: "Redis: a rate limit, 64 goroutines, " + of,
			system: "limit-redis", base: "raw", names: rivals, columns: decisionColumns, measure: oneByOne(measureDecisions(64, keys, 1)),
		})
	}
	for _, keys := range []int{1, 10_000} {
		of := "one key"
		if keys > 1 {
			of = fmt.Sprint(keys, " keys")
		}
		all = append(all, &workload{
			name: fmt.Sprintf("limit-memory-k%d", keys), title: "In process: a rate limit, two goroutines, " + of,
			system: "limit-memory", base: "x/time", names: []string{"x/time", "baton", "baton-result", "go-limiter", "uber", "floor"},
			columns: localDecisionColumns, measure: oneByOne(measureDecisions(2, keys, 1000)),
		})
	}
	return all
}
