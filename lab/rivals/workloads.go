package main

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
)

var pairColumns = []column{
	{"p50", "p50", span, true},
	{"p99", "p99", span, false},
	{"rate", "pairs/s", rate, false},
}

var contendedColumns = []column{
	{"handoffs", "hand-offs/s", rate, true},
	{"rate", "acq/s", rate, false},
	{"fairness", "most ÷ least served", digits, false},
	{"handoff", "hand-off p50", span, false},
	{"wait50", "wait p50", span, false},
	{"wait99", "wait p99", span, false},
	{"servercpu", "server CPU/acq", span, false},
	{"cpu", "client CPU/acq", span, false},
}

// Columns of a store without a server, and of servers in other processes.
var (
	localColumns  = slices.DeleteFunc(slices.Clone(contendedColumns), func(c column) bool { return c.metric == "servercpu" })
	remoteColumns = contendedColumns[:len(contendedColumns)-1]

	localKeysColumns = slices.DeleteFunc(slices.Clone(keysColumns), func(c column) bool { return c.metric == "servercpu" })
)

var trafficColumns = []column{
	{"commands", "commands/acq", digits, false},
	{"pushes", "pushes/acq", digits, false},
	{"rate", "acq/s", rate, false},
}

var keysColumns = []column{
	{"rate", "pairs/s", rate, true},
	{"p50", "p50", span, false},
	{"p99", "p99", span, false},
	{"servercpu", "server CPU/pair", span, false},
	{"cpu", "client CPU/pair", span, false},
}

// Columns of databases whose clients wait on connections.
var databaseColumns = slices.Concat(contendedColumns[:len(contendedColumns)-2], []column{
	{"connections", "connections", digits, false},
	{"waiting", "of these waiting", digits, false},
	{"servercpu", "server CPU/acq", span, false},
	{"cpu", "client CPU/acq", span, false},
})

var costColumns = []column{
	{"requests", "requests/acq", digits, false},
	{"commits", "commits/acq", digits, false},
	{"rate", "acq/s", rate, false},
}

// allWorkloads is everything that is measured, in that order.
func allWorkloads() []*workload {
	return slices.Concat(redisWorkloads(), localWorkloads(), databaseWorkloads("pg", "advisory-lock"), databaseWorkloads("mariadb", "get-lock"),
		zookeeperWorkloads(), etcdWorkloads(), redlockWorkloads(), limitWorkloads(), sqlLimitWorkloads(), []*workload{{
			name: "renew", title: "Renewal of leases that are held",
			system: "renew", also: []string{"redis", "sqlite"}, names: []string{"redis", "sqlite"}, once: true,
			columns: []column{
				{"requests", "requests per renewal period", digits, false},
				{"lost", "leases lost", digits, false},
				{"leases", "leases held", digits, false},
				{"taking", "time to take them", span, false},
			},
			measure: measureRenew,
		}})
}

// pairOf, keysOf, contended and costOf are the workloads that all systems have. The
// first of names is the base of the ratios.

func pairOf(system string, names ...string) *workload {
	return &workload{
		name: system + "-pair", title: systems[system].name + ": lock and unlock, one goroutine, client and server pinned to one CPU",
		system: system, names: names, base: names[0], columns: pairColumns, measure: measurePairPinned,
	}
}

// freePairsOf are two: client and server may be on different CPUs, without and with a
// crowd before, after which some clients are slower.
func freePairsOf(system string, names ...string) []*workload {
	of := func(suffix, title string, crowd int) *workload {
		return &workload{
			name: system + suffix, title: systems[system].name + ": lock and unlock, one goroutine" + title,
			system: system, names: names, base: names[0], columns: pairColumns, measure: measurePair(Pairing{Batch: 1, Crowd: crowd}),
		}
	}
	return []*workload{
		of("-pair-free", ", not pinned", 0),
		of("-pair-after", ", not pinned, after a crowd of 64", 64),
	}
}

func keysOf(system string, names ...string) *workload {
	return &workload{
		name: system + "-keys64", title: systems[system].name + ": 64 goroutines, each its own key",
		system: system, names: names, base: names[0], columns: keysColumns, measure: oneByOne(measureKeys(64)),
	}
}

