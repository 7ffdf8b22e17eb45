package scale

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/memstore"
)

// For a queue with random arrivals and a constant service time: of the requests that wait
// less than one service, (1-ρ)e^(λt) wait at most t.
func TestSimulationOfOneQueue(t *testing.T) {
	m := model{pair: 0.001, floor: make([]float64, len(quantiles))}
	p := simulate(m, demand{pairs: 500, period: 1}, 300)
	if want := 2 * math.Log(1.5) * 0.001; math.Abs(p.at(0.75)-want) > want/20 {
		t.Errorf("p75 is %v at half load, want %v", p.at(0.75), want)
	}
	if p.at(0.25) != 0 {
		t.Errorf("p25 is %v at half load, want 0: half of them find the server free", p.at(0.25))
	}
	if math.Abs(p.busy-0.5) > 0.02 {
		t.Errorf("the server works for %v of its time, want 0.5", p.busy)
	}
}

func TestSimulationOfRenewals(t *testing.T) {
	m := model{batch: 0.001, claim: 0.00001, claims: 200, floor: make([]float64, len(quantiles))}
	for _, c := range []struct {
		d             demand
		longest, busy float64
	}{
		{demand{leases: 1000, processes: 1, period: 5}, 0.015, 0.003},
		{demand{leases: 1000, processes: 10, period: 5, together: true}, 0.020, 0.004},
	} {
		p := simulate(m, c.d, 100)
		if math.Abs(p.longest-c.longest) > 1e-9 || math.Abs(p.busy-c.busy) > 1e-9 {
			t.Errorf("%+v: longest %v, busy %v; want %v, %v", c.d, p.longest, p.busy, c.longest, c.busy)
		}
	}
}

// slow is a store in memory whose renewals take the time of one server that does one command
// after the other.
type slow struct {
	*memstore.Store
	model    model
	server   chan struct{}
	commands atomic.Int64
}

func (s *slow) Renew(ctx context.Context, claims []driver.Claim, ttl time.Duration) []driver.Renewal {
	for n := len(claims); n > 0; {
		carried := min(n, s.model.claims)
		s.server <- struct{}{}
		// Only fake time passes: the bubble is the caller's.
		time.Sleep(time.Duration((s.model.batch + float64(carried)*s.model.claim) * float64(time.Second)))
		<-s.server
		s.commands.Add(1)
		n -= carried
	}
	return s.Store.Renew(ctx, claims, ttl)
}

// TestRealLockersAsSimulated lets up to 10 000 Lockers renew in fake time, and compares how
// many commands they send with the formula, and how long the renewals take with the
// simulation.
func TestRealLockersAsSimulated(t *testing.T) {
	const leases, ttl = 10_000, 15 * time.Second
	for _, processes := range []int{1, 100, 10_000} {
		t.Run(fmt.Sprint(processes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := model{batch: 50e-6, claim: 1e-6, claims: bills["Redis"].claims, floor: make([]float64, len(quantiles))}
				store := &slow{Store: memstore.New(), model: m, server: make(chan struct{}, 1)}
				defer store.Close()
				var longest, lost atomic.Int64
				events := &baton.Events{
					Renewed: func(_ context.Context, e baton.RenewalEvent) {
						for was := longest.Load(); int64(e.Took) > was && !longest.CompareAndSwap(was, int64(e.Took)); was = longest.Load() {
						}
					},
					Lost: func(context.Context, baton.LockEvent) { lost.Add(1) },
				}
				each := leases / processes
				var all []*baton.Lease
				for p := range processes {
					locker, err := baton.New(store, baton.Config{TTL: ttl, Events: events})
					if err != nil {
						t.Fatal(err)
					}
					for i := range each {
						lease, err := locker.Lock(t.Context(), strconv.Itoa(p)+"/"+strconv.Itoa(i))
						if err != nil {
							t.Fatal(err)
						}
						all = append(all, lease)
					}
				}
				const periods = 1
				time.Sleep(ttl / 3 / 2) // half a period before the ticks at the latest
				before := store.commands.Load()
				time.Sleep(periods * ttl / 3)
				commands := float64(store.commands.Load()-before) / periods
				for _, lease := range all {
					if err := lease.Unlock(); err != nil {
						t.Fatal(err)
					}
				}
				if want := float64(processes) * bills["Redis"].requests(each); commands != want || lost.Load() > 0 {
					t.Errorf("%v commands in a period, the formula says %v; %d leases were lost", commands, want, lost.Load())
				}
				want := simulate(m, demand{leases: leases, processes: processes, period: (ttl / 3).Seconds(), together: true}, 60).longest
				if got := time.Duration(longest.Load()).Seconds(); math.Abs(got-want) > want/20 {
					t.Errorf("the longest renewal took %v s, the simulation says %v s", got, want)
				}
			})
		})
	}
}
