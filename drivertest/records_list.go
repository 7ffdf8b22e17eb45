package drivertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
)

// listed returns what a handle lists, by key.
func (t *recordTest) listed(i int, prefix string) map[string]driver.Record {
	t.Helper()
	all := make(map[string]driver.Record)
	for r, err := range t.lister(i).ListRecords(t.ctx, prefix) {
		if err != nil {
			t.Fatalf("list of %q: %v", prefix, err)
		}
		if _, again := all[r.Key]; again {
			t.Errorf("list of %q: %q is shown twice", prefix, r.Key)
		}
		all[r.Key] = r
	}
	return all
}

func (t *recordTest) lister(i int) driver.RecordLister {
	l, _ := listerOf(t.all[i%len(t.all)])
	return l
}

func listerOf(r driver.Records) (driver.RecordLister, bool) {
	if l, ok := r.(driver.RecordLister); ok {
		return l, true
	}
	l, _ := r.(driver.Locks) // a store may wrap another one
	return driver.As[driver.RecordLister](l)
}

// lists asserts that exactly these keys are listed.
func (t *recordTest) lists(prefix string, want ...string) {
	t.Helper()
	var got []string
	for key := range t.listed(0, prefix) {
		got = append(got, key)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("list of %q: %q, want %q", prefix, cutList(got), cutList(want))
	}
}

func cutList(all []string) []string { return all[:min(len(all), 40)] }

// beginAll begins attempts at many operations, several at a time.
func (t *recordTest) beginAll(keys []string, keep time.Duration) {
	t.Helper()
	var wg sync.WaitGroup
	gate := make(chan struct{}, 32)
	for i, key := range keys {
		gate <- struct{}{}
		wg.Go(func() {
			defer func() { <-gate }()
			if _, err := t.all[i%len(t.all)].BeginAttempt(t.ctx, attempt(key, 1), keep); err != nil {
				t.Errorf("%q: begin: %v", key, err)
			}
		})
	}
	wg.Wait()
}