func contended(system string, n int, names ...string) *workload {
	return &workload{
		name: fmt.Sprintf("%s-c%d", system, n), title: fmt.Sprintf("%s: one key, one process, %d goroutines", systems[system].name, n),
		system: system, names: names, base: names[0], columns: contendedColumns, measure: oneByOne(measureContended(n, false)),
	}
}

// costOf is for one goroutine or for many that want one key.
func costOf(system string, n int, names ...string) *workload {
	title := fmt.Sprintf("%s: what the server does, one key, %d goroutines", systems[system].name, n)
	if n == 1 {
		title = systems[system].name + ": what the server does, one key, one goroutine"
	}
	return &workload{
		name: fmt.Sprintf("%s-cost%d", system, n), title: title,
		system: system, names: names, base: names[0], once: true, columns: costColumns, measure: oneByOne(measureContended(n, true)),
	}
}

func redisWorkloads() []*workload {
	doors := func(name, title string, columns []column, measure func(context.Context, *bench, *workload, []rival) (map[string]metrics, error)) *workload {
		return &workload{
			name: name, title: "Redis: lock and unlock through the library, the agent and the server, " + title,
			system: "redis", also: []string{"agent", "serve"}, base: "baton", names: []string{"baton", "agent", "serve", "serve-connect"},
			columns: columns, measure: measure,
		}
	}
	cmds := func(n int) *workload {
		return &workload{
			name: fmt.Sprintf("redis-cmds%d", n), title: fmt.Sprintf("Redis: what %d waiters cost the server", n), system: "redis", once: true,
			names:   []string{"raw-blpop", "baton", "baton-noline", "redislock", "rueidislock"},
			columns: trafficColumns, measure: oneByOne(measureContended(n, true)),
		}
	}
	return append(freePairsOf("redis", "raw", "baton", "baton-client", "redislock", "rueidislock", "redsync"),
		pairOf("redis", "raw", "baton", "baton-client", "redislock", "rueidislock", "redsync"),
		doors("redis-doors-free", "one goroutine, not pinned", pairColumns, measurePair(Pairing{Batch: 1})),
		doors("redis-doors", "one goroutine, all pinned to one CPU", pairColumns, measurePairPinned),
		doors("redis-doors64", "64 goroutines, each its own key", keysColumns, oneByOne(measureKeys(64))),
		keysOf("redis", "raw", "baton", "rueidislock", "redislock", "redsync"),
		contended("redis", 8, "raw-blpop", "baton", "baton-noline"),
		contended("redis", 64, "raw-blpop", "baton", "baton-noline", "redislock", "rueidislock"),
		contended("redis", 256, "raw-blpop", "baton", "baton-noline", "redislock", "rueidislock"),
		&workload{
			name: "redis-c64-pin", title: "Redis: one key, one process, 64 goroutines, client and server pinned to one CPU",
			system: "redis", base: "raw-blpop", names: []string{"raw-blpop", "baton", "baton-noline"},
			columns: remoteColumns, measure: oneByOne(measureProcesses(1, 64, true)),
		},
		&workload{
			name: "redis-procs", title: "Redis: one key, 4 processes × 16 goroutines",
			system: "redis", also: []string{"agent"}, base: "raw-blpop", names: []string{"raw-blpop", "baton", "baton-noline", "agent", "rueidislock"},
			columns: []column{
				{"rate", "acq/s", rate, true},
				{"across", "to another process p50", span, true},
				{"spread", "most ÷ least served process", digits, false},
				{"fairness", "most ÷ least served goroutine", digits, false},
				{"handoffs", "hand-offs/s", rate, false},
				{"wait99", "wait p99", span, false},
				{"servercpu", "server CPU/acq", span, false},
			},
			measure: oneByOne(measureProcesses(4, 16, false)),
		},
		cmds(8), cmds(64), cmds(256),
	)
}

// localWorkloads are those of the stores without a server.
func localWorkloads() []*workload {
	local := func(w *workload, columns []column) *workload {
		w.columns = columns
		return w
	}
	return []*workload{
		{
			name: "sqlite-pair", title: "SQLite: lock and unlock, one goroutine",
			system: "sqlite", base: "raw", names: []string{"raw", "polled-table", "baton"},
			columns: pairColumns, measure: measurePair(Pairing{Batch: 1}),
		},
		local(keysOf("sqlite", "raw", "baton"), localKeysColumns),
		local(contended("sqlite", 64, "polled-table", "baton", "baton-noline"), localColumns),
		{
			name: "memory-pair", title: "Memory: lock and unlock, one goroutine",
			system: "memory", base: "fifo-channel", names: []string{"fifo-channel", "token-channel", "baton"},
			columns: pairColumns, measure: measurePair(Pairing{Batch: 100}),
		},
		local(contended("memory", 64, "fifo-channel", "baton"), localColumns),
	}
}

