package baton_test

import (
	"context"
	"sync"
	"testing"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/store/memstore"
)

// The price of an uncontended critical section.
func BenchmarkPair(b *testing.B) {
	for name, ctx := range contexts(b) {
		b.Run(name, func(b *testing.B) {
			l := newLocker(b, memstore.New(), baton.Config{})
			b.ReportAllocs()
			for b.Loop() {
				lease, err := l.Lock(ctx, "k")
				if err != nil {
					b.Fatal(err)
				}
				lease.Unlock()
			}
		})
	}
}

func contexts(b *testing.B) map[string]context.Context {
	cancellable, cancel := context.WithCancel(context.Background())
	b.Cleanup(cancel)
	return map[string]context.Context{"background": context.Background(), "cancellable": cancellable}
}

// 64 goroutines at one key, beside the floor: a channel with room for one.
func BenchmarkContended(b *testing.B) {
	const goroutines = 64
	run := func(b *testing.B, section func()) {
		var wg sync.WaitGroup
		b.ReportAllocs()
		b.ResetTimer()
		for i := range goroutines {
			wg.Go(func() {
				for range (b.N + i) / goroutines {
					section()
				}
			})
		}
		wg.Wait()
	}
	b.Run("baton", func(b *testing.B) {
		l := newLocker(b, memstore.New(), baton.Config{})
		ctx := context.Background()
		run(b, func() {
			lease, err := l.Lock(ctx, "k")
			if err != nil {
				b.Error(err)
				return
			}
			lease.Unlock()
		})
	})
	b.Run("channel", func(b *testing.B) {
		lock := make(chan struct{}, 1)
		run(b, func() {
			lock <- struct{}{}
			<-lock
		})
	})
}
