package main

import (
	"math"
	"slices"
)

// A goal is a figure that a run is compared with. Reaching must is required
// of the project, want is what it aims at.
type goal struct {
	what       string
	atMost     bool // else at least
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
	return func(r *results) []float64 { return known(r.values(workload, rival, metric)) }
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

var goals = []goal{
	{"redis, pair pinned to one CPU, p50 ÷ raw", true, 1.25, 1.15, ratioOf("pair", "baton", "raw", "p50"), times},
	{"redis, 64 goroutines on 64 keys, pairs/s ÷ raw", false, 0.70, 0.95, ratioOf("keys64", "baton", "raw", "rate"), times},
	{"redis, 64 goroutines on one key, hand-offs/s ÷ raw-blpop", false, 10, 13, ratioOf("c64", "baton", "raw-blpop", "handoffs"), times},
	{"redis, 256 goroutines on one key, hand-offs/s ÷ raw-blpop", false, 10, 13, ratioOf("c256", "baton", "raw-blpop", "handoffs"), times},
	{"redis, one key, most ÷ least served of 64 goroutines", true, 1.05, 1.05, valueOf("c64", "baton", "fairness"), digits},
	{"redis, one key, most ÷ least served of 256 goroutines", true, 1.05, 1.05, valueOf("c256", "baton", "fairness"), digits},
	{"redis, 8 waiters without the line, hand-offs/s ÷ raw-blpop", false, 0.75, 0.9, ratioOf("c8", "baton-noline", "raw-blpop", "handoffs"), times},
	{"redis, 64 waiters without the line, hand-offs/s ÷ raw-blpop", false, 0.75, 0.9, ratioOf("c64", "baton-noline", "raw-blpop", "handoffs"), times},
	{"redis, 256 waiters without the line, hand-offs/s ÷ raw-blpop", false, 0.75, 0.9, ratioOf("c256", "baton-noline", "raw-blpop", "handoffs"), times},
	{"redis, without the line, flat: slowest ÷ fastest of 8, 64, 256", false, 0.9, 0.9, across(lowestByHighest, "baton-noline", "handoffs", "c8", "c64", "c256"), digits},
	{"redis, 4 processes × 16 goroutines, acquisitions/s ÷ raw-blpop", false, 9, 12, ratioOf("procs", "baton", "raw-blpop", "rate"), times},
	{"redis, 4 × 16, most ÷ least served process", true, 1.10, 1.10, valueOf("procs", "baton", "spread"), digits},
	{"redis, 4 × 16, hand-over to another process, p50 ÷ raw-blpop", true, 1.7, 1.4, ratioOf("procs", "baton", "raw-blpop", "across"), times},
	{"redis, commands per acquisition without the line, worst of 8, 64, 256", true, 2.05, 2.05, across(slices.Max, "baton-noline", "commands", "cmds8", "cmds64", "cmds256"), digits},
	{"redis, pushes per acquisition without the line, worst of 8, 64, 256", true, 1.05, 1.05, across(slices.Max, "baton-noline", "pushes", "cmds8", "cmds64", "cmds256"), digits},
	{"redis, commands per acquisition with the line, worst of 8, 64, 256", true, 0.1, 0.1, across(slices.Max, "baton", "commands", "cmds8", "cmds64", "cmds256"), digits},
	{"redis, commands per renewal period of 10 000 leases", true, 100, 100, valueOf("renew", "redis", "requests"), digits},
	{"redis, leases lost of 10 000", true, 0, 0, valueOf("renew", "redis", "lost"), digits},
	{"sqlite, pair, p50 ÷ raw durable insert and delete", true, 1.15, 1.15, ratioOf("sqlite-pair", "baton", "raw", "p50"), times},
	{"sqlite, 64 goroutines on one key, hand-offs/s ÷ polled table", false, 1, 1, ratioOf("sqlite-c64", "baton", "polled-table", "handoffs"), times},
	{"sqlite, write transactions per renewal period of 10 000 leases", true, 1.1, 1.1, valueOf("renew", "sqlite", "requests"), digits},
	{"sqlite, leases lost of 10 000", true, 0, 0, valueOf("renew", "sqlite", "lost"), digits},
	{"memory, 64 goroutines on one key, hand-offs/s ÷ channel FIFO", false, 0.5, 0.5, ratioOf("memory-c64", "baton", "fifo-channel", "handoffs"), times},
}

// reached says whether v is as good as bar.
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

// verdict is the goal beside the figure: "✓ ≤ 1.25 × [✗ 1.15 ×]".
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
