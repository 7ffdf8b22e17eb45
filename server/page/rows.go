package page

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/transcript"
)

// Kinds of lists.
const (
	kindLocks  = "locks"
	kindLimits = "limits"
	kindOnce   = "once"
)

// A row is one key of a list.
type row struct {
	key   string
	at    time.Duration // the origin of its times, on the clock of the page
	asked time.Duration // when the store was last asked for it
	view  any           // the JSON value for the browser
	rank  [4]int64      // by the orders of its kind, the highest first
	order int64         // the rank of the present sort

	lock driver.KeyInfo // of kindLocks
}

// orders has the orders of each kind, as in row.rank. The order by key is not among them.
var orders = map[string][]string{
	kindLocks:  {"waiting", "longest", "oldest", "ends"},
	kindLimits: {"used", "share", "reset"},
	kindOnce:   {"newest", "attempts"},
}

// named is a key, and its escaped form if it has invisible characters.
type named struct {
	Key  string `json:"key"`
	Name string `json:"name,omitempty"`
}

func name(key string) named {
	n := named{Key: key}
	if shown := driver.Printable(key); shown != key {
		n.Name = shown
	}
	return n
}

// In the following types, times are milliseconds on the clock of the page; 0: not known.
// Numbers that can exceed 2⁵³ are strings.

// lockView is a lock in a list.
type lockView struct {
	named
	AsksFor string `json:"asksFor,omitempty"` // shown
	holderView
	Holders int   `json:"holders"`
	Waiters int   `json:"waiters"`
	Longest int64 `json:"longest,omitempty"` // since when the longest waiter waits
}

type holderView struct {
	Owner   string `json:"owner"`
	Mode    string `json:"mode,omitempty"` // exclusive, shared, n/of; "": not known
	Token   string `json:"token,omitempty"`
	Since   int64  `json:"since,omitempty"`
	Ends    int64  `json:"ends,omitempty"`
	Foreign bool   `json:"foreign,omitempty"`
	Grant   string `json:"grant,omitempty"`
}

// detailView is a lock with its holders and waiters.
type detailView struct {
	named
	AsksFor string       `json:"asksFor,omitempty"`
	Holders []holderView `json:"holders"`
	Waiters []waiterView `json:"waiters"` // the first maxQueue, as of Holders
	More    int          `json:"more,omitempty"`
	Asked   []string     `json:"asked"`            // the reasons of the requests to release it
	Denied  string       `json:"denied,omitempty"` // why the caller may not break it
}

type waiterView struct {
	Owner string `json:"owner"`
	Mode  string `json:"mode,omitempty"`
	Since int64  `json:"since,omitempty"`
}

// maxQueue is how many holders, and how many waiters, of one lock the page shows.
const maxQueue = 100

// limitView is the use of a limit.
type limitView struct {
	named
	Kind   string `json:"kind"`
	Used   int64  `json:"used"`
	Of     int64  `json:"of,omitempty"`
	N      int64  `json:"n,omitempty"`
	Period int64  `json:"period,omitempty"` // ms
	Reset  int64  `json:"reset,omitempty"`
}

// recordView is an operation of once.
type recordView struct {
	named
	State    string `json:"state"`          // begun, done, failed, final
	Exit     int    `json:"exit,omitempty"` // of the failed command
	Why      string `json:"why,omitempty"`  // the reason of the failure
	Took     int64  `json:"took,omitempty"` // ms
	Attempts int64  `json:"attempts"`
	Owner    string `json:"owner"`
	Token    string `json:"token,omitempty"`
	Last     int64  `json:"last,omitempty"` // when it began or ended: ms since 1970
	Until    int64  `json:"until,omitempty"`
}

// stamp returns at+d in milliseconds, at least 1.
func stamp(at, d time.Duration) int64 { return max(1, (at + d).Milliseconds()) }

func lockRow(info driver.KeyInfo, at time.Duration) *row {
	v := lockView{named: name(info.Key), AsksFor: asksFor(info.Key), Holders: len(info.Holders), Waiters: len(info.Waiters)}
	longest, oldest, ends := int64(math.MinInt64), int64(math.MinInt64), int64(math.MinInt64)
	for _, w := range info.Waiters { // not every store lists them in the order of arrival
		if since := viewWaiter(w, at).Since; since != 0 && (v.Longest == 0 || since < v.Longest) {
			v.Longest, longest = since, -since
		}
	}
	if len(info.Holders) > 0 {
		v.holderView = viewHolder(info.Holders[0], at)
		if v.Since != 0 {
			oldest = -v.Since
		}
		ends = -v.Ends
	}
	return &row{key: info.Key, at: at, asked: at, view: v, rank: [4]int64{int64(v.Waiters), longest, oldest, ends}, lock: info}
}

func viewHolder(h driver.HolderInfo, at time.Duration) holderView {
	v := holderView{Owner: driver.Printable(h.Owner), Mode: h.Mode(), Foreign: h.Foreign, Grant: h.Grant, Ends: stamp(at, h.Remaining)}
	if h.Token != 0 {
		v.Token = strconv.FormatInt(h.Token, 10)
	}
	if h.Age >= 0 {
		v.Since = (at - h.Age).Milliseconds() // negative: before the page began
		if v.Since == 0 {
			v.Since = 1
		}
	}
	return v
}