// oddPrefixes returns keys, and prefixes that have another meaning in a pattern.
func oddPrefixes() (keys, prefixes []string) {
	for _, c := range []string{
		"%", "_", `\`, "*", "?", "[", "]", "[^x]", "[a-z]", "{", "}", "{x}", "^", "$", ".", "'", `"`, ";", "/", " ", "é", "世", "\u202e", "A", "a",
	} {
		keys = append(keys, "p"+c+"q")
	}
	keys = append(keys, "pq", "pxq", `p\%q`, `p\*q`, "Pq", "p  q", "p"+strings.Repeat("long", 100), "{p}q", "%", "*")
	slices.Sort(keys)
	keys = slices.Compact(keys)
	prefixes = []string{
		"", "p", "P", "p%q ", `\`, "%", "*", "{", "{p}", "{p", "\x00", "\xff", "p\xff", "p\xc3", "p\x00", "\t", "\U0010ffff",
		strings.Repeat("p", check.MaxKey+88), "p" + strings.Repeat("long", 100), "p" + strings.Repeat("long", 101),
	}
	for _, key := range keys {
		prefixes = append(prefixes, key, key[:min(2, len(key))]) // the prefix may end within a character
	}
	return keys, prefixes
}

func recordListCases() []recordCase {
	return []recordCase{
		{
			name:   "list shows what is recorded",
			why:    "an operator finds an operation without knowing its key",
			listed: true,
			run: func(t *recordTest) {
				t.lists("")
				t.begin(0, "job/begun", 1)
				t.begin(1, "job/begun", 3)
				t.begin(0, "job/done", 1<<62+1)
				t.finish(0, "job/done", 1<<62+1, success(strings.Repeat("x", check.MaxResult)))
				t.begin(0, "job/failed", 5)
				t.finish(0, "job/failed", 5, driver.Outcome{Failed: true, Result: []byte("no such order")})
				t.begin(0, "job/again", 8)
				t.finish(0, "job/again", 8, failure("exit 3"))
				t.begin(0, "job", 6)
				t.begin(0, "other", 7)
				want := map[string]driver.Record{
					"job/again":  {Token: 8, Owner: "owner of 8", Attempts: 1, Outcome: failure("exit 3")},
					"job/begun":  {Token: 3, Owner: "owner of 3", Attempts: 2},
					"job/done":   {Token: 1<<62 + 1, Owner: fmt.Sprint("owner of ", int64(1)<<62+1), Attempts: 1, Done: true},
					"job/failed": {Token: 5, Owner: "owner of 5", Attempts: 1, Done: true, Outcome: driver.Outcome{Failed: true}},
				}
				for i := range t.all {
					got := t.listed(i, "job/")
					if len(got) != len(want) {
						t.Errorf("handle %d lists %d records, want %d", i, len(got), len(want))
					}
					for key, w := range want {
						w.Key = key
						r := got[key]
						t.same(fmt.Sprintf("handle %d", i), r, w)
						if r.Done && r.Result != nil {
							t.Errorf("handle %d: the list has the result of %q", i, key)
						}
						if (r.Left <= 0 || r.Left > keepLong) && !t.h.NoLeft {
							t.Errorf("handle %d: %q is kept for another %v", i, key, r.Left)
						}
					}
				}
				t.lists("job", "job", "job/again", "job/begun", "job/done", "job/failed")
				t.lists("", "job", "job/again", "job/begun", "job/done", "job/failed", "other")
				t.lists("jobs")
				if err := t.all[0].ForgetRecord(t.ctx, "job/done"); err != nil {
					t.Fatalf("forget: %v", err)
				}
				t.lists("job/", "job/again", "job/begun", "job/failed")

				// The caller may end it early.
				for range t.lister(0).ListRecords(t.ctx, "") {
					break
				}
			},
		},
		{
			name:   "list takes prefixes literally",
			why:    "a percent sign in a prefix is a percent sign: nobody may be shown the operations of another",
			listed: true,
			run: func(t *recordTest) {
				keys, prefixes := oddPrefixes()
				t.beginAll(keys, keepLong)
				for _, prefix := range prefixes {
					var want []string
					for _, key := range keys {
						if strings.HasPrefix(key, prefix) {
							want = append(want, key)
						}
					}
					t.lists(prefix, want...)
				}
			},
		},
		{
			name:   "list shows many records",
			why:    "it reads page by page, and none may fall between two pages",
			listed: true,
			run: func(t *recordTest) {
				var keys []string
				for i := range t.h.Many {
					keys = append(keys, fmt.Sprintf("many/%c%d", 'a'+i%26, i))
				}
				t.beginAll(append([]string{"man", "many0", "z"}, keys...), keepLong)
				t.lists("many/", keys...)
				t.lists("many/c", slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return k[5] != 'c' })...)
			},
		},
		{
			name:   "list while records come and go",
			why:    "a list takes a while, and records end all the time: that is no error, and hides none that stay",
			listed: true,
			run: func(t *recordTest) {
				var stay, goes, all []string
				for i := range 150 {
					stay, goes = append(stay, fmt.Sprintf("job %d stays", i)), append(goes, fmt.Sprintf("job %d goes", i))
				}
				all = append(append(all, stay...), goes...)
				t.beginAll(all, keepLong)
				shown := make(map[string]int)
				for r, err := range t.lister(0).ListRecords(t.ctx, "job ") {
					if err != nil {
						t.Fatalf("the list ended: %v", err)
					}
					if len(shown) == 0 { // the first
						for i, key := range goes {
							if err := t.all[1].ForgetRecord(t.ctx, key); err != nil {
								t.Fatalf("forget: %v", err)
							}
							t.begin(2, fmt.Sprintf("job %d is new", i), 1)
						}
					}
					shown[r.Key]++
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
			name:   "list does not show what has expired",
			why:    "what has ended is gone, whether or not the store has removed it",
			listed: true,
			run: func(t *recordTest) {
				sent := time.Now()
				t.beginAll([]string{"old 1", "old 2"}, check.MinRecordKeep)
				t.begin(0, "stays", 1)
				t.keptFor("old 1", sent, check.MinRecordKeep)
				for deadline := time.Now().Add(20 * time.Second); ; {
					got := t.listed(1, "")
					if _, ok := got["stays"]; !ok {
						t.Fatalf("what stays is not listed: %v", got)
					}
					if len(got) == 1 {
						return
					} else if time.Now().After(deadline) {
						t.Fatalf("listed long after its end: %v", got)
					}
					time.Sleep(20 * time.Millisecond) // records expire without an event
				}
			},
		},
		{
			name:   "list with a context that has ended",
			why:    "a list that nobody waits for any more ends",
			listed: true,
			run: func(t *recordTest) {
				t.begin(0, "job 1", 1)
				t.begin(0, "job 2", 1)
				ctx, cancel := context.WithCancel(t.ctx)
				cancel()
				n := 0
				for r, err := range t.lister(0).ListRecords(ctx, "") {
					if n++; n > 1 || !errors.Is(err, context.Canceled) || r.Key != "" {
						t.Errorf("listed %+v, %v, want context.Canceled alone", r, outcome(err))
					}
				}
				if n == 0 {
					t.Errorf("the list ended without an error")
				}
			},
		},
	}
}
