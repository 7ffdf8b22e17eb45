package main

import (
	"cmp"
	"context"
	"fmt"
	"os/exec"
	"time"
)

// pairsPerBlock is how many pairs a rival makes before the next rival.
const pairsPerBlock = 100

// Pairing says how pairs are measured.
type Pairing struct {
	Each  time.Duration // the time for each rival
	Batch int           // pairs per measured time; with 1 the quantiles are exact
	Fresh bool          // a new key for each pair
	Age   int           // how often the key was locked before
	Crowd int           // goroutines that locked separate keys at the same time before
}

// interleave lets one goroutine lock and unlock a key for each rival, in blocks that
// alternate.
func interleave(ctx context.Context, e *env, rivals []rival, p Pairing) (map[string]metrics, error) {
	type runner struct {
		name  string
		seat  seat
		key   string
		times []int64 // ns, of batches
		spent time.Duration
	}
	ctx, cancel := context.WithCancel(ctx) // cancellable, like the contexts of most callers
	defer cancel()
	var runners []*runner
	for _, rv := range rivals {
		room, err := rv.open(e, max(1, p.Crowd))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", rv.name, err)
		}
		defer room.close()
		r := &runner{name: rv.name, seat: room.seat(0), key: e.key("pair", rv.name)}
		if rv.prepare != nil {
			if err := rv.prepare(e, r.key); err != nil {
				return nil, fmt.Errorf("%s: %w", rv.name, err)
			}
		}
		if err := crowd(ctx, e, rv.name, room, p.Crowd); err != nil {
			return nil, fmt.Errorf("%s: %w", rv.name, err)
		}
		runners = append(runners, r)
	}
	block := func(r *runner, record bool) error {
		for range pairsPerBlock {
			if p.Fresh {
				r.key = e.key("fresh", r.name)
			}
			start := time.Now()
			for range p.Batch {
				held, err := r.seat.Lock(ctx, r.key)
				if err != nil {
					return fmt.Errorf("%s: lock: %w", r.name, err)
				}
				if err := held.Unlock(); err != nil {
					return fmt.Errorf("%s: unlock: %w", r.name, err)
				}
			}
			if record {
				took := time.Since(start)
				r.times = append(r.times, int64(took))
				r.spent += took
			}
		}
		return nil
	}
	for _, r := range runners { // make connections, load scripts, prepare statements
		for done := 0; done < max(1, p.Age); done += pairsPerBlock * p.Batch {
			if err := block(r, false); err != nil {
				return nil, err
			}
		}
	}
	for end := time.Now().Add(p.Each * time.Duration(len(runners))); time.Now().Before(end) || len(runners[0].times) == 0; {
		for _, r := range runners {
			if err := block(r, true); err != nil {
				return nil, err
			}
		}
	}
	all := make(map[string]metrics)
	for _, r := range runners {
		all[r.name] = metrics{
			"p50":   quantile(r.times, 0.50) / float64(p.Batch),
			"p99":   quantile(r.times, 0.99) / float64(p.Batch),
			"rate":  perSecond(int64(len(r.times)*p.Batch), r.spent),
			"pairs": float64(len(r.times) * p.Batch),
		}
	}
	return all, nil
}

// crowd lets n goroutines lock and unlock separate keys for a time.
func crowd(ctx context.Context, e *env, rival string, room *room, n int) error {
	failed := make(chan error, n)
	for i := range n {
		seat, key := room.seat(i), e.key("crowd", rival)
		go func() {
			var err error
			for end := time.Now().Add(200 * time.Millisecond); err == nil && time.Now().Before(end); {
				var held unlocker
				if held, err = seat.Lock(ctx, key); err == nil {
					err = held.Unlock()
				}
			}
			failed <- err
		}()
	}
	var first error
	for range n {
		first = cmp.Or(first, <-failed)
	}
	return first
}

// measurePair interleaves in this process.
func measurePair(p Pairing) func(context.Context, *bench, *workload, []rival) (map[string]metrics, error) {
	return func(ctx context.Context, b *bench, w *workload, rivals []rival) (map[string]metrics, error) {
		stop, err := b.profile(w, rivals[len(rivals)-1].name)
		if err != nil {
			return nil, err
		}
		p := p
		p.Each = b.time
		all, err := interleave(ctx, b.env, rivals, p)
		stop()
		for _, r := range rivals {
			b.progress(w, r.name, all[r.name])
		}
		return all, err
	}
}

// measurePairPinned interleaves in another process, which shares one CPU with the server:
// a round trip then costs the work alone, without the wake-up of another CPU.
func measurePairPinned(ctx context.Context, b *bench, w *workload, rivals []rival) (map[string]metrics, error) {
	return pairPinned(ctx, b, w, rivals, Pairing{})
}

// measureFreshPinned is measurePairPinned with a key that was never locked for each
// pair.
func measureFreshPinned(ctx context.Context, b *bench, w *workload, rivals []rival) (map[string]metrics, error) {
	return pairPinned(ctx, b, w, rivals, Pairing{Fresh: true})
}

// measureAgedPinned is measurePairPinned with keys that have been locked many times.
func measureAgedPinned(ctx context.Context, b *bench, w *workload, rivals []rival) (map[string]metrics, error) {
	return pairPinned(ctx, b, w, rivals, Pairing{Age: b.age})
}

func pairPinned(ctx context.Context, b *bench, w *workload, rivals []rival, p Pairing) (map[string]metrics, error) {
	start, undo, err := b.pin(append(w.also, w.system)...)
	if err != nil {
		return nil, err
	}
	defer undo()
	p.Each, p.Batch = b.timeOf(w), 1
	order := childOrder{Kind: "pair", System: w.system, At: b.env.at, Pairing: p}
	for _, r := range rivals {
		order.Rivals = append(order.Rivals, r.name)
		if path := b.profilePath(w, r.name); path != "" {
			order.Profile = path
		}
	}
	c, err := startChild(ctx, order, start)
	if err != nil {
		return nil, err
	}
	var all map[string]metrics
	if err := c.finish(&all); err != nil {
		return nil, err
	}
	for _, r := range rivals {
		b.progress(w, r.name, all[r.name])
	}
	return all, nil
}

// pin puts the servers of systems on one CPU, until undo, and returns how to start a
// process there.
func (b *bench) pin(systems ...string) (start func(*exec.Cmd) error, undo func(), err error) {
	cpu, err := lastCPU()
	if err != nil {
		return nil, nil, err
	}
	var pids []int
	for _, system := range systems {
		pids = append(pids, b.env.servers[system].pids...)
	}
	if undo, err = pinProcesses(pids, cpu); err != nil {
		return nil, nil, err
	}
	return func(cmd *exec.Cmd) error {
		cmd.Env = append(cmd.Environ(), "GOMAXPROCS=1")
		return startPinned(cmd, cpu)
	}, undo, nil
}

// childPair is measurePairPinned in the child.
func childPair(ctx context.Context, order childOrder) (any, error) {
	var rivals []rival
	for _, name := range order.Rivals {
		r, err := findRival(order.System, name)
		if err != nil {
			return nil, err
		}
		rivals = append(rivals, r)
	}
	return interleave(ctx, &env{at: order.At}, rivals, order.Pairing)
}
