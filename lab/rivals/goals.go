package main

import (
	"math"
	"slices"
)

// A goal is a bound for a figure. must is required; want is the aim.
type goal struct {
	what       string
	atMost     bool // otherwise at least
	must, want float64
	figures    func(*results) []float64 // of each repetition
	format     func(float64) string
}

// ratioOf and valueOf are the usual figures.
func ratioOf(workload, rival, base, metric string) func(*results) []float64 {
	return func(r *results) []float64 {
		return ratios(r.values(workload, rival, metric), r.values(workload, base, metric))
	}
}

func valueOf(workload, rival, metric string) func(*results) []float64 {
	return func(r *results) []float64 { return slices.DeleteFunc(r.values(workload, rival, metric), math.IsNaN) }
}

// ratioToBest is the ratio to the best of the others in that repetition.
func ratioToBest(workload, rival, metric string, others ...string) func(*results) []float64 {
	return func(r *results) []float64 {
		var best []float64
		for _, other := range others {
			for i, v := range r.values(workload, other, metric) {
				if i == len(best) {
					best = append(best, v)
				}
				best[i] = max(best[i], v)
			}
		}
		return ratios(r.values(workload, rival, metric), best)
	}
}

// across combines a rival's figures in several workloads.
func across(combine func([]float64) float64, rival, metric string, workloads ...string) func(*results) []float64 {
	return func(r *results) []float64 {
		var out []float64
		for rep := range r.repetitions {
			var values []float64
			for _, w := range workloads {
				if all := r.values(w, rival, metric); rep < len(all) && !math.IsNaN(all[rep]) {
					values = append(values, all[rep])
				}
			}
			if len(values) == len(workloads) {
				out = append(out, combine(values))
			}
		}
		return out
	}
}

func lowestByHighest(values []float64) float64 { return slices.Min(values) / slices.Max(values) }

