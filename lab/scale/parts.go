package scale

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/agent"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/open"
	"github.com/batonhq/baton/ratelimit"
)

// maxRate bounds the rate of an open loop. Above it the loop takes more of the machine than
// the measured store.
const maxRate = 50_000

// round keeps three digits.
func round(v float64) float64 {
	if v == 0 || math.IsInf(v, 0) || math.IsNaN(v) {
		return 0
	}
	s, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 3, 64), 64)
	return s
}

// measureRates measures do on names drawn from that many keys.
func measureRates(ctx context.Context, o *order, keys int, do request) (r rates, err error) {
	if _, err := most(ctx, callers, o.Plan.Most/5, do); err != nil { // connects, and makes tables
		return r, err
	}
	m := watch(ctx, &o.At)
	perSecond, err := most(ctx, callers, o.Plan.Most, do)
	if err != nil {
		return r, err
	}
	if err := m.stop(ctx); err != nil {
		return r, err
	}
	r = rates{Keys: keys, Most: round(perSecond), ServerCPU: round(m.serverCPU / (perSecond * o.Plan.Most.Seconds()))}
	for _, load := range o.Plan.Loads {
		if load*perSecond > maxRate {
			load = maxRate / perSecond
		}
		x := openLoop(ctx, load*perSecond, o.Plan.Open, do)
		x.Load, x.Rate = round(load), round(x.Rate)
		r.Open = append(r.Open, x)
		if x.Rate >= maxRate {
			break
		}
	}
	return r, nil
}

func measurePairs(ctx context.Context, o *order) (rates, error) {
	locker, err := openLocker(ctx, o, 0, nil)
	if err != nil {
		return rates{}, err
	}
	return measureRates(ctx, o, o.Plan.Keys, pair(locker, o.Name, o.Plan.Keys))
}

// openLocker opens the store. A ttl of 0 means the default.
func openLocker(ctx context.Context, o *order, ttl time.Duration, events *baton.Events) (*baton.Locker, error) {
	store, err := open.Store(ctx, o.At.URL)
	if err != nil {
		return nil, err
	}
	return baton.New(store, baton.Config{TTL: ttl, Events: events})
}

// pair locks and unlocks one of that many keys.
func pair(locker *baton.Locker, name string, keys int) request {
	return func(ctx context.Context, random uint64) error {
		lease, err := locker.Lock(ctx, name+"/"+strconv.Itoa(int(random%uint64(keys))))
		if err != nil {
			return err
		}
		return lease.Unlock()
	}
}

