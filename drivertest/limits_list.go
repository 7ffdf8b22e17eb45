package drivertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/batonhq/baton/driver/limits"
)

// states returns what a handle lists. The list must be in order.
func (t *limitTest) states(i int, prefix, after string) (all []limits.State) {
	t.Helper()
	for st, err := range t.stateLister(i).ListStates(t.ctx, prefix, after) {
		if err != nil {
			t.Fatalf("list of %q after %q: %v", prefix, after, err)
		}
		if n := len(all); n > 0 && st.Key <= all[n-1].Key {
			t.Errorf("list of %q after %q: %q comes after %q", prefix, after, st.Key, all[n-1].Key)
		}
		if st.Used <= 0 || st.Reset <= 0 {
			t.Errorf("list of %q after %q: nothing is out of %+v", prefix, after, st)
		}
		all = append(all, st)
	}
	return all
}

func (t *limitTest) stateLister(i int) limits.Lister {
	l, _ := limits.ListerOf(t.all[i%len(t.all)])
	return l
}

// lists asserts that exactly these keys are listed, in this order.
func (t *limitTest) lists(prefix, after string, want ...string) {
	t.Helper()
	t.n++
	var got []string
	for _, st := range t.states(t.n, prefix, after) {
		got = append(got, st.Key)
	}
	if !slices.Equal(got, want) {
		t.Errorf("list of %q after %q: %q, want %q", prefix, after, cutList(got), cutList(want))
	}
}

func (t *limitTest) takeEach(keys []string, l limits.Limit) {
	t.Helper()
	each := max(1, (len(keys)+31)/32)
	t.crowd((len(keys)+each-1)/each, func(i int, s limits.Store) (bool, error) {
		for _, key := range keys[i*each : min((i+1)*each, len(keys))] {
			if _, err := s.Take(t.ctx, limits.Request{Takes: []limits.Take{{Key: key, Limit: l, Cost: 1}}}); err != nil {
				return false, fmt.Errorf("%q: %w", key, err)
			}
		}
		return true, nil
	})
}

// slow is a limit that gives nothing back during a case.
func slow() limits.Limit { return tokenBucket(1, 1000*time.Hour, 5) }

