//go:build linux

package faulttest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/open"
)

// A store that many goroutines used, of which some gave up, is closed at any moment: no
// goroutine of it is left. BATON_CLOSES=10000 makes more of it.
func TestCloseLeavesNoGoroutine(t *testing.T) {
	closes := fromEnv("BATON_CLOSES", 5)
	oneByOne(t, func(t *testing.T, url string) {
		rng := rand.New(rand.NewPCG(rand.Uint64(), 9))
		before := runtime.NumGoroutine()
		for range closes {
			useAndClose(t, url, rng)
			noneLeft(t, before, 10*time.Second)
		}
	})
}

// A caller that gives up while a store is opened leaves no goroutine either.
func TestOpenedInVainLeavesNoGoroutine(t *testing.T) {
	oneByOne(t, func(t *testing.T, url string) {
		before := runtime.NumGoroutine()
		inVain := 0
		for n := range 60 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(n)*100*time.Microsecond)
			store, err := open.Store(ctx, url)
			cancel()
			if err != nil {
				inVain++
			} else if err := store.Close(); err != nil {
				t.Error(err)
			}
		}
		if inVain == 0 {
			t.Error("all were opened in time")
		}
		noneLeft(t, before, 15*time.Second) // a dial ends by itself
	})
}

// useAndClose has many goroutines lock and unlock, some of which give up, and closes
// the store a while after they have ended.
func useAndClose(t *testing.T, url string, rng *rand.Rand) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	store := mustOpen(t, url)
	locks, err := baton.New(store, baton.Config{TTL: max(store.Traits().MinTTL, 600*time.Millisecond)})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 1 + rng.IntN(16) {
		rng := rand.New(rand.NewPCG(rng.Uint64(), 9))
		wg.Go(func() {
			for range 1 + rng.IntN(8) {
				attempt, patience := locks.Lock, time.Duration(rng.IntN(int(20*time.Millisecond)))
				switch rng.IntN(6) {
				case 0:
					patience = time.Minute
				case 1:
					attempt = locks.TryLock
				}
				var options []baton.Option
				if rng.IntN(4) == 0 && store.Traits().Shared {
					options = append(options, baton.Shared())
				}
				impatient, cancel := context.WithTimeout(ctx, patience)
				lease, err := attempt(impatient, fmt.Sprint(t.Name(), "/", rng.IntN(3)), options...)
				cancel()
				if err != nil {
					continue
				}
				if rng.IntN(8) == 0 {
					<-time.After(time.Duration(rng.IntN(int(400 * time.Millisecond)))) // it is renewed
				}
				_ = lease.Unlock() // lost on a busy machine
			}
		})
	}
	wg.Wait()
	if pause := time.Duration(rng.IntN(int(1200 * time.Millisecond))); rng.IntN(4) == 0 {
		<-time.After(pause) // at whatever the store does by itself
	}
	if err := store.Close(); err != nil {
		t.Error(err)
	}
}

// noneLeft waits until there are no more goroutines than before: they end without
// an event.
func noneLeft(t *testing.T, before int, patience time.Duration) {
	t.Helper()
	for end := time.Now().Add(patience); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			var b strings.Builder
			_ = pprof.Lookup("goroutine").WriteTo(&b, 1) // of a Builder
			t.Fatalf("after %v there are more goroutines than %d before:\n%s", patience, before, b.String())
		}
	}
}
