package scale

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton/lab/measure"
)

// request is a measured operation; random chooses its key.
type request func(ctx context.Context, random uint64) error

// most lets n callers work as fast as they can for a time.
func most(ctx context.Context, n int, d time.Duration, do request) (perSecond float64, err error) {
	var done atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	began := time.Now()
	for range n {
		wg.Go(func() {
			for time.Since(began) < d {
				if err := do(ctx, rand.Uint64()); err != nil {
					failed.CompareAndSwap(nil, &err)
					return
				}
				done.Add(1)
			}
		})
	}
	wg.Wait()
	if e := failed.Load(); e != nil {
		return 0, *e
	}
	return float64(done.Load()) / time.Since(began).Seconds(), nil
}

// maxUnderWay bounds the goroutines of an open loop. More are an overload, not a queue at
// the store.
const maxUnderWay = 50_000

// openLoop starts requests at the moments of a Poisson process, even while earlier ones are
// running. Each latency counts from that moment, so it includes the delay of a late start.
func openLoop(ctx context.Context, rate float64, d time.Duration, do request) opened {
	random := rand.New(rand.NewPCG(1, 2)) // the same arrivals every time
	var mu sync.Mutex
	var latencies measure.Histogram
	var underWay, failed atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for at := time.Duration(0); at < d; at += time.Duration(random.ExpFloat64() / rate * float64(time.Second)) {
		if pause := at - time.Since(began); pause > 0 {
			time.Sleep(pause)
		}
		if underWay.Add(1) > maxUnderWay {
			underWay.Add(-1)
			failed.Add(1)
			continue
		}
		intended, key := began.Add(at), random.Uint64()
		wg.Go(func() {
			err := do(ctx, key)
			took := time.Since(intended)
			underWay.Add(-1)
			if err != nil {
				failed.Add(1)
				return
			}
			mu.Lock()
			latencies.Add(took)
			mu.Unlock()
		})
	}
	wg.Wait()
	o := opened{Rate: rate, N: latencies.N, Failed: failed.Load()}
	for _, q := range quantiles {
		o.Seconds = append(o.Seconds, round(latencies.Quantile(q).Seconds()))
	}
	return o
}