// databaseWorkloads are those of an SQL database whose server has its own locks.
func databaseWorkloads(system, native string) []*workload {
	one := func(n int, slow bool, names ...string) *workload {
		w := contended(system, n, names...)
		w.columns, w.slow = databaseColumns, slow
		return w
	}
	return append(freePairsOf(system, "raw", "baton", native),
		pairOf(system, "raw", "baton", native),
		keysOf(system, "raw", "baton", native),
		one(8, false, native, "baton", "baton-noline"),
		one(64, true, native, "baton", "baton-noline", "polled-table"),
		one(256, true, native, "baton", "baton-noline", "polled-table"),
		costOf(system, 1, "raw", "baton"),
		costOf(system, 64, native, "baton", "baton-noline", "polled-table"),
	)
}

func zookeeperWorkloads() []*workload {
	fresh := pairOf("zk", "raw", "baton", "zk-lock")
	fresh.name, fresh.title = "zk-newkey", "ZooKeeper: lock and unlock, one goroutine, a new key each time, client and server pinned to one CPU"
	fresh.measure = measureFreshPinned
	return append(freePairsOf("zk", "raw", "baton", "zk-lock"),
		pairOf("zk", "raw", "baton", "zk-lock"),
		fresh,
		keysOf("zk", "raw", "baton", "zk-lock"),
		contended("zk", 8, "zk-lock", "baton", "baton-noline"),
		contended("zk", 64, "zk-lock", "baton", "baton-noline"),
		contended("zk", 256, "zk-lock", "baton", "baton-noline"),
		costOf("zk", 1, "raw", "baton", "zk-lock"),
		costOf("zk", 64, "zk-lock", "baton", "baton-noline"),
	)
}

func etcdWorkloads() []*workload {
	aged := pairOf("etcd", "raw", "baton")
	aged.name, aged.title = "etcd-aged", "etcd: lock and unlock, one goroutine, an old key, client and server pinned to one CPU"
	aged.once, aged.measure = true, measureAgedPinned
	return append(freePairsOf("etcd", "raw", "baton", "mutex"),
		pairOf("etcd", "raw", "baton", "mutex"),
		aged,
		keysOf("etcd", "raw", "baton", "mutex"),
		contended("etcd", 8, "mutex", "baton", "baton-noline"),
		contended("etcd", 64, "mutex", "baton", "baton-noline"),
		contended("etcd", 256, "mutex", "baton", "baton-noline"),
		costOf("etcd", 1, "raw", "baton", "mutex"),
		costOf("etcd", 64, "mutex", "baton", "baton-noline"),
	)
}

func redlockWorkloads() []*workload {
	return append(freePairsOf("redlock", "raw", "baton", "redsync"),
		pairOf("redlock", "raw", "baton", "redsync"),
		keysOf("redlock", "raw", "baton", "redsync"),
		contended("redlock", 8, "redsync", "redsync-1ms", "baton", "baton-noline"),
		contended("redlock", 64, "redsync", "redsync-1ms", "baton", "baton-noline"),
		contended("redlock", 256, "redsync", "baton", "baton-noline"),
	)
}

// choose returns the workloads whose names match one of the patterns, which
// are separated by commas; all if there is none. It also returns the patterns
// that match nothing.
func choose(all []*workload, patterns string) (chosen []*workload, unknown []string) {
	if patterns == "" {
		return all, nil
	}
	wanted := strings.Split(patterns, ",")
	used := make([]bool, len(wanted))
	for _, w := range all {
		matched := false
		for i, p := range wanted {
			if ok, err := path.Match(strings.TrimSpace(p), w.name); ok && err == nil {
				used[i], matched = true, true
			}
		}
		if matched {
			chosen = append(chosen, w)
		}
	}
	for i, p := range wanted {
		if !used[i] {
			unknown = append(unknown, p)
		}
	}
	return chosen, unknown
}
