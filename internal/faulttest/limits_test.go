//go:build linux

package faulttest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/internal/testserver"
)

// limitStores are the ways to get a store of rate limits that processes share.
var limitStores = []string{"sqlite", "redis", "sentinel", "cluster", "mysql", "postgres", "pgbouncer", "etcd", "etcd of three"}

func init() {
	stores["sentinel"] = func(t *testing.T) string {
		set := testserver.RedisSentinel(t)
		return "redis+sentinel://" + set.Sentinel.Addr + "/" + set.Name
	}
}

// Each is fifty, none of which comes back while a test lasts.
var fiftyOfEach = []limits.Limit{
	{Algorithm: limits.FixedWindow, N: 50, Period: 100_000 * time.Hour},
	{Algorithm: limits.SlidingWindow, N: 50, Period: 1000 * time.Hour, Parts: 10},
	{Algorithm: limits.SlidingWindow, N: 50, Period: 1000 * time.Hour, Parts: 10, Classic: true},
	{Algorithm: limits.SlidingLog, N: 50, Period: 1000 * time.Hour},
	{Algorithm: limits.EstimatedWindow, N: 50, Period: 100_000 * time.Hour},
	{Algorithm: limits.TokenBucket, N: 1, Period: 1000 * time.Hour, Burst: 50},
	{Algorithm: limits.LeakyBucket, N: 1, Period: 1000 * time.Hour, Burst: 50},
}

const (
	askers  = 4  // processes
	callers = 50 // in each
)

// Four processes with fifty callers each, and limits of fifty of which nothing
// comes back: all is exact, on every store, however it is asked.
func TestLimitsOfProcesses(t *testing.T) {
	testserver.Long(t)
	for _, name := range limitStores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := stores[name](t)
			all := startAskers(t, askers, url)
			for _, l := range fiftyOfEach {
				which := l.Algorithm.String()
				if l.Classic {
					which += ", classic"
				}
				t.Run(which, func(t *testing.T) { exactlyFifty(t, all, l) })
			}
			t.Run("several limits", func(t *testing.T) { severalLimits(t, all) })
			t.Run("repeated", func(t *testing.T) { everyRequestTwice(t, all) })
			t.Run("batches", func(t *testing.T) { inBatches(t, all) })
			t.Run("killed", func(t *testing.T) { killedInTheMiddle(t, url, all) })
			if name == "pgbouncer" || name == "etcd of three" {
				return // the timelines of the same store are enough
			}
			t.Run("timelines", func(t *testing.T) {
				var mu sync.Mutex
				n := 0
				drivertest.Timelines(t, drivertest.LimitHarness{
					Open: func(drivertest.T, int) (handles []limits.Store) {
						mu.Lock()
						defer mu.Unlock()
						n++
						for _, a := range all {
							handles = append(handles, &apart{a, fmt.Sprintf("%s/%d/", t.Name(), n)})
						}
						return handles
					},
					SameSlot: func(key string) string { return "{same}" + key },
					Steps:    20,
				})
			})
		})
	}
}

// apart puts a prefix before the keys of a case.
type apart struct {
	limits.Store
	prefix string
}

func (a *apart) Take(ctx context.Context, r limits.Request) (limits.Taken, error) {
	r.Takes = slices.Clone(r.Takes)
	for i := range r.Takes {
		r.Takes[i].Key = a.prefix + r.Takes[i].Key
	}
	return a.Store.Take(ctx, r)
}