func measureLimits(ctx context.Context, o *order) (all []rates, err error) {
	store, err := open.Limits(ctx, o.At.URL)
	if err != nil {
		return nil, err
	}
	// The limit is so high that everything is allowed: an allowed request costs a write.
	limiter, err := ratelimit.New(store, ratelimit.TokenBucket(100_000_000, time.Second, 100_000_000))
	if err != nil {
		return nil, err
	}
	for _, keys := range o.Plan.LimitKeys {
		r, err := measureRates(ctx, o, keys, func(ctx context.Context, random uint64) error {
			ok, err := limiter.Allowed(ctx, o.Name+"/"+strconv.Itoa(int(random%uint64(keys))))
			if err == nil && !ok {
				err = errors.New("a decision that must be yes is no")
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

// measureLeases holds growing numbers of leases.
func measureLeases(ctx context.Context, o *order) (all []leases, err error) {
	var renewals, lost atomic.Int64
	var slowest, tick atomic.Int64
	locker, err := openLocker(ctx, o, o.Plan.TTL, &baton.Events{
		Renewed: func(_ context.Context, e baton.RenewalEvent) {
			renewals.Add(1)
			tick.Store(time.Now().Add(-e.Took).UnixNano())
			for was := slowest.Load(); int64(e.Took) > was && !slowest.CompareAndSwap(was, int64(e.Took)); was = slowest.Load() {
			}
		},
		Lost: func(context.Context, baton.LockEvent) { lost.Add(1) },
	})
	if err != nil {
		return nil, err
	}
	if err := pair(locker, o.Name, 1)(ctx, 0); err != nil { // connects, and makes tables
		return nil, err
	}
	period := o.Plan.TTL / 3
	serverBefore, heapBefore := processMemory(o.At.PIDs), heapInUse()
	held := 0
	for i, n := range o.Plan.Leases {
		x := leases{N: n}
		if x.Acquired, x.Failed = take(ctx, o, locker, held, n); x.Failed != "" {
			for _, more := range o.Plan.Leases[i:] {
				all = append(all, leases{N: more, Failed: x.Failed})
			}
			return all, nil
		}
		held = n
		x.ClientBytes = round(max(0, heapInUse()-heapBefore) / float64(n))
		if len(o.At.PIDs) > 0 && n >= 1000 {
			x.ServerBytes = round(max(0, processMemory(o.At.PIDs)-serverBefore) / float64(n))
		}

		if o.At.scheme() == "mysql" {
			time.Sleep(sweepPasses) // the sweep reads all new keys, and its statements would count
		}
		// Begin between two ticks, the first of which renewed all leases.
		awaitTick(&renewals)
		at := time.Unix(0, tick.Load()).Add(period * 7 / 10)
		time.Sleep(time.Until(at))
		slowest.Store(0)
		calls := renewals.Load()
		m := watch(ctx, &o.At)
		time.Sleep(period)
		if err := m.stop(ctx); err != nil {
			return all, err
		}
		x.Requests, x.Commits, x.ClientCPU, x.ServerCPU = m.requests, m.commits, m.clientCPU, m.serverCPU
		if o.At.scheme() == "memory" {
			x.Requests = float64(renewals.Load() - calls)
		}
		x.Took = round(time.Duration(slowest.Load()).Seconds())
		if o.Rate > 0 && n > 1 {
			b := openLoop(ctx, o.Rate, period, pair(locker, o.Name+"-beside", o.Plan.Keys))
			b.Load, b.Rate = beside, round(b.Rate)
			x.Beside = &b
		}
		x.Lost = lost.Load()
		all = append(all, x)
	}
	return all, nil
}

// sweepPasses is the longest time until mysqlstore begins its next sweep, plus a second.
const sweepPasses = 16 * time.Second

// take locks the keys from one number to another.
func take(ctx context.Context, o *order, locker *baton.Locker, from, to int) (perSecond float64, failed string) {
	began := time.Now()
	var next atomic.Int64
	next.Store(int64(from))
	var why atomic.Pointer[string]
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for why.Load() == nil {
				i := int(next.Add(1)) - 1
				if i >= to {
					return
				}
				name := o.Name + "/" + strconv.Itoa(i)
				_, err := locker.Lock(ctx, name)
				if err != nil { // on a machine that is busy with other work: the key may stay taken for a TTL
					_, err = locker.Lock(ctx, name+"/again")
				}
				text := ""
				switch {
				case err != nil:
					text = err.Error()
				case time.Since(began) > o.Plan.Patience && i < to-1:
					text = fmt.Sprintf("after %v only %d were taken", o.Plan.Patience, i)
				}
				if text != "" {
					why.CompareAndSwap(nil, &text)
				}
			}
		})
	}
	wg.Wait()
	if text := why.Load(); text != nil {
		return 0, *text
	}
	return round(float64(to-from) / time.Since(began).Seconds()), ""
}

// awaitTick returns after the next renewal.
func awaitTick(renewals *atomic.Int64) {
	for was := renewals.Load(); renewals.Load() == was; {
		time.Sleep(time.Millisecond)
	}
}

func heapInUse() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// measureWaiters lets n callers wait for one key, and then hands the lock round.
func measureWaiters(ctx context.Context, o *order) (w waiters, err error) {
	w = waiters{N: o.N, How: o.How}
	store, err := open.Store(ctx, o.At.URL)
	if err != nil {
		return w, err
	}
	const together = 64 // callers that ask at a time
	asking := make(chan struct{}, together)
	var stand, served atomic.Int64
	all := make(chan struct{})
	cfg := baton.Config{Events: &baton.Events{Waiting: func(context.Context, baton.LockEvent) {
		<-asking
		if stand.Add(1) == int64(o.N) {
			close(all)
		}
	}}}
	first, err := baton.New(store, baton.Config{})
	if err != nil {
		return w, err
	}
	held, err := first.Lock(ctx, o.Name)
	if err != nil {
		return w, err
	}
	lock, err := asker(store, cfg, o)
	if err != nil {
		return w, err
	}
	failed, done := make(chan error, o.N), make(chan struct{})
	var last atomic.Int64
	enough := time.After(o.Plan.Patience)
	for i := range o.N {
		select {
		case asking <- struct{}{}:
		case err := <-failed:
			return w, err
		case <-enough:
			return w, fmt.Errorf("after %v only %d of %d wait", o.Plan.Patience, stand.Load(), o.N)
		}
		go func() {
			unlock, err := lock(ctx, i)
			if err != nil {
				failed <- err
				return
			}
			last.Store(time.Now().UnixNano())
			if served.Add(1) == int64(o.N) {
				defer close(done)
			}
			if err := unlock(); err != nil {
				failed <- err
			}
		}()
	}
	select {
	case <-all:
	case err := <-failed:
		return w, err
	case <-enough:
		return w, fmt.Errorf("after %v only %d of %d wait", o.Plan.Patience, stand.Load(), o.N)
	}
	m := watch(ctx, &o.At)
	time.Sleep(o.Plan.Waiting)
	if err := m.stop(ctx); err != nil {
		return w, err
	}
	w.Requests = round(m.requests / m.lasted.Seconds())

	m = watch(ctx, &o.At)
	began := time.Now()
	if err := held.Unlock(); err != nil {
		return w, err
	}
	select {
	case <-done:
	case <-time.After(o.Plan.Drain):
	case err := <-failed:
		return w, err
	}
	if err := m.stop(ctx); err != nil {
		return w, err
	}
	w.Served = int(served.Load())
	if w.Served == 0 {
		return w, errors.New("nobody got the lock")
	}
	w.HandOver = round(time.Unix(0, last.Load()).Sub(began).Seconds() / float64(w.Served))
	w.Cost = round(m.requests / float64(w.Served))
	select {
	case err := <-failed:
		return w, err
	default:
		return w, nil
	}
}

// asker returns the function of the i-th waiter.
func asker(store driver.Locks, cfg baton.Config, o *order) (func(ctx context.Context, i int) (unlock func() error, err error), error) {
	of := func(l *baton.Locker) (func() error, error) {
		lease, err := l.Lock(context.Background(), o.Name)
		if err != nil {
			return nil, err
		}
		return lease.Unlock, nil
	}
	if o.How == "apart" {
		return func(context.Context, int) (func() error, error) {
			l, err := baton.New(store, cfg)
			if err != nil {
				return nil, err
			}
			return of(l)
		}, nil
	}
	one, err := baton.New(store, cfg)
	if err != nil {
		return nil, err
	}
	if o.How == "local" {
		return func(context.Context, int) (func() error, error) { return of(one) }, nil
	}
	server, err := agent.New(one, agent.Config{})
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "baton-scale-")
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(dir, "agent.sock")
	l, err := agent.Listen(socket, 0o600)
	if err != nil {
		return nil, err
	}
	go func() { _ = server.Serve(context.Background(), l) }() // until the process ends
	return func(context.Context, int) (func() error, error) {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			return nil, err
		}
		in := bufio.NewReader(conn)
		if _, err := in.ReadBytes('\n'); err != nil { // the greeting
			return nil, err
		}
		say := func(line string) error {
			if _, err := conn.Write([]byte(line + "\n")); err != nil {
				return err
			}
			text, err := in.ReadString('\n')
			if err == nil && !strings.Contains(text, `"ok":true`) {
				err = fmt.Errorf("the agent said %q", text)
			}
			return err
		}
		key, err := json.Marshal(o.Name)
		if err != nil {
			return nil, err
		}
		if err := say(`{"id":1,"do":"lock","key":` + string(key) + `}`); err != nil {
			return nil, err
		}
		return func() error { return say(`{"id":2,"do":"unlock","lock":1}`) }, nil
	}, nil
}

// hold holds a few leases until the process ends.
func hold(ctx context.Context, o *order) (int, error) {
	locker, err := openLocker(ctx, o, o.Plan.TTL, nil)
	if err != nil {
		return 0, err
	}
	for i := range o.N {
		if _, err := locker.Lock(ctx, o.Name+"/"+strconv.Itoa(i)); err != nil {
			return i, err
		}
	}
	return o.N, nil
}
