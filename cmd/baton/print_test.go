//go:build unix

package main

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/batonhq/baton/ratelimit"
)

// A caller who comes back at the time that is printed is not too early.
func TestTimesOfLimitsAreNotEarly(t *testing.T) {
	t.Parallel()
	for range 20_000 {
		d := time.Duration(rand.Int64N(int64(3 * time.Hour)))
		d >>= rand.IntN(44)
		j := limitJSON(ratelimit.Result{RetryAfter: d, NextAfter: d, ResetAfter: d})
		for _, s := range []float64{*j.RetryAfter, j.NextAfter, j.ResetAfter} {
			if got := time.Duration(s*1000+0.5) * time.Millisecond; got < d || got >= d+time.Millisecond {
				t.Fatalf("%v is given as %v s", d, s)
			}
		}
		if got, err := time.ParseDuration(shortUp(d)); err != nil || got < d || got > d+d/10+time.Millisecond {
			t.Fatalf("%v is given as %s, %v", d, shortUp(d), err)
		}
	}
	if got := limitJSON(ratelimit.Result{RetryAfter: ratelimit.Never}).RetryAfter; got != nil {
		t.Errorf("never is %v", *got)
	}
}

// A prefix without a lock or a record is told as it was typed, escaped once.
func TestPrefixIsQuoted(t *testing.T) {
	t.Parallel()
	for prefix, want := range map[string]string{
		"":              "",
		"job/é":         ` under "job/é"`,
		"\x1b[2J\u202e": ` under "\x1b[2J\u202e"`,
		"\xff\n":        ` under "\xff\n"`,
	} {
		if got := under([]string{prefix}); got != want {
			t.Errorf("%q is told as %s, want %s", prefix, got, want)
		}
	}
}