func viewWaiter(w driver.WaiterInfo, at time.Duration) waiterView {
	v := waiterView{Owner: driver.Printable(w.Owner), Mode: w.Mode()}
	if w.Age >= 0 {
		if v.Since = (at - w.Age).Milliseconds(); v.Since == 0 {
			v.Since = 1
		}
	}
	return v
}

// viewDetail returns the view of a lock on its own, with at most maxQueue holders and
// waiters.
func viewDetail(r *row) detailView {
	v := detailView{named: name(r.key), AsksFor: asksFor(r.key), Holders: []holderView{}, Waiters: []waiterView{}, Asked: []string{}}
	for i, h := range r.lock.Holders {
		if i == maxQueue {
			v.More += len(r.lock.Holders) - maxQueue
			break
		}
		v.Holders = append(v.Holders, viewHolder(h, r.at))
	}
	for i, w := range r.lock.Waiters {
		if i == maxQueue {
			v.More += len(r.lock.Waiters) - maxQueue
			break
		}
		v.Waiters = append(v.Waiters, viewWaiter(w, r.at))
	}
	return v
}

// steady returns before if a new look found the same, except for times that differ by less
// than their error: so times do not tremble, and an unchanged row is not sent again.
// Otherwise it returns now.
func steady(now, before *row) *row {
	near := func(a, b int64) bool {
		return a == b || a != 0 && b != 0 && max(a-b, b-a) < trembling.Milliseconds()
	}
	same := false
	switch v := now.view.(type) {
	case limitView:
		b := before.view.(limitView)
		same = near(v.Reset, b.Reset)
		b.Reset = v.Reset
		same = same && v == b
	case recordView:
		b := before.view.(recordView)
		same = near(v.Until, b.Until)
		b.Until = v.Until
		same = same && v == b
	case lockView:
		same = sameLock(now, before)
	}
	if !same {
		return now
	}
	before.asked = now.asked
	return before
}

// sameLock compares two looks at a lock, for steady.
func sameLock(now, before *row) bool {
	moved := now.at - before.at
	near := func(a, b time.Duration) bool { return a >= 0 && (a-b).Abs() < trembling }
	return slices.EqualFunc(now.lock.Holders, before.lock.Holders, func(n, b driver.HolderInfo) bool {
		same := n.Grant == b.Grant && n.Owner == b.Owner && n.Token == b.Token && n.Weight == b.Weight && n.Capacity == b.Capacity && n.Foreign == b.Foreign
		return same && (n.Age < 0 && b.Age < 0 || near(n.Age, b.Age+moved)) && (n.Remaining-b.Remaining+moved).Abs() < trembling
	}) && slices.EqualFunc(now.lock.Waiters, before.lock.Waiters, func(n, b driver.WaiterInfo) bool {
		same := n.Owner == b.Owner && n.Weight == b.Weight && n.Capacity == b.Capacity
		return same && (n.Age < 0 && b.Age < 0 || near(n.Age, b.Age+moved))
	})
}

// trembling is the error of a time of the store: two looks may differ by that.
const trembling = 150 * time.Millisecond

// asksFor returns the lock whose release the request key asks for, or "". It is escaped.
func asksFor(key string) string {
	of, ok := strings.CutPrefix(key, baton.AskPrefix)
	if !ok {
		return ""
	}
	return driver.Printable(of)
}

func limitRow(st limits.State, at time.Duration) *row {
	v := limitView{named: name(st.Key), Kind: string(st.Kind), Used: st.Used, Of: st.Of, N: st.N, Period: st.Period.Milliseconds()}
	if st.Reset > 0 {
		v.Reset = stamp(at, st.Reset)
	}
	share := int64(-1)
	if st.Of > 0 {
		share = int64(1e6 * float64(st.Used) / float64(st.Of))
	}
	return &row{key: st.Key, at: at, asked: at, view: v, rank: [4]int64{st.Used, share, v.Reset}}
}

func recordRow(rec driver.Record, at time.Duration) *row {
	v := recordView{named: name(rec.Key), State: "begun", Attempts: rec.Attempts, Owner: driver.Printable(rec.Owner)}
	if rec.Token != 0 {
		v.Token = strconv.FormatInt(rec.Token, 10)
	}
	last := rec.Began
	switch {
	case rec.Retry:
		v.State = "failed"
		why := string(rec.Result)
		if t, err := transcript.Decode(rec.Result); err == nil {
			v.Exit, why = t.Exit, string(t.Output(0))
		}
		v.Why = driver.Printable(why)
	case rec.Failed:
		v.State = "final"
	case rec.Done:
		v.State = "done"
	}
	if rec.Done || rec.Retry {
		last = rec.Finished
		if !rec.Began.IsZero() && last.After(rec.Began) { // two machines may have set them, by different clocks
			v.Took = max(1, last.Sub(rec.Began).Milliseconds())
		}
	}
	if !last.IsZero() {
		v.Last = last.UnixMilli()
	}
	if rec.Left > 0 {
		v.Until = stamp(at, rec.Left.Round(time.Second))
	}
	return &row{key: rec.Key, at: at, asked: at, view: v, rank: [4]int64{v.Last, rec.Attempts}}
}
