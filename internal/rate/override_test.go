package rate_test

import (
	"testing"
	"time"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/rate"
)

func TestOverrideText(t *testing.T) {
	t.Parallel()
	const now = 1_790_000_000_000_000
	o := limits.Override{Key: "k", N: 1<<51 - 1, Period: time.Hour, Burst: 7}
	kept := rate.NewOverride(o, now, time.Minute+time.Nanosecond)
	read, ok := rate.ParseOverride(kept.Text())
	if !ok || read != kept || kept.Until != now+60_000_001 {
		t.Errorf("%+v is read as %+v, %v", kept, read, ok)
	}
	o.Left = time.Minute
	if got, lasts := kept.At("k", now+1); !lasts || got != o {
		t.Errorf("%+v, %v, want %+v", got, lasts, o)
	}
	if got, lasts := kept.At("k", kept.Until); lasts {
		t.Errorf("at its end: %+v", got)
	}
	for _, text := range []string{"", "5", "5 0 0", "5 0 0 1 1", "-5 0 0 1", "5 -1 0 1", "5 0 0 99999999999999999999", "5  0 1", "5 0 0 1 ", " 5 0 0 1", "5 0 0 x"} {
		if got, ok := rate.ParseOverride(text); ok {
			t.Errorf("%q is read as %+v", text, got)
		}
	}
}
