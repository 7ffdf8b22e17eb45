package batontemporal_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/workflow"

	"github.com/batonhq/baton"
	batontemporal "github.com/batonhq/baton/adapters/temporal"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/ratelimit/joblimit"
	"github.com/batonhq/baton/store/redisstore"
)

// Workers with clients of their own of the store never run more
// activities of a key than its cap, and burn no attempt for what goes back.
func TestFleet(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	const workers, keys, each, running = 4, 10, 5, 3
	addr := testserver.Redis(t).Addr
	var now, ran [keys]atomic.Int64
	var most, back atomic.Int64
	work := func(ctx context.Context, name string, k int) error {
		n := now[k].Add(1)
		defer now[k].Add(-1)
		if n > running {
			t.Errorf("%d activities of %s run", n, name)
		}
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		if activity.GetInfo(ctx).Attempt != 1 {
			t.Error("an activity has lost an attempt")
		}
		time.Sleep(10 * time.Millisecond) // the work
		ran[k].Add(1)
		return nil
	}
	var all sync.WaitGroup
	for range workers {
		store, err := redisstore.Open(t.Context(), redisstore.Server{Addrs: []string{addr}}, redisstore.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		locks, err := baton.New(store, baton.Config{TTL: 2 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		env := workflowEnv(t, byWorkflow, joblimit.Config{Locks: locks, Running: running, Wait: 20 * time.Millisecond})
		env.RegisterActivity(work)
		env.SetOnTimerFiredListener(func(string) { back.Add(1) })
		all.Go(func() {
			env.ExecuteWorkflow(func(ctx workflow.Context) error {
				var futures []workflow.Future
				for i := range keys * each {
					futures = append(futures, batontemporal.ExecuteActivity(withTimeout(ctx, 1), work, fmt.Sprint("key", i%keys), i%keys))
				}
				for _, future := range futures {
					if err := future.Get(ctx, nil); err != nil {
						return err
					}
				}
				return nil
			})
			if err := env.GetWorkflowError(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for k := range keys {
		if ran[k].Load() != workers*each {
			t.Errorf("%d activities of key%d have run: want %d", ran[k].Load(), k, workers*each)
		}
	}
	if back.Load() == 0 || most.Load() < running {
		t.Errorf("%d activities went back, at most %d of a key ran at a time: the test shows nothing", back.Load(), most.Load())
	}
	t.Logf("%d activities of %d keys went back %d times", workers*keys*each, keys, back.Load())
}
