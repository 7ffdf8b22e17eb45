//go:build linux

package faulttest

import (
	"context"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/open"
)

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
