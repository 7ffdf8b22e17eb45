package top

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"net/http"
	"strconv"
	"sync"
	"time"
	"unicode/utf16"

	"github.com/batonhq/baton/ratelimit"
)

// Config bounds the memory of Keys. The zero Config is ready to use; values below zero
// are as zero.
type Config struct {
	// Size is the number of keys that certainly have a counter, of each of the three
	// kinds, at most a million. Ten times as many as are shown give good counts for most
	// traffic. Each takes up to 1 KB and twelve times the length of a key. Defaults to
	// 1000.
	Size int

	// Period is the time after which the counts begin again from zero. Those of the last
	// complete period are kept, too. Defaults to a minute.
	Period time.Duration
}

// Keys counts decisions by key. Use New.
type Keys struct {
	size   int
	period time.Duration
	start  time.Time
	seed   maphash.Seed // random, so that callers cannot choose keys with one hash

	mu            sync.Mutex
	began         time.Duration // the present period, after start
	present, last *counts
}

// counts are those of one period.
type counts struct{ decisions, refusals, cost *sketch }

func newCounts(size int) *counts {
	return &counts{newSketch(size), newSketch(size), newSketch(size)}
}

func (c *counts) clear() {
	c.decisions.clear()
	c.refusals.clear()
	c.cost.clear()
}

func (c *counts) copy() [3]sketch {
	return [3]sketch{c.decisions.copy(), c.refusals.copy(), c.cost.copy()}
}

// New returns a Keys that has counted nothing.
func New(c Config) *Keys {
	if c.Size <= 0 {
		c.Size = 1000
	}
	c.Size = min(c.Size, 1_000_000)
	if c.Period <= 0 {
		c.Period = time.Minute
	}
	return &Keys{size: c.Size, period: c.Period, start: time.Now(), seed: maphash.MakeSeed(), present: newCounts(c.Size), last: newCounts(c.Size)}
}

// Events are for ratelimit.Observe, of any number of Limiters.
func (k *Keys) Events() *ratelimit.Events {
	return &ratelimit.Events{Decided: func(_ context.Context, e ratelimit.DecisionEvent) {
		if e.Err == nil {
			k.decided(e.Result.Key, e.Result.Cost, e.Result.OK)
		}
	}}
}

func (k *Keys) decided(key string, cost int64, ok bool) {
	hash := maphash.String(k.seed, key)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.advance()
	kept := k.present.decisions.add(key, hash, 1)
	switch {
	case !ok:
		k.present.refusals.add(kept, hash, 1)
	case cost > 0:
		k.present.cost.add(kept, hash, cost)
	}
}

// advance begins a new period if the present one is over, and returns the time since
// start.
func (k *Keys) advance() time.Duration {
	now := time.Since(k.start)
	over := (now - k.began) / k.period
	if over < 1 {
		return now
	}
	k.began += over * k.period
	k.present, k.last = k.last, k.present
	k.present.clear()
	if over > 1 { // nothing was counted in the last one
		k.last.clear()
	}
	return now
}

// A Period has the counts of one period.
type Period struct {
	Since time.Time `json:"since"`
	Until time.Time `json:"until"` // now, for the present period

	Decisions Ranking `json:"decisions"`
	Refusals  Ranking `json:"refusals"`
	Cost      Ranking `json:"cost"` // allowed cost
}

// A Ranking has the keys with the most.
type Ranking struct {
	Total int64   `json:"total"` // over all keys, exact
	Keys  []Count `json:"keys"`  // the most first
	Rest  int64   `json:"rest"`  // no other key has more
}

// A Count is that of one key: the truth is at most Count, and at least Count - Over.
type Count struct {
	Key   string `json:"key"`
	Count int64  `json:"count"`
	Over  int64  `json:"over"`
}

// A Report has the counts of the present period and of the last complete one.
type Report struct {
	Present Period `json:"present"`
	Last    Period `json:"last"`
}

// Report returns the n keys with the most, at most Config.Size. Before the end of the
// first period the last one is empty.
func (k *Keys) Report(n int) Report {
	k.mu.Lock()
	now := k.advance()
	began := k.began
	present, last := k.present.copy(), k.last.copy()
	k.mu.Unlock()
	of := func(c [3]sketch, since, until time.Duration) Period {
		n := min(max(n, 0), k.size)
		return Period{
			Since: k.start.Add(since), Until: k.start.Add(until),
			Decisions: c[0].ranking(n), Refusals: c[1].ranking(n), Cost: c[2].ranking(n),
		}
	}
	return Report{Present: of(present, began, now), Last: of(last, max(began-k.period, 0), began)}
}

// ServeHTTP answers with a Report in JSON, of ten keys or of the query's parameter n.
func (k *Keys) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := 10
	if text := r.URL.Query().Get("n"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 1 || n > k.size {
			http.Error(w, fmt.Sprintf("n is a number from 1 to %d", k.size), http.StatusBadRequest)
			return
		}
	}
	text, err := json.MarshalIndent(k.Report(n), "", "  ")
	if err != nil {
		http.Error(w, "the report cannot be written", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(ascii(text))
}

// ascii escapes all other characters than ASCII, so that no terminal obeys a key. In JSON
// they occur in strings only.
func ascii(text []byte) (out []byte) {
	for _, r := range string(text) {
		if r < 0x7f {
			out = append(out, byte(r))
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			out = fmt.Appendf(out, `\u%04x`, unit)
		}
	}
	return append(out, '\n')
}