// ask has all processes ask at once, each for its own crowd.
func ask(t *testing.T, all []*asker, crowd func(i int) Crowd) []CrowdAnswer {
	t.Helper()
	answers := make([]CrowdAnswer, len(all))
	var wg sync.WaitGroup
	for i, a := range all {
		wg.Go(func() {
			if err := a.Call("Asker.Ask", crowd(i), &answers[i]); err != nil {
				t.Errorf("process %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	return answers
}

// left is what remains of the limits of a request.
func left(t *testing.T, a *asker, r limits.Request) (all []int64) {
	t.Helper()
	r.Takes = slices.Clone(r.Takes)
	for i := range r.Takes {
		r.Takes[i].Cost = 0
	}
	d, err := a.Take(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range d.Limits {
		all = append(all, x.Remaining)
	}
	return all
}

func exactlyFifty(t *testing.T, all []*asker, l limits.Limit) {
	r := limits.Request{Takes: []limits.Take{{Key: t.Name(), Limit: l, Cost: 1}}}
	yes := 0
	for _, a := range ask(t, all, func(int) Crowd { return Crowd{Request: r, Callers: callers, Looks: true} }) {
		yes += len(a.Yes)
	}
	if rest := left(t, all[0], r)[0]; yes != 50 || rest != 0 {
		t.Errorf("%d of 50 were allowed, %d remain", yes, rest)
	}
}

// Three limits of different kinds, asked for in different orders: fifty by the
// tightest, and refused requests take nothing from the others.
func severalLimits(t *testing.T, all []*asker) {
	tight, wide, wider := fiftyOfEach[0], fiftyOfEach[3], fiftyOfEach[5]
	wide.N, wider.Burst = 60, 170
	takes := []limits.Take{
		{Key: "{" + t.Name() + "}tight", Limit: tight, Cost: 1},
		{Key: "{" + t.Name() + "}wide", Limit: wide, Cost: 1},
		{Key: "{" + t.Name() + "}wider", Limit: wider, Cost: 3},
	}
	yes := 0
	for _, a := range ask(t, all, func(i int) Crowd {
		turned := append(slices.Clone(takes[i%3:]), takes[:i%3]...)
		return Crowd{Request: limits.Request{Takes: turned}, Callers: callers}
	}) {
		yes += len(a.Yes)
	}
	if rest := left(t, all[0], limits.Request{Takes: takes}); yes != 50 || !slices.Equal(rest, []int64{0, 10, 20}) {
		t.Errorf("%d of 50 were allowed, %v remain, want 0, 10 and 20", yes, rest)
	}
}

func newIDs(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = driver.NewID()
	}
	return ids
}

// Each request is made by two processes at the same time: both are told the
// same, and it is taken once.
func everyRequestTwice(t *testing.T, all []*asker) {
	ids := newIDs(len(all) * callers)
	of := func(i int) []string { // its own, and those of the next
		next := (i + 1) % len(all)
		return slices.Concat(ids[i*callers:(i+1)*callers], ids[next*callers:(next+1)*callers])
	}
	r := limits.Request{Takes: []limits.Take{
		{Key: "{" + t.Name() + "}a", Limit: fiftyOfEach[1], Cost: 1},
		{Key: "{" + t.Name() + "}b", Limit: fiftyOfEach[6], Cost: 1},
	}}
	yes, fresh := map[string]int{}, 0
	for i, a := range ask(t, all, func(i int) Crowd { return Crowd{Request: r, IDs: of(i)} }) {
		for _, n := range a.Yes {
			yes[of(i)[n]]++
		}
		fresh += len(a.Fresh)
	}
	for _, n := range yes {
		if n != 2 {
			t.Errorf("of two who made one request, %d were allowed", n)
		}
	}
	if rest := left(t, all[0], r); len(yes) != 50 || fresh != 50 || !slices.Equal(rest, []int64{0, 0}) {
		t.Errorf("%d requests were allowed and %d taken, %v remain", len(yes), fresh, rest)
	}
}

// Processes that take five at a time: all that the store gave is handed out, and no
// more.
func inBatches(t *testing.T, all []*asker) {
	var wg sync.WaitGroup
	yes := make([]int64, len(all))
	for i, a := range all {
		wg.Go(func() {
			b := Batch{Key: t.Name(), N: 50, Size: 5, Processes: askers, Overshoot: 20, Callers: callers}
			if err := a.Call("Asker.AskInBatches", b, &yes[i]); err != nil {
				t.Errorf("process %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	r := limits.Request{Takes: []limits.Take{{Key: t.Name(), Limit: fiftyOfEach[0]}}}
	if sum := yes[0] + yes[1] + yes[2] + yes[3]; sum != 50 || left(t, all[0], r)[0] != 0 {
		t.Errorf("%v were allowed, which makes %d of 50; %v remain", yes, sum, left(t, all[0], r))
	}
}

// A process is killed while it asks. What it was told and what the others were told is
// what was taken. A process that repeats its requests hears of those that it did not
// hear of.
func killedInTheMiddle(t *testing.T, url string, all []*asker) {
	victim := startAskers(t, 1, url)[0]
	r := limits.Request{Takes: []limits.Take{{Key: t.Name(), Limit: fiftyOfEach[5], Cost: 1}}}
	theirs := newIDs(callers)
	dying, dead := victim.Go("Asker.Ask", Crowd{Request: r, IDs: theirs, Reports: true}, new(CrowdAnswer), nil), make(chan struct{})
	go func() {
		<-dying.Done // it may have been faster, and the wait for its reports must end
		victim.cmd.Process.Kill()
		close(dead)
	}()
	told := victim.reported(t, 1)
	victim.cmd.Process.Kill()
	others := all[:askers-1]
	answers := ask(t, others, func(int) Crowd { return Crowd{Request: r, IDs: newIDs(callers)} })
	told = append(told, victim.reported(t, callers)...)
	<-dead
	survivors := 0
	for _, a := range answers {
		survivors += len(a.Fresh)
	}
	if len(told) == 0 {
		t.Errorf("nothing was allowed to the victim: %v", dying.Error)
	}
	if survivors+len(told) > 50 {
		t.Errorf("%d survivors and %d of the victim were allowed", survivors, len(told))
	}
	if rest := left(t, others[0], r)[0]; rest != 0 {
		t.Errorf("%d of 50 remain, and %d of %d were refused", rest, len(others)*callers-survivors, len(others)*callers)
	}
	again := ask(t, others[:1], func(int) Crowd { return Crowd{Request: r, IDs: theirs} })[0]
	repeated := map[int]bool{}
	for _, i := range again.Yes {
		repeated[i] = true
	}
	if len(again.Fresh) > 0 || survivors+len(again.Yes) != 50 {
		t.Errorf("%d survivors were allowed, and %d of the victim's requests, which makes not 50; %d were taken again", survivors, len(again.Yes), len(again.Fresh))
	}
	for _, i := range told {
		if !repeated[i] {
			t.Errorf("request %d was allowed to the victim, and is none of %v", i, slices.Sorted(maps.Keys(repeated)))
		}
	}
}
