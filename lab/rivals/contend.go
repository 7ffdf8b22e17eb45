package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/batonhq/baton/lab/measure"
)

// patience is how long a goroutine may wait for its last acquisition after the measurement.
const patience = 2 * time.Second

// measureContended lets n goroutines of this process compete for one key. With count it
// also counts the requests to the server.
func measureContended(n int, count bool) func(context.Context, *bench, *workload, rival) (metrics, error) {
	return func(ctx context.Context, b *bench, w *workload, rv rival) (metrics, error) {
		e := b.env
		server := e.servers[w.system]
		if count && w.system == "redis" {
			e = e.counted()
		}
		if count && server != nil && server.counting != nil {
			if err := server.counting(true); err != nil {
				return nil, err
			}
			defer func() { _ = server.counting(false) }() // the next count is correct, only slower
		}
		key := b.env.key(w.name, rv.name)
		r, err := rv.open(e, n)
		if err != nil {
			return nil, err
		}
		defer r.close()
		if rv.prepare != nil {
			if err := rv.prepare(b.env, key); err != nil {
				return nil, err
			}
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		a := new(arena)
		result := make(chan tally, 1)
		go func() { result <- fight(ctx, a, r, 0, n, key) }()

		if err := sleep(ctx, b.warmUp(rv)); err != nil {
			a.phase.Store(stopped)
			<-result
			return nil, err
		}
		stopProfile, err := b.profile(w, rv.name)
		if err != nil {
			return nil, err
		}
		before, err := effortOf(e, w, a, count)
		if err != nil {
			return nil, err
		}
		a.phase.Store(measuring)
		connections, err := watchConnections(ctx, server, b.timeOf(w))
		a.phase.Store(stopped)
		took := time.Since(before.at)
		after, asking := effortOf(e, w, a, count)
		stopProfile()
		t := await(result, cancel, patience)
		if err := cmp.Or(err, asking); err != nil {
			return nil, err
		}
		if err := a.verdict(t); err != nil {
			return nil, err
		}
		b.noteStuck(w, rv, t)
		m := contendedMetrics(t, took)
		maps.Copy(m, after.since(before))
		maps.Copy(m, connections)
		return m, nil
	}
}

// watchConnections returns after d. Meanwhile it checks a few times how many connections the
// clients have, and how many of them wait in the server.
func watchConnections(ctx context.Context, s *server, d time.Duration) (metrics, error) {
	if s == nil || s.connections == nil {
		return nil, sleep(ctx, d)
	}
	const looks = 5
	end := time.Now().Add(d)
	var open, blocked []float64
	for i := range looks {
		if err := sleep(ctx, time.Until(end)/time.Duration(looks-i+1)); err != nil {
			return nil, err
		}
		all, waiting, err := s.connections()
		if err != nil {
			return nil, err
		}
		open, blocked = append(open, float64(all)), append(blocked, float64(waiting))
	}
	return metrics{"connections": measure.Median(open), "waiting": measure.Median(blocked)}, sleep(ctx, time.Until(end))
}

// await returns the tally. It stops goroutines that wait for longer than patience.
func await(result <-chan tally, cancel func(), patience time.Duration) tally {
	select {
	case t := <-result:
		return t
	case <-time.After(patience):
		cancel()
		return <-result
	}
}

func (b *bench) noteStuck(w *workload, rv rival, t tally) {
	if t.Stuck > 0 {
		b.note("%s, repetition %d: %d goroutines of %s still waited %v after the last of the others had stopped", w.name, b.rep+1, t.Stuck, rv.name, patience)
	}
}

func contendedMetrics(t tally, took time.Duration) metrics {
	return metrics{
		"rate":     perSecond(t.acquired(), took),
		"fairness": measure.MostOverLeast(t.Served),
		"uneven":   mostOverLeast(t.Served),
		"handoffs": perSecond(t.HandOffs, took),
		"wait50":   quantileOf(&t.Wait, 0.50),
		"wait99":   quantileOf(&t.Wait, 0.99),
		"handoff":  quantileOf(&t.HandOff, 0.50),
		"across":   quantileOf(&t.Across, 0.50),
	}
}

// effort is the work and the CPU time until a moment.
type effort struct {
	at             time.Time
	client, server time.Duration // CPU
	entered        int64
	counts         map[string]int64 // the server's counters, by metric
}

// effortOf asks the server first, so that the request is not part of a measurement that
// begins here.
func effortOf(e *env, w *workload, a *arena, count bool) (f effort, err error) {
	if f.server, err = e.serverCPU(w.system); err != nil {
		return f, err
	}
	if e.commands != nil {
		pushes, err := e.pushes()
		if err != nil {
			return f, err
		}
		f.counts = map[string]int64{"commands": e.commands.n.Load(), "pushes": pushes}
	}
	if server := e.servers[w.system]; count && server != nil && server.work != nil {
		done, err := server.work()
		if err != nil {
			return f, err
		}
		f.counts = map[string]int64{"requests": done.requests, "commits": done.commits}
	}
	f.entered = a.total.Load()
	f.at, f.client = time.Now(), cpuTime()
	return f, nil
}

// since is the metrics since an earlier effort, for each acquisition.
func (f effort) since(o effort) metrics {
	entered := float64(f.entered - o.entered)
	m := metrics{
		"cpu":       float64(f.client-o.client) / entered,
		"servercpu": float64(f.server-o.server) / entered,
	}
	for metric, n := range f.counts {
		m[metric] = float64(n-o.counts[metric]) / entered
	}
	return m
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// measureKeys lets n goroutines each lock and unlock a separate key.
func measureKeys(n int) func(context.Context, *bench, *workload, rival) (metrics, error) {
	return measureRate(n, 1, func(b *bench, w *workload, rv rival) func(int) func() string {
		return func(int) func() string {
			key := b.env.key(w.name, rv.name)
			return func() string { return key }
		}
	})
}

// measureDecisions lets n goroutines ask about that many keys, each about another key at
// every request, and measures the time of batches.
func measureDecisions(n, keys, batch int) func(context.Context, *bench, *workload, rival) (metrics, error) {
	return measureRate(n, batch, func(b *bench, w *workload, rv rival) func(int) func() string {
		all := make([]string, keys)
		for i := range all {
			all[i] = b.env.key(w.name, rv.name)
		}
		return func(i int) func() string {
			next := new(place) // in a separate cache line, or the goroutines would slow each other down
			next.at = i * keys / n
			return func() string {
				next.at = (next.at + 7919) % keys // a prime: all keys, in an order that does not suit caches
				return all[next.at]
			}
		}
	})
}

type place struct {
	at int
	_  [128]byte
}

// measureRate lets n goroutines lock and unlock without deliberate competition. keysOf makes
// for each of them the function that names its next key.
func measureRate(n, batch int, keysOf func(*bench, *workload, rival) func(i int) func() string) func(context.Context, *bench, *workload, rival) (metrics, error) {
	return func(ctx context.Context, b *bench, w *workload, rv rival) (metrics, error) {
		r, err := rv.open(b.env, n)
		if err != nil {
			return nil, err
		}
		defer r.close()
		var phase atomic.Int32
		var wg sync.WaitGroup
		times := make([]measure.Histogram, n)
		errs := make([]error, n)
		keys := keysOf(b, w, rv)
		for i := range n {
			s, next := r.seat(i), keys(i)
			wg.Go(func() {
				var h measure.Histogram
				for phase.Load() != stopped && errs[i] == nil {
					start := now()
					for range batch {
						held, err := s.Lock(ctx, next())
						if err == nil {
							err = held.Unlock()
						}
						if err != nil {
							errs[i] = err
							break
						}
					}
					if phase.Load() == measuring {
						h.Add(time.Duration(now() - start))
					}
				}
				times[i] = h
			})
		}
		err = sleep(ctx, b.warmUp(rv))
		stopProfile, failed := b.profile(w, rv.name)
		if failed != nil {
			stopProfile = func() {}
			err = failed
		}
		before, asked := effortOf(b.env, w, new(arena), false)
		phase.Store(measuring)
		if err == nil {
			err = sleep(ctx, b.timeOf(w))
		}
		phase.Store(stopped)
		took := time.Since(before.at)
		after, askedAgain := effortOf(b.env, w, new(arena), false)
		stopProfile()
		wg.Wait()
		if err := cmp.Or(err, asked, askedAgain); err != nil {
			return nil, err
		}
		var sum measure.Histogram
		for i := range n {
			if errs[i] != nil {
				return nil, errs[i]
			}
			sum.Merge(&times[i])
		}
		done := sum.N * int64(batch)
		return metrics{
			"rate":      perSecond(done, took),
			"p50":       quantileOf(&sum, 0.50) / float64(batch),
			"p99":       quantileOf(&sum, 0.99) / float64(batch),
			"cpu":       float64(after.client-before.client) / float64(done),
			"servercpu": float64(after.server-before.server) / float64(done),
		}, nil
	}
}

// measureProcesses lets goroutines of several processes compete for one key; pinned
// puts all of them on the CPU of the server.
func measureProcesses(processes, goroutines int, pinned bool) func(context.Context, *bench, *workload, rival) (metrics, error) {
	return func(ctx context.Context, b *bench, w *workload, rv rival) (metrics, error) {
		if !pinned {
			return fightOfProcesses(ctx, b, w, rv, processes, goroutines, nil)
		}
		start, undo, err := b.pin(w.system)
		if err != nil {
			return nil, err
		}
		defer undo()
		return fightOfProcesses(ctx, b, w, rv, processes, goroutines, start)
	}
}

func fightOfProcesses(ctx context.Context, b *bench, w *workload, rv rival, processes, goroutines int, start func(*exec.Cmd) error) (metrics, error) {
	file := filepath.Join(b.env.dir, "arena")
	memory, err := sharedMemory(file, arenaSize)
	if err != nil {
		return nil, err
	}
	defer func() {
		unmap(memory)
		_ = os.Remove(file) // the directory is removed with the run
	}()
	a := (*arena)(unsafe.Pointer(&memory[0]))
	key := b.env.key(w.name, rv.name)
	if rv.prepare != nil {
		if err := rv.prepare(b.env, key); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the children that are left after an error
	var children []*child
	for i := range processes {
		order := childOrder{
			Kind: "fight", System: w.system, At: b.env.at, Rivals: []string{rv.name},
			Process: i, Goroutines: goroutines, Key: key, Arena: file,
		}
		if i == 0 {
			order.Profile = b.profilePath(w, rv.name)
		}
		c, err := startChild(ctx, order, start)
		if err != nil {
			return nil, err
		}
		children = append(children, c)
	}
	for _, c := range children {
		if err := c.ready(); err != nil {
			return nil, err
		}
	}
	for _, c := range children {
		if err := c.begin(); err != nil {
			return nil, err
		}
	}
	if err := sleep(ctx, b.warmUp(rv)); err != nil {
		return nil, err
	}
	before, err := effortOf(b.env, w, a, false)
	if err != nil {
		return nil, err
	}
	a.phase.Store(measuring)
	if err := sleep(ctx, b.timeOf(w)); err != nil {
		return nil, err
	}
	a.phase.Store(stopped)
	took := time.Since(before.at)
	after, err := effortOf(b.env, w, a, false)
	if err != nil {
		return nil, err
	}

	impatient := time.AfterFunc(patience, func() {
		for _, c := range children {
			c.hurry()
		}
	})
	defer impatient.Stop()
	var sum tally
	var each []int64
	for _, c := range children {
		var t tally
		if err := c.finish(&t); err != nil {
			return nil, err
		}
		each = append(each, t.acquired())
		sum.merge(t)
	}
	if err := a.verdict(sum); err != nil {
		return nil, err
	}
	m := contendedMetrics(sum, took)
	b.noteStuck(w, rv, sum)
	m["servercpu"] = after.since(before)["servercpu"]
	m["spread"] = measure.MostOverLeast(each)
	return m, nil
}

// childFight is measureProcesses in one of the processes.
func childFight(ctx context.Context, order childOrder, ready func() error) (any, error) {
	rv, err := findRival(order.System, order.Rivals[0])
	if err != nil {
		return nil, err
	}
	memory, err := sharedMemory(order.Arena, arenaSize)
	if err != nil {
		return nil, fmt.Errorf("share the arena: %w", err)
	}
	defer unmap(memory)
	a := (*arena)(unsafe.Pointer(&memory[0]))
	r, err := rv.open(&env{at: order.At}, order.Goroutines)
	if err != nil {
		return nil, err
	}
	defer r.close()
	if err := ready(); err != nil {
		return nil, err
	}
	return fight(ctx, a, r, order.Process, order.Goroutines, order.Key), nil
}