// The goals marked "remeasure" are from a time when all goroutines of baton-noline shared one
// store, with its connections, batches and knowledge of the queue. Each goroutine has its own
// store now, so these goals need new bounds from a run on an idle machine.
var goals = []goal{
	{"redis, pair pinned to one CPU, p50 ÷ raw", true, 1.25, 1.15, ratioOf("redis-pair", "baton", "raw", "p50"), times},
	{"redis, pair not pinned, p50 ÷ bsm/redislock", true, 1, 1, ratioOf("redis-pair-free", "baton", "redislock", "p50"), times},
	{"redis, over the program's go-redis, pair not pinned, p50 ÷ bsm/redislock", true, 1.15, 1.05, ratioOf("redis-pair-free", "baton-client", "redislock", "p50"), times},
	{"redis, pair not pinned after a crowd, p50 ÷ bsm/redislock", true, 1, 1, ratioOf("redis-pair-after", "baton", "redislock", "p50"), times},
	{"redis, pair not pinned, p50 ÷ raw", true, 1.5, 1.05, ratioOf("redis-pair-free", "baton", "raw", "p50"), times},
	{"redis, 64 goroutines on 64 keys, pairs/s ÷ raw", false, 0.70, 0.95, ratioOf("redis-keys64", "baton", "raw", "rate"), times},
	{"redis, 64 goroutines on one key, hand-offs/s ÷ raw-blpop", false, 10, 13, ratioOf("redis-c64", "baton", "raw-blpop", "handoffs"), times},
	{"redis, 256 goroutines on one key, hand-offs/s ÷ raw-blpop", false, 10, 13, ratioOf("redis-c256", "baton", "raw-blpop", "handoffs"), times},
	{"redis, one key, most ÷ least served of 64 goroutines", true, 1.05, 1.05, valueOf("redis-c64", "baton", "fairness"), digits},
	{"redis, one key, most ÷ least served of 256 goroutines", true, 1.05, 1.05, valueOf("redis-c256", "baton", "fairness"), digits},
	{"redis, 8 waiters without the line, hand-offs/s ÷ raw-blpop", false, 0.75, 0.9, ratioOf("redis-c8", "baton-noline", "raw-blpop", "handoffs"), times},                                   // remeasure
	{"redis, 64 waiters without the line, hand-offs/s ÷ raw-blpop", false, 0.75, 0.9, ratioOf("redis-c64", "baton-noline", "raw-blpop", "handoffs"), times},                                 // remeasure
	{"redis, 256 waiters without the line, hand-offs/s ÷ raw-blpop", false, 0.75, 0.9, ratioOf("redis-c256", "baton-noline", "raw-blpop", "handoffs"), times},                               // remeasure
	{"redis, without the line, flat: slowest ÷ fastest of 8, 64, 256", false, 0.9, 0.9, across(lowestByHighest, "baton-noline", "handoffs", "redis-c8", "redis-c64", "redis-c256"), digits}, // remeasure
	{"redis, 4 processes × 16 goroutines, acquisitions/s ÷ raw-blpop", false, 9, 12, ratioOf("redis-procs", "baton", "raw-blpop", "rate"), times},
	{"redis, 4 × 16, most ÷ least served process", true, 1.10, 1.10, valueOf("redis-procs", "baton", "spread"), digits},
	{"redis, 4 × 16, hand-over to another process, p50 ÷ raw-blpop", true, 1.7, 1.4, ratioOf("redis-procs", "baton", "raw-blpop", "across"), times},
	{"redis, pair through the agent, pinned to one CPU, p50 ÷ library", true, 4, 2.5, ratioOf("redis-doors", "agent", "baton", "p50"), times},
	{"redis, pair through the agent, not pinned, p50 ÷ library", true, 5, 2.5, ratioOf("redis-doors-free", "agent", "baton", "p50"), times},
	{"redis, pair through the server, pinned to one CPU, p50 ÷ library", true, 6, 4, ratioOf("redis-doors", "serve", "baton", "p50"), times},
	{"redis, pair through the server, not pinned, p50 ÷ library", true, 8, 4, ratioOf("redis-doors-free", "serve", "baton", "p50"), times},
	{"redis, Envoy's service, pinned to one CPU, p50 ÷ INCRBY and EXPIRE on grpc-go", true, 2, 1.5, ratioOf("rls-redis", "rls", "rls-incr", "p50"), times},
	{"redis, Envoy's service, not pinned, p50 ÷ INCRBY and EXPIRE on grpc-go", true, 2, 1.5, ratioOf("rls-redis-free", "rls", "rls-incr", "p50"), times},
	{"redis, 4 × 16 through the agent, acquisitions/s ÷ raw-blpop", false, 0.7, 1, ratioOf("redis-procs", "agent", "raw-blpop", "rate"), times},
	{"redis, 4 × 16 through the agent, hand-over to another process, p50 ÷ library's", true, 1, 1, ratioOf("redis-procs", "agent", "baton", "across"), times},
	{"redis, 4 × 16 through the agent, hand-over to another process, p50 ÷ raw-blpop", true, 1.7, 1, ratioOf("redis-procs", "agent", "raw-blpop", "across"), times},
	{"redis, commands per acquisition without the line, worst of 8, 64, 256", true, 2.05, 2.05, across(slices.Max, "baton-noline", "commands", "redis-cmds8", "redis-cmds64", "redis-cmds256"), digits}, // remeasure
	{"redis, pushes per acquisition without the line, worst of 8, 64, 256", true, 1.05, 1.05, across(slices.Max, "baton-noline", "pushes", "redis-cmds8", "redis-cmds64", "redis-cmds256"), digits},     // remeasure
	{"redis, commands per acquisition with the line, worst of 8, 64, 256", true, 0.1, 0.1, across(slices.Max, "baton", "commands", "redis-cmds8", "redis-cmds64", "redis-cmds256"), digits},
	{"redis, commands per renewal period of 10 000 leases", true, 100, 100, valueOf("renew", "redis", "requests"), digits},
	{"redis, leases lost of 10 000", true, 0, 0, valueOf("renew", "redis", "lost"), digits},
	{"sqlite, pair, p50 ÷ raw durable insert and delete", true, 1.15, 1.15, ratioOf("sqlite-pair", "baton", "raw", "p50"), times},
	{"sqlite, 64 goroutines on 64 keys, pairs/s ÷ raw", false, 0.95, 0.95, ratioOf("sqlite-keys64", "baton", "raw", "rate"), times},
	{"sqlite, 64 goroutines on one key, hand-offs/s ÷ polled table", false, 1, 1, ratioOf("sqlite-c64", "baton", "polled-table", "handoffs"), times},
	{"sqlite, write transactions per renewal period of 10 000 leases", true, 1.1, 1.1, valueOf("renew", "sqlite", "requests"), digits},
	{"sqlite, leases lost of 10 000", true, 0, 0, valueOf("renew", "sqlite", "lost"), digits},
	{"postgres, pair pinned to one CPU, p50 ÷ raw durable insert and delete", true, 1, 1, ratioOf("pg-pair", "baton", "raw", "p50"), times},
	{"postgres, 64 goroutines on 64 keys, pairs/s ÷ raw", false, 0.8, 0.8, ratioOf("pg-keys64", "baton", "raw", "rate"), times},
	{"postgres, 64 goroutines on one key, hand-offs/s ÷ pg_advisory_lock", false, 5, 7, ratioOf("pg-c64", "baton", "advisory-lock", "handoffs"), times},
	{"postgres, 64 waiters without the line, hand-offs/s ÷ polled table", false, 2.5, 2.5, ratioOf("pg-c64", "baton-noline", "polled-table", "handoffs"), times},     // remeasure
	{"postgres, 256 waiters without the line, hand-offs/s ÷ polled table", false, 20, 20, ratioOf("pg-c256", "baton-noline", "polled-table", "handoffs"), times},     // remeasure
	{"postgres, without the line, most ÷ least served, worst of 64, 256", true, 1.1, 1.1, across(slices.Max, "baton-noline", "uneven", "pg-c64", "pg-c256"), digits}, // remeasure
	{"postgres, connections that wait, with the line, worst of 64, 256", true, 0, 0, across(slices.Max, "baton", "waiting", "pg-c64", "pg-c256"), digits},
	{"postgres, statements per uncontended pair", true, 2.05, 2.05, valueOf("pg-cost1", "baton", "requests"), digits},

	{"mariadb, pair pinned to one CPU, p50 ÷ raw durable insert and delete", true, 1.15, 1.15, ratioOf("mariadb-pair", "baton", "raw", "p50"), times},
	{"mariadb, 64 goroutines on 64 keys, pairs/s ÷ raw", false, 0.7, 0.7, ratioOf("mariadb-keys64", "baton", "raw", "rate"), times},
	{"mariadb, 64 goroutines on one key, hand-offs/s ÷ GET_LOCK", false, 1, 1, ratioOf("mariadb-c64", "baton", "get-lock", "handoffs"), times},
	{"mariadb, 64 waiters without the line, hand-offs/s ÷ polled table", false, 1, 1, ratioOf("mariadb-c64", "baton-noline", "polled-table", "handoffs"), times},              // remeasure
	{"mariadb, 256 waiters without the line, hand-offs/s ÷ polled table", false, 8, 8, ratioOf("mariadb-c256", "baton-noline", "polled-table", "handoffs"), times},            // remeasure
	{"mariadb, without the line, most ÷ least served, worst of 64, 256", true, 1.1, 1.1, across(slices.Max, "baton-noline", "uneven", "mariadb-c64", "mariadb-c256"), digits}, // remeasure
	{"mariadb, connections that wait, with the line, worst of 64, 256", true, 0, 0, across(slices.Max, "baton", "waiting", "mariadb-c64", "mariadb-c256"), digits},
	{"mariadb, statements per uncontended pair", true, 2.05, 2.05, valueOf("mariadb-cost1", "baton", "requests"), digits},

	{"zookeeper, pair pinned to one CPU, p50 ÷ raw create and delete", true, 1.15, 1.05, ratioOf("zk-pair", "baton", "raw", "p50"), times},
	{"zookeeper, a new key each time, p50 ÷ raw create and delete", true, 1.45, 1.1, ratioOf("zk-newkey", "baton", "raw", "p50"), times},
	{"zookeeper, 64 goroutines on 64 keys, pairs/s ÷ raw", false, 0.85, 1.1, ratioOf("zk-keys64", "baton", "raw", "rate"), times},
	{"zookeeper, 64 goroutines on one key, hand-offs/s ÷ zk.Lock", false, 20, 30, ratioOf("zk-c64", "baton", "zk-lock", "handoffs"), times},
	{"zookeeper, 8 waiters without the line, hand-offs/s ÷ zk.Lock", false, 1.1, 1.4, ratioOf("zk-c8", "baton-noline", "zk-lock", "handoffs"), times},   // remeasure
	{"zookeeper, 64 waiters without the line, hand-offs/s ÷ zk.Lock", false, 1.1, 1.4, ratioOf("zk-c64", "baton-noline", "zk-lock", "handoffs"), times}, // remeasure
	{"zookeeper, requests per uncontended pair", true, 2.05, 2.05, valueOf("zk-cost1", "baton", "requests"), digits},
	{"zookeeper, commits per uncontended pair", true, 2.05, 2.05, valueOf("zk-cost1", "baton", "commits"), digits},
	{"zookeeper, requests per acquisition of 64 waiters without the line", true, 5.05, 5.05, valueOf("zk-cost64", "baton-noline", "requests"), digits}, // remeasure

	{"etcd, pair pinned to one CPU, p50 ÷ raw put and delete", true, 1.2, 1.1, ratioOf("etcd-pair", "baton", "raw", "p50"), times},
	{"etcd, the same on a key that was locked 10 000 times", true, 1.3, 1.1, ratioOf("etcd-aged", "baton", "raw", "p50"), times},
	{"etcd, 64 goroutines on 64 keys, pairs/s ÷ raw", false, 1.1, 1.5, ratioOf("etcd-keys64", "baton", "raw", "rate"), times},
	{"etcd, 64 goroutines on one key, hand-offs/s ÷ concurrency.Mutex", false, 40, 40, ratioOf("etcd-c64", "baton", "mutex", "handoffs"), times},
	{"etcd, 8 waiters without the line, hand-offs/s ÷ concurrency.Mutex", false, 10, 13, ratioOf("etcd-c8", "baton-noline", "mutex", "handoffs"), times}, // remeasure
	{"etcd, 64 waiters without the line, hand-offs/s ÷ concurrency.Mutex", false, 2, 3, ratioOf("etcd-c64", "baton-noline", "mutex", "handoffs"), times}, // remeasure

	{"redlock of five, pair pinned to one CPU, p50 ÷ raw on one of them", true, 7, 5.5, ratioOf("redlock-pair", "baton", "raw", "p50"), times},
	{"redlock of five, 64 goroutines on one key, hand-offs/s ÷ redsync at its better delay", false, 20, 20, ratioToBest("redlock-c64", "baton", "handoffs", "redsync", "redsync-1ms"), times},

	{"redis, rate limit, one goroutine pinned to one CPU, p50 ÷ INCR", true, 1.4, 1.25, ratioOf("limit-redis-one", "baton", "raw", "p50"), times},
	{"redis, over the program's go-redis, rate limit not pinned, p50 ÷ redis_rate", true, 1.25, 1.1, ratioOf("limit-redis-free", "baton-client", "redis_rate", "p50"), times},
	{"redis, rate limit, 64 goroutines on 10 000 keys, decisions/s ÷ INCR", false, 0.65, 1, ratioOf("limit-redis-k10000", "baton", "raw", "rate"), times},
	{"redis, rate limit, 64 goroutines on one key, decisions/s ÷ INCR", false, 1.5, 2, ratioOf("limit-redis-k1", "baton", "raw", "rate"), times},
	{"postgres, rate limit, 64 goroutines on one key, decisions/s ÷ naive transaction", false, 3, 3, ratioOf("limit-pg-k1", "baton", "naive", "rate"), times},
	{"postgres, rate limit, 64 goroutines on 10 000 keys, decisions/s ÷ naive transaction", false, 3, 3, ratioOf("limit-pg-k10000", "baton", "naive", "rate"), times},
	{"mariadb, rate limit, 64 goroutines on one key, decisions/s ÷ naive transaction", false, 3, 3, ratioOf("limit-mariadb-k1", "baton", "naive", "rate"), times},
	{"mariadb, rate limit, 64 goroutines on 10 000 keys, decisions/s ÷ naive transaction", false, 3, 3, ratioOf("limit-mariadb-k10000", "baton", "naive", "rate"), times},
	{"in process, rate limit on one key, yes or no, time ÷ x/time/rate", true, 0.6, 0.5, ratioOf("limit-memory-k1", "baton", "x/time", "p50"), times},
	{"in process, rate limit on 10 000 keys, yes or no, time ÷ x/time/rate", true, 0.75, 0.6, ratioOf("limit-memory-k10000", "baton", "x/time", "p50"), times},

	{"memory, 64 goroutines on one key, hand-offs/s ÷ channel FIFO", false, 0.5, 0.5, ratioOf("memory-c64", "baton", "fifo-channel", "handoffs"), times},
}

// reached reports whether v is as good as bar.
func (g goal) reached(v, bar float64) bool {
	if g.atMost {
		return v <= bar
	}
	return v >= bar
}

func mark(ok bool) string {
	if ok {
		return "✓"
	}
	return "✗"
}

// verdict is the goal next to the figure: "✓ ≤ 1.25 × [✗ 1.15 ×]".
func (g goal) verdict(v float64) string {
	sign := "≥"
	if g.atMost {
		sign = "≤"
	}
	s := mark(g.reached(v, g.must)) + " " + sign + " " + g.format(g.must)
	if g.want != g.must {
		s += " [" + mark(g.reached(v, g.want)) + " " + g.format(g.want) + "]"
	}
	return s
}
