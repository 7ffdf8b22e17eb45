package ratelimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/store/memstore"
)

// BenchmarkAllow measures a decision in memory that is told to nobody.
func BenchmarkAllow(b *testing.B) {
	for name, limit := range map[string]ratelimit.Limit{
		"bucket": ratelimit.TokenBucket(1e9, time.Second, 1e6),
		"window": ratelimit.SlidingWindow(1e12, time.Second),
	} {
		l, err := ratelimit.New(memstore.New(), limit)
		if err != nil {
			b.Fatal(err)
		}
		ctx := context.Background()
		b.Run(name+"/Allow", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = l.Allow(ctx, "k")
			}
		})
		b.Run(name+"/AllowN", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = l.AllowN(ctx, "k", 1)
			}
		})
		b.Run(name+"/Allowed", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = l.Allowed(ctx, "k")
			}
		})
		b.Run(name+"/Reserve", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = l.Reserve(ctx, "k", 1)
			}
		})
	}
}

// BenchmarkAllowTold measures one that is told.
func BenchmarkAllowTold(b *testing.B) {
	for name, opt := range map[string]ratelimit.Option{
		"nothing": ratelimit.Observe(nil),
		"failing": ratelimit.Observe(&ratelimit.Events{Degraded: func(context.Context, ratelimit.FallbackEvent) {}}),
		"decided": ratelimit.Observe(&ratelimit.Events{Decided: func(context.Context, ratelimit.DecisionEvent) {}}),
	} {
		l, err := ratelimit.New(memstore.New(), ratelimit.TokenBucket(1e9, time.Second, 1e6), opt)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = l.Allow(context.Background(), "k")
			}
		})
	}
}
