package main

import (
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

// Of a store without a server, and of other processes.
var (
	localColumns  = slices.DeleteFunc(slices.Clone(contendedColumns), func(c column) bool { return c.metric == "servercpu" })
	remoteColumns = contendedColumns[:len(contendedColumns)-1]
)

var trafficColumns = []column{
	{"commands", "commands/acq", digits, false},
	{"pushes", "pushes/acq", digits, false},
	{"rate", "acq/s", rate, false},
}

// allWorkloads is everything that is measured, in the order in which it is.
func allWorkloads() []*workload {
	redis, file := needs{redis: true}, needs{sqlite: true}
	contended := func(name, title string, n int, names ...string) *workload {
		return &workload{
			name: name, title: title, needs: redis, pool: redisRivals, names: names, base: "raw-blpop",
			columns: contendedColumns, measure: oneByOne(measureContended(n, false)),
		}
	}
	traffic := func(name, title string, n int) *workload {
		return &workload{
			name: name, title: title, needs: redis, pool: redisRivals,
			names:   []string{"raw-blpop", "baton", "baton-noline", "redislock", "rueidislock"},
			columns: trafficColumns, measure: oneByOne(measureContended(n, true)),
		}
	}
	return []*workload{
		{
			name: "pair", title: "Redis: lock and unlock, one goroutine, client and server pinned to one CPU",
			needs: redis, pool: redisRivals, base: "raw",
			names:   []string{"raw", "baton", "redislock", "rueidislock", "redsync"},
			columns: pairColumns, measure: measurePairPinned,
		},
		{
			name: "keys64", title: "Redis: 64 goroutines, each its own key",
			needs: redis, pool: redisRivals, base: "raw",
			names: []string{"raw", "baton", "rueidislock", "redislock", "redsync"},
			columns: []column{
				{"rate", "pairs/s", rate, true}, {"p50", "p50", span, false}, {"p99", "p99", span, false}, {"servercpu", "server CPU/pair", span, false}, {"cpu", "client CPU/pair", span, false},
			},
			measure: oneByOne(measureKeys(64)),
		},
		contended("c8", "Redis: one key, one process, 8 goroutines", 8, "raw-blpop", "baton", "baton-noline"),
		contended("c64", "Redis: one key, one process, 64 goroutines", 64, "raw-blpop", "baton", "baton-noline", "redislock", "rueidislock"),
		contended("c256", "Redis: one key, one process, 256 goroutines", 256, "raw-blpop", "baton", "baton-noline", "redislock", "rueidislock"),
		{
			name: "c64-pin", title: "Redis: one key, one process, 64 goroutines, client and server pinned to one CPU",
			needs: redis, pool: redisRivals, base: "raw-blpop", names: []string{"raw-blpop", "baton", "baton-noline"},
			columns: remoteColumns, measure: oneByOne(measureProcesses(1, 64, true)),
		},
		{
			name: "procs", title: "Redis: one key, 4 processes × 16 goroutines",
			needs: redis, pool: redisRivals, base: "raw-blpop",
			names: []string{"raw-blpop", "baton", "baton-noline", "rueidislock"},
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
		traffic("cmds8", "Redis: what 8 waiters cost the server", 8),
		traffic("cmds64", "Redis: what 64 waiters cost the server", 64),
		traffic("cmds256", "Redis: what 256 waiters cost the server", 256),
		{
			name: "sqlite-pair", title: "SQLite: lock and unlock, one goroutine",
			needs: file, pool: sqliteRivals, base: "raw", names: []string{"raw", "polled-table", "baton"},
			columns: pairColumns, measure: measurePair(1),
		},
		{
			name: "sqlite-c64", title: "SQLite: one key, 64 goroutines",
			needs: file, pool: sqliteRivals, base: "polled-table", names: []string{"polled-table", "baton", "baton-noline"},
			columns: localColumns, measure: oneByOne(measureContended(64, false)),
		},
		{
			name: "memory-pair", title: "Memory: lock and unlock, one goroutine",
			pool: memoryRivals, base: "fifo-channel", names: []string{"fifo-channel", "token-channel", "baton"},
			columns: pairColumns, measure: measurePair(100),
		},
		{
			name: "memory-c64", title: "Memory: one key, 64 goroutines",
			pool: memoryRivals, base: "fifo-channel", names: []string{"fifo-channel", "token-channel", "baton"},
			columns: localColumns, measure: oneByOne(measureContended(64, false)),
		},
		{
			name: "renew", title: "Renewal of leases that are held",
			needs: needs{redis: true, sqlite: true}, pool: renewRivals, names: []string{"redis", "sqlite"}, once: true,
			columns: []column{
				{"requests", "requests per renewal period", digits, false},
				{"lost", "leases lost", digits, false},
				{"leases", "leases held", digits, false},
				{"taking", "time to take them", span, false},
			},
			measure: measureRenew,
		},
	}
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
