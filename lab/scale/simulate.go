package scale

import (
	"container/heap"
	"math/rand/v2"
	"slices"
)

// model is a server as the simulation has it: it does one thing after the other, in the
// order in which they come.
type model struct {
	pair   float64   // seconds that locking and unlocking a key takes of its time
	batch  float64   // seconds that a renewal command takes, whatever it carries
	claim  float64   // seconds more for each lease that the command carries
	claims int       // that a command carries at most; 0: there is no bound
	floor  []float64 // latencies of pairs where nothing else is asked, at each of quantiles
}

// demand is what is asked of a server.
type demand struct {
	pairs     float64 // per second, at the moments of a Poisson process
	leases    int
	processes int     // that hold them, each as many
	period    float64 // seconds between two renewals of a lease
	together  bool    // all processes renew at the same ticks, as those of one machine do
}

// prediction is what comes of it.
type prediction struct {
	seconds []float64 // latencies of pairs at each of quantiles
	busy    float64   // the part of its time that the server works
	longest float64   // seconds from a tick to the last answer to a process
}

func (p *prediction) at(q float64) float64 { return p.seconds[slices.Index(quantiles, q)] }

// simulate runs a server for some seconds of time that does not pass. A process sends its
// next renewal command when the one before was answered; pairs wait for nothing. The time
// that a server is asked for cannot be more than it has: then the result only says so.
func simulate(m model, d demand, seconds float64) prediction {
	random := rand.New(rand.NewPCG(3, 4)) // the same every time
	var renewing bursts
	if d.leases > 0 {
		each := d.leases / d.processes
		for range d.processes {
			b := &burst{tick: 0, leases: each}
			if !d.together {
				b.tick = random.Float64() * d.period
			}
			b.next, b.left = b.tick, each
			renewing = append(renewing, b)
		}
		heap.Init(&renewing)
	}
	var p prediction
	var latencies []float64
	pair := seconds
	if d.pairs > 0 {
		pair = random.ExpFloat64() / d.pairs
	}
	free, worked := 0.0, 0.0 // when the server is free again
	for {
		if len(renewing) > 0 && renewing[0].next < pair {
			b := renewing[0]
			if b.next >= seconds {
				break
			}
			n := b.left
			if m.claims > 0 {
				n = min(n, m.claims)
			}
			takes := m.batch + float64(n)*m.claim
			free = max(free, b.next) + takes
			worked += takes
			b.left -= n
			b.next = free
			if b.left == 0 {
				p.longest = max(p.longest, free-b.tick)
				for b.tick += d.period; b.tick < free; b.tick += d.period {
				}
				b.next, b.left = b.tick, b.leases
			}
			heap.Fix(&renewing, 0)
			continue
		}
		if pair >= seconds {
			break
		}
		waits := max(free-pair, 0)
		free = max(free, pair) + m.pair
		worked += m.pair
		latencies = append(latencies, waits+m.draw(random.Float64()))
		pair += random.ExpFloat64() / d.pairs
	}
	p.busy = min(1, worked/seconds)
	slices.Sort(latencies)
	for _, q := range quantiles {
		v := 0.0
		if n := len(latencies); n > 0 {
			v = latencies[min(n-1, int(q*float64(n)))]
		}
		p.seconds = append(p.seconds, v)
	}
	return p
}

// draw returns a latency of the floor: the one at the quantile u, between those that are
// known.
func (m *model) draw(u float64) float64 {
	low, at := 0.0, 0.0
	for i, q := range quantiles {
		if u <= q {
			if i == 0 {
				return m.floor[0]
			}
			return at + (m.floor[i]-at)*(u-low)/(q-low)
		}
		low, at = q, m.floor[i]
	}
	return at
}

// burst is what a process renews at a tick.
type burst struct {
	tick   float64
	next   float64 // when it sends its next command
	left   int     // leases that are still to be renewed
	leases int
}

// bursts are ordered by the moments of their next commands.
type bursts []*burst

func (b bursts) Len() int           { return len(b) }
func (b bursts) Less(i, j int) bool { return b[i].next < b[j].next }
func (b bursts) Swap(i, j int)      { b[i], b[j] = b[j], b[i] }
func (b *bursts) Push(x any)        { *b = append(*b, x.(*burst)) }
func (b *bursts) Pop() any {
	old := *b
	last := old[len(old)-1]
	*b = old[:len(old)-1]
	return last
}
