package scale

import (
	"container/heap"
	"math/rand/v2"
	"slices"
)

// model is a server in the simulation: it does one command after the other, in the order in
// which they arrive.
type model struct {
	pair   float64   // seconds of its time that locking and unlocking a key takes
	batch  float64   // seconds that an empty renewal command takes
	claim  float64   // additional seconds for each lease of the command
	claims int       // most leases of a command; 0: no bound
	floor  []float64 // latencies of pairs on an idle server, at each of quantiles
}

// demand is the load on a server.
type demand struct {
	pairs     float64 // per second, at the moments of a Poisson process
	leases    int
	processes int     // that hold them, in equal parts
	period    float64 // seconds between two renewals of a lease
	together  bool    // all processes renew at the same ticks, like those of one machine
}

// prediction is the result.
type prediction struct {
	seconds []float64 // latencies of pairs at each of quantiles
	busy    float64   // the fraction of its time that the server works
	longest float64   // seconds from a tick to the last answer to a process
}

func (p *prediction) at(q float64) float64 { return p.seconds[slices.Index(quantiles, q)] }

// simulate runs a server for some seconds of simulated time. A process sends its next renewal
// command after the answer to the previous one; pairs do not wait. A demand of more time than
// the server has gives a result that shows only that.
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
	free, worked := 0.0, 0.0 // when the server is free
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

// draw returns the latency of the floor at the quantile u, by interpolation.
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

// burst is the renewal of a process at a tick.
type burst struct {
	tick   float64
	next   float64 // when it sends its next command
	left   int     // leases without renewal so far
	leases int
}

// bursts are sorted by the moments of their next commands.
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