func stateCases() []limitCase {
	return []limitCase{
		{
			name:   "list shows what was taken",
			why:    "an operator sees who uses how much without knowing the limits of the program",
			listed: true,
			run: func(t *limitTest) {
				t.lists("", "")
				want := make(map[string]limits.State)
				limit := make(map[string]limits.Limit)
				for i, l := range fiveOfEach {
					key := fmt.Sprint("t/", i)
					t.one(key, l, 3)
					if t.one(key, l, 5).OK {
						t.Fatalf("8 of %+v were allowed", l)
					}
					st := limits.State{Key: key, Kind: limits.Window, Used: 3}
					switch l.Algorithm {
					case limits.EstimatedWindow:
						st.Kind, st.Of, st.N, st.Period = limits.Estimate, 5, 5, l.Period
					case limits.TokenBucket, limits.LeakyBucket:
						st.Kind, st.Of, st.N, st.Period = limits.Bucket, 5, 1, l.Period
					}
					want[key], limit[key] = st, l
				}
				log := slidingLog(50, 1000*time.Hour)
				for range 40 {
					t.one("t/log", log, 1)
				}
				want["t/log"], limit["t/log"] = limits.State{Key: "t/log", Kind: limits.Window, Used: 40}, log
				t.one("t", slow(), 1)
				t.one("other", slow(), 1)
				for i := range t.all {
					before := make(map[string]time.Duration)
					for key, l := range limit {
						before[key] = t.look(key, l, 0).Reset
					}
					got := t.states(i, "t/", "")
					if len(got) != len(want) {
						t.Errorf("handle %d lists %d keys, want %d: %+v", i, len(got), len(want), got)
					}
					for _, st := range got {
						after := t.look(st.Key, limit[st.Key], 0)
						if st.Reset > before[st.Key]+time.Second || st.Reset < after.Reset-time.Second {
							t.Errorf("handle %d: %+v: by the limit it is fresh in %v, and later in %v", i, st, before[st.Key], after.Reset)
						}
						w := want[st.Key]
						if left := limit[st.Key].Capacity() - w.Used; after.Remaining != left {
							t.Errorf("handle %d: %d of %q remain after the list, want %d", i, after.Remaining, st.Key, left)
						}
						if w.Reset = st.Reset; st != w {
							t.Errorf("handle %d lists %+v, want %+v", i, st, w)
						}
					}
				}
				t.lists("t/lo", "", "t/log")
				t.take(limits.Request{Takes: []limits.Take{{Key: "t/log", Limit: log}}, Mode: limits.Forget})
				t.lists("t/lo", "")

				// The caller may end it early.
				for range t.stateLister(0).ListStates(t.ctx, "", "") {
					break
				}
			},
		},
		{
			name:   "list shows one key once, whatever has taken from it",
			why:    "what was taken under one kind of limit counts under the others, so the sum is what is used",
			listed: true,
			run: func(t *limitTest) {
				t.one("k", fixedWindow(10, 100_000*time.Hour), 4)
				t.one("k", tokenBucket(1, 1000*time.Hour, 10), 3)
				r := limits.Request{Takes: []limits.Take{{Key: "with an ID", Limit: slow(), Cost: 1}}, ID: "id", Keep: time.Hour}
				t.take(r)
				t.lists("", "", "k", "with an ID")
				if st := t.states(0, "k", "")[0]; st.Kind != limits.Several || st.Used != 7 || st.Of != 0 || st.Reset < 3000*time.Hour-time.Minute {
					t.Errorf("4 and 3 were taken: %+v", st)
				}
			},
		},
		{
			name:   "list goes on after a key, in the order of keys",
			why:    "a list that was cut is continued, and shows nothing twice and leaves nothing out",
			listed: true,
			run: func(t *limitTest) {
				keys := []string{"a", "a ", "a/1", "a/10", "a/100", "a/2", "a/é", "a/界", "a0", "A", "Ab", "a/A", "b", "é", "界", "\U0010fffd"}
				slices.Sort(keys)
				t.takeEach(keys, slow())
				t.lists("", "", keys...)
				for i, key := range keys {
					t.lists("", key, keys[i+1:]...)
				}
				t.lists("a/", "", "a/1", "a/10", "a/100", "a/2", "a/A", "a/é", "a/界")
				t.lists("a/", "A", "a/1", "a/10", "a/100", "a/2", "a/A", "a/é", "a/界")
				t.lists("a/", "a/", "a/1", "a/10", "a/100", "a/2", "a/A", "a/é", "a/界")
				t.lists("a/", "a/10", "a/100", "a/2", "a/A", "a/é", "a/界")
				t.lists("a/", "a/10x", "a/2", "a/A", "a/é", "a/界")
				t.lists("a/", "a/2"+strings.Repeat("x", 1000), "a/A", "a/é", "a/界")
				t.lists("a/", "a/界")
				t.lists("a/", "a0")
				t.lists("a/", "zzz")
				t.lists("", "\xff")
			},
		},
		{
			name:   "list of limits takes prefixes literally",
			why:    "a percent sign in a prefix is a percent sign: nobody may be shown the callers of another",
			listed: true,
			run: func(t *limitTest) {
				keys, prefixes := oddPrefixes()
				t.takeEach(keys, slow())
				for _, prefix := range prefixes {
					var want []string
					for _, key := range keys {
						if strings.HasPrefix(key, prefix) {
							want = append(want, key)
						}
					}
					t.lists(prefix, "", want...)
				}
			},
		},
		{
			name:   "list shows many limits",
			why:    "it reads page by page, and none may fall between two pages",
			listed: true,
			run: func(t *limitTest) {
				var keys []string
				for i := range 450 {
					keys = append(keys, fmt.Sprintf("many/%c%d", 'a'+i%3, i))
				}
				slices.Sort(keys)
				t.takeEach(append([]string{"man", "many0", "z"}, keys...), slow())
				t.lists("many/", "", keys...)
				t.lists("many/", keys[200], keys[201:]...)
				t.lists("many/b", "", keys[150:300]...)
			},
		},
		{
			name:   "list while limits come and go",
			why:    "a list takes a while, and callers come and go all the time: that is no error, and hides none that stay",
			listed: true,
			run: func(t *limitTest) {
				var stay, goes []string
				for i := range 150 {
					stay, goes = append(stay, fmt.Sprintf("job %d stays", i)), append(goes, fmt.Sprintf("job %d goes", i))
				}
				t.takeEach(append(slices.Clone(stay), goes...), slow())
				shown := make(map[string]int)
				for st, err := range t.stateLister(0).ListStates(t.ctx, "job ", "") {
					if err != nil {
						t.Fatalf("the list ended: %v", err)
					}
					if len(shown) == 0 { // the first
						for i, key := range goes {
							t.take(limits.Request{Takes: []limits.Take{{Key: key, Limit: slow()}}, Mode: limits.Forget})
							t.one(fmt.Sprintf("job %d is new", i), slow(), 1)
						}
					}
					shown[st.Key]++
				}
				for key, n := range shown {
					if n != 1 {
						t.Errorf("%q is shown %d times", key, n)
					}
				}
				for _, key := range stay {
					if shown[key] == 0 {
						t.Errorf("%q stayed and is not shown", key)
					}
				}
			},
		},
		{
			name:   "list does not show what has come back",
			why:    "a caller of whom nothing counts any more uses nothing, whether or not the store has removed the state",
			listed: true,
			run: func(t *limitTest) {
				t.one("stays", slow(), 1)
				t.one("window", fixedWindow(5, 200*time.Millisecond), 1)
				t.one("bucket", tokenBucket(1, 50*time.Millisecond, 5), 2)
				for deadline := time.Now().Add(20 * time.Second); ; {
					var got []string
					for st, err := range t.stateLister(1).ListStates(t.ctx, "", "") {
						if err != nil {
							t.Fatalf("list: %v", err)
						}
						got = append(got, st.Key)
					}
					if !slices.Contains(got, "stays") {
						t.Fatalf("what stays is not listed: %q", got)
					}
					if len(got) == 1 {
						return
					} else if time.Now().After(deadline) {
						t.Fatalf("listed long after it came back: %q", got)
					}
					time.Sleep(20 * time.Millisecond) // limits come back without an event
				}
			},
		},
		{
			name:   "list of limits with a context that has ended",
			why:    "a list that nobody waits for any more ends",
			listed: true,
			run: func(t *limitTest) {
				t.takeEach([]string{"k1", "k2"}, slow())
				ctx, cancel := context.WithCancel(t.ctx)
				cancel()
				n := 0
				for st, err := range t.stateLister(0).ListStates(ctx, "", "") {
					if n++; n > 1 || !errors.Is(err, context.Canceled) || st.Key != "" {
						t.Errorf("listed %+v, %v, want context.Canceled alone", st, outcome(err))
					}
				}
				if n == 0 {
					t.Errorf("the list ended without an error")
				}
			},
		},
	}
}
