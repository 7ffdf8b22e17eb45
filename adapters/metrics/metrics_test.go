package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/adapters/metrics"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/observe"
	"github.com/batonhq/baton/election"
	"github.com/batonhq/baton/guard"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/ratelimit"
)

// fake is a Meter that keeps sums by series, and of a histogram the number of values
// beside them.
type fake struct {
	mu      sync.Mutex
	sums    map[string]float64
	counts  map[string]int
	made    []string
	sampled []func(to map[string]float64)
	series  int
}

func (f *fake) Make(i metrics.Instrument) (metrics.Vector, error) {
	f.made = append(f.made, i.Name)
	return func(values ...string) metrics.Series {
		if len(values) != len(i.Labels) {
			panic(fmt.Sprintf("%s has %d labels and was given %q", i.Name, len(i.Labels), values))
		}
		name := i.Name + "{" + strings.Join(values, ",") + "}"
		f.mu.Lock()
		defer f.mu.Unlock()
		f.series++
		return func(ctx context.Context, value float64) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.sums[name] += value
			f.counts[name]++
		}
	}, nil
}

func (f *fake) Sample(i metrics.Instrument, look func(series func(value float64, values ...string))) error {
	f.made = append(f.made, i.Name)
	f.sampled = append(f.sampled, func(to map[string]float64) {
		look(func(value float64, values ...string) { to[i.Name+"{"+strings.Join(values, ",")+"}"] = value })
	})
	return nil
}

// look adds the samples of this moment to the sums.
func (f *fake) look() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, sample := range f.sampled {
		sample(f.sums)
	}
}

// text is all series with their sums, and a histogram's numbers of values.
func (f *fake) text() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(f.sums)) {
		fmt.Fprintf(&b, "%s %v", name, f.sums[name])
		instrument, _, _ := strings.Cut(name, "{")
		for _, i := range metrics.Instruments() {
			if i.Name == instrument && i.Kind == metrics.Histogram {
				fmt.Fprintf(&b, " of %d", f.counts[name])
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// sum adds up the series of an instrument whose labels begin with these values.
func (f *fake) sum(instrument string, values ...string) (sum float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, n := range f.sums {
		if strings.HasPrefix(strings.TrimSuffix(name, "}")+",", instrument+"{"+strings.Join(append(values, ""), ",")) {
			sum += n
		}
	}
	return sum
}

func newFake(t testing.TB, cfg metrics.Config) (*fake, metrics.Events) {
	t.Helper()
	f := &fake{sums: map[string]float64{}, counts: map[string]int{}}
	events, err := metrics.New(f, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return f, events
}

// Each event changes what the table says, and nothing else.
func TestWhatEventsCount(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	const s = time.Second
	lost := &baton.LostError{Cause: baton.Expired}
	result := func(ok bool) ratelimit.Result { return ratelimit.Result{OK: ok, Name: "user"} }
	for _, c := range []struct {
		name string
		tell func(metrics.Events)
		want string
	}{
		{"a lock at once", func(e metrics.Events) {
			e.Locks.Acquired(ctx, baton.LockEvent{Store: "redis", Key: "order/7", Waited: s})
		}, `
baton.lock.acquired{redis,order,exclusive} 1
baton.lock.held{redis,order} 1
baton.lock.wait{redis,order,exclusive,} 1 of 1
`},
		{"a lock after a wait, released", func(e metrics.Events) {
			e.Locks.Waiting(ctx, baton.LockEvent{Store: "redis", Key: "order/7", Shared: true})
			e.Locks.Acquired(ctx, baton.LockEvent{Store: "redis", Key: "order/7", Shared: true, Waited: s, Queued: true})
			e.Locks.Released(ctx, baton.LockEvent{Store: "redis", Key: "order/7", Held: 2 * s})
		}, `
baton.lock.acquired{redis,order,shared} 1
baton.lock.held{redis,order} 0
baton.lock.hold{redis,order} 2 of 1
baton.lock.released{redis,order,} 1
baton.lock.waiting{redis,order} 0
baton.lock.wait{redis,order,shared,} 1 of 1
`},
		{"a lock that waits", func(e metrics.Events) {
			e.Locks.Waiting(ctx, baton.LockEvent{Store: "redis", Key: "plain"})
			e.Locks.Waiting(ctx, baton.LockEvent{Store: "redis", Key: "plain"})
			e.Locks.Failed(ctx, baton.LockEvent{Store: "redis", Key: "plain", Permits: 1, Of: 3, Waited: s, Err: driver.ErrUnavailable})
			e.Locks.Failed(ctx, baton.LockEvent{Store: "redis", Key: "plain", Waited: s, Queued: true, Err: &baton.HeldError{}})
		}, `
baton.lock.failed{redis,none,exclusive,held} 1
baton.lock.failed{redis,none,permits,unavailable} 1
baton.lock.waiting{redis,none} 1
baton.lock.wait{redis,none,exclusive,held} 1 of 1
baton.lock.wait{redis,none,permits,unavailable} 1 of 1
`},
		{"locks that are lost, or detached, or not released in time", func(e metrics.Events) {
			e.Locks.Lost(ctx, baton.LockEvent{Store: "redis", Key: "a/b/c", Held: s, Err: lost})
			e.Locks.Released(ctx, baton.LockEvent{Store: "redis", Key: "/x", Held: s, Err: &baton.LostError{Cause: baton.Detached}})
			e.Locks.Released(ctx, baton.LockEvent{Store: "redis", Key: "a/b/c", Held: s, Err: driver.ErrUnknown})
		}, `
baton.lock.held{redis,a} -2
baton.lock.held{redis,none} -1
baton.lock.hold{redis,a} 2 of 2
baton.lock.hold{redis,none} 1 of 1
baton.lock.lost{redis,a,expired} 1
baton.lock.released{redis,a,unknown} 1
baton.lock.released{redis,none,detached} 1
`},
		{"renewals", func(e metrics.Events) {
			e.Locks.Renewed(ctx, baton.RenewalEvent{Store: "etcd", Claims: 5, Took: s, Slack: 4 * s})
			e.Locks.Renewed(ctx, baton.RenewalEvent{Store: "etcd", Claims: 5, Failed: 2, Took: s, Slack: -s, Err: driver.ErrUnknown})
			e.Locks.Renewed(ctx, baton.RenewalEvent{Store: "etcd", Claims: 1, Took: s}) // of positions
		}, `
baton.renewal.claims{etcd} 11
baton.renewal.duration{etcd,unknown} 1 of 1
baton.renewal.duration{etcd,} 2 of 2
baton.renewal.failed{etcd} 2
baton.renewal.slack{etcd} 4 of 2
`},
		{"decisions", func(e metrics.Events) {
			e.Limits.Decided(ctx, ratelimit.DecisionEvent{Store: "redis", Operation: "allow", Result: result(true), Took: s})
			e.Limits.Decided(ctx, ratelimit.DecisionEvent{Store: "redis", Operation: "wait", Result: result(false), Took: s})
			e.Limits.Decided(ctx, ratelimit.DecisionEvent{Store: "redis", Operation: "allow", Took: s, Err: driver.ErrUnavailable})
			e.Limits.Decided(ctx, ratelimit.DecisionEvent{Store: "redis", Operation: "allow", Result: ratelimit.Result{OK: true, Name: "user", By: ratelimit.ByOpen}, Took: s})
			e.Limits.Decided(ctx, ratelimit.DecisionEvent{Store: "redis", Operation: "allow", Result: ratelimit.Result{OK: true, Name: "user", Near: true}, Took: s})
		}, `
baton.limit.decisions{redis,unnamed,error,store} 1
baton.limit.decisions{redis,user,allowed,open} 1
baton.limit.decisions{redis,user,allowed,store} 2
baton.limit.decisions{redis,user,refused,store} 1
baton.limit.duration{redis,allow} 4 of 4
baton.limit.duration{redis,wait} 1 of 1
baton.limit.near{redis,user} 1
`},
		{"a store that fails", func(e metrics.Events) {
			e.Limits.Degraded(ctx, ratelimit.FallbackEvent{Store: "redis", Key: "k", By: ratelimit.ByLocal})
			e.Limits.Degraded(ctx, ratelimit.FallbackEvent{Store: "redis", By: ratelimit.ByLocal})
			e.Limits.Restored(ctx, ratelimit.FallbackEvent{Store: "redis", Key: "k", By: ratelimit.ByLocal})
		}, `
baton.limit.degraded{redis,local} 1
`},
		{"operations", func(e metrics.Events) {
			for range 5 {
				e.Once.Began(ctx, once.OperationEvent{Store: "redis", Key: "pay/7"})
			}
			e.Once.Finished(ctx, once.OperationEvent{Store: "redis", Key: "pay/7", Took: s, Recorded: true})
			e.Once.Finished(ctx, once.OperationEvent{Store: "redis", Key: "pay/7", Took: s, Failed: true, Err: errors.New("x")})
			e.Once.Finished(ctx, once.OperationEvent{Store: "redis", Key: "pay/7", Took: s})
			e.Once.Superseded(ctx, once.OperationEvent{Store: "redis", Key: "pay/7", Took: s})
			e.Once.Replayed(ctx, once.OperationEvent{Store: "redis", Key: "pay/7"})
			e.Once.GaveUp(ctx, once.OperationEvent{Store: "redis", Key: "pay/7", Waited: s, Err: &baton.HeldError{}})
			e.Once.GaveUp(ctx, once.OperationEvent{Store: "redis", Key: "pay/7", Waited: s, Err: &once.OtherRequestError{}})
		}, `
baton.once.calls{redis,pay,failed} 1
baton.once.calls{redis,pay,replayed} 1
baton.once.calls{redis,pay,succeeded} 1
baton.once.calls{redis,pay,superseded} 1
baton.once.calls{redis,pay,unrecorded} 1
baton.once.duration{redis,pay,failed} 1 of 1
baton.once.duration{redis,pay,succeeded} 1 of 1
baton.once.duration{redis,pay,superseded} 1 of 1
baton.once.duration{redis,pay,unrecorded} 1 of 1
baton.once.gave_up{redis,pay,held} 1
baton.once.gave_up{redis,pay,refused} 1
baton.once.running{redis,pay} 1
`},
		{"leaderships", func(e metrics.Events) {
			e.Elections.Elected(ctx, election.LeadershipEvent{Store: "redis", Name: "main"})
			e.Elections.Elected(ctx, election.LeadershipEvent{Store: "redis", Name: "main"})
			e.Elections.Late(ctx, election.LeadershipEvent{Store: "redis", Name: "main", Led: s})
			e.Elections.Ended(ctx, election.LeadershipEvent{Store: "redis", Name: "main", Led: s})
			e.Elections.Failed(ctx, election.LeadershipEvent{Store: "redis", Name: "main", Err: driver.ErrUnavailable})
		}, `
baton.election.elected{redis,none} 2
baton.election.failed{redis,none,unavailable} 1
baton.election.late{redis,none} 1
baton.election.leading{redis,none} 1
baton.election.term{redis,none} 1 of 1
`},
		{"a stale write", func(e metrics.Events) {
			e.Guard.Refused(ctx, guard.RefusedEvent{Store: "postgres", Err: &guard.StaleError{Resource: "account/7"}})
		}, `
baton.guard.refused{postgres,account} 1
`},
		{"requests to stores", func(e metrics.Events) {
			e.Store.Request(ctx, observe.RequestEvent{Store: "postgres", Operation: observe.Acquire, Took: s, Class: observe.Held})
			e.Store.Request(ctx, observe.RequestEvent{Store: "postgres", Operation: observe.Acquire, Took: s, Class: observe.Unavailable})
			e.Store.Request(ctx, observe.RequestEvent{Store: "postgres", Operation: observe.Find, Took: s, Class: observe.Missing})
		}, `
db.client.operation.duration{postgresql,acquire,unavailable} 1 of 1
db.client.operation.duration{postgresql,acquire,} 1 of 1
db.client.operation.duration{postgresql,find,} 1 of 1
`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f, events := newFake(t, metrics.Config{})
			c.tell(events)
			if got, want := f.text(), strings.TrimPrefix(c.want, "\n"); got != want {
				t.Errorf("counted\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// The limits that would have refused, and those that are nearly used, are counted each.
func TestEachLimitOfADecision(t *testing.T) {
	t.Parallel()
	f, events := newFake(t, metrics.Config{})
	limiter, err := ratelimit.New(memory(t), ratelimit.SlidingLog(3, time.Minute).Named("now").Warn(0.6), ratelimit.SlidingLog(1, time.Minute).Named("soon").Shadow())
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		r, err := limiter.Allow(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		events.Limits.Decided(t.Context(), ratelimit.DecisionEvent{Store: "memory", Operation: "allow", Result: r})
	}
	const want = `baton.limit.decisions{memory,now,allowed,store} 3
baton.limit.decisions{memory,now,refused,store} 1
baton.limit.duration{memory,allow} 0 of 4
baton.limit.near{memory,now} 3
baton.limit.would_refuse{memory,soon} 3
`
	if got := f.text(); got != want {
		t.Errorf("counted\n%s\nwant\n%s", got, want)
	}
}

// The table is such that both libraries take it, and New makes all of it.
func TestTable(t *testing.T) {
	t.Parallel()
	f, _ := newFake(t, metrics.Config{})
	var made []string
	here, there := map[string]bool{}, map[string]bool{}
	for _, i := range metrics.Instruments() {
		made = append(made, i.Name)
		if here[i.Name] || there[i.Prometheus()] {
			t.Errorf("%s is there twice", i.Name)
		}
		here[i.Name], there[i.Prometheus()] = true, true
		if !regexp.MustCompile(`^(baton|db\.client)(\.[a-z_]+)+$`).MatchString(i.Name) || !regexp.MustCompile(`^[a-z_]+$`).MatchString(i.Prometheus()) {
			t.Errorf("%s, in Prometheus %s", i.Name, i.Prometheus())
		}
		if i.Kind.String() == "" || i.Unit != "s" && !regexp.MustCompile(`^\{[a-z]+\}$`).MatchString(i.Unit) || !strings.HasSuffix(i.Help, ".") {
			t.Errorf("%+v", i)
		}
		if i.Kind == metrics.Histogram != (len(i.Buckets) > 0) || !slices.IsSorted(i.Buckets) || (i.Kind == metrics.Histogram || i.Kind == metrics.Sampled) != (i.Unit == "s") {
			t.Errorf("%s has the unit %s and the buckets %v", i.Name, i.Unit, i.Buckets)
		}
		labels := map[string]bool{}
		for _, l := range i.Labels {
			if l.Help == "" || labels[l.Prometheus()] || !regexp.MustCompile(`^[a-z_]+$`).MatchString(l.Prometheus()) || strings.Contains(l.Name, "key") {
				t.Errorf("%s has the label %+v", i.Name, l)
			}
			labels[l.Prometheus()] = true
		}
	}
	if !slices.Equal(f.made, made) {
		t.Errorf("made %q, of %q", f.made, made)
	}
	for name, want := range map[string]string{
		"baton.lock.wait": "baton_lock_wait_seconds", "baton.lock.acquired": "baton_lock_acquired_total",
		"baton.lock.held": "baton_lock_held", "db.client.operation.duration": "db_client_operation_duration_seconds",
	} {
		if !here[name] || !there[want] {
			t.Errorf("no %s, or it is not %s", name, want)
		}
	}
}

type failing struct{}

func (failing) Make(i metrics.Instrument) (metrics.Vector, error) {
	if i.Kind == metrics.Gauge {
		return nil, errors.New("no " + i.Name)
	}
	return nil, nil
}

func (failing) Sample(i metrics.Instrument, _ func(func(float64, ...string))) error {
	return errors.New("no " + i.Name)
}

func TestNewSaysWhatFailed(t *testing.T) {
	t.Parallel()
	_, err := metrics.New(failing{}, metrics.Config{})
	for _, want := range []string{"no baton.lock.held", "no baton.lock.waiting.oldest", "no baton.once.running"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// Every function of every Events is there, and Join tells each.
func TestEveryFunctionIsThereAndJoined(t *testing.T) {
	t.Parallel()
	_, all := newFake(t, metrics.Config{})
	functions(&all, func(name string, f reflect.Value) {
		if f.IsNil() {
			t.Errorf("nothing counts %s", name)
		}
	})
	var told []string
	teller := func(who string) metrics.Events {
		e := metrics.Events{Locks: &baton.Events{}, Limits: &ratelimit.Events{}, Once: &once.Events{}, Elections: &election.Events{}}
		functions(&e, func(name string, f reflect.Value) {
			f.Set(reflect.MakeFunc(f.Type(), func([]reflect.Value) []reflect.Value {
				told = append(told, who+name)
				return nil
			}))
		})
		return e
	}
	partial := metrics.Events{Locks: &baton.Events{Lost: teller("p ").Locks.Lost}}
	joined := metrics.Join(metrics.Events{}, teller("a "), partial, teller("b "), metrics.Events{})
	n := 0
	functions(&joined, func(name string, f reflect.Value) {
		n++
		told = nil
		f.Call([]reflect.Value{reflect.ValueOf(t.Context()), reflect.Zero(f.Type().In(1))})
		want := []string{"a " + name, "b " + name}
		if name == "Locks.Lost" {
			want = []string{"a " + name, "p " + name, "b " + name}
		}
		if !slices.Equal(told, want) {
			t.Errorf("%s told %q, want %q", name, told, want)
		}
	})
	if n < 19 {
		t.Errorf("%d functions", n)
	}
	if none := metrics.Join(); none.Locks != nil || none.Guard.Refused != nil {
		t.Errorf("%+v", none)
	}
}

// functions calls f with each function of e.
func functions(e *metrics.Events, f func(name string, function reflect.Value)) {
	v := reflect.ValueOf(e).Elem()
	for i := range v.NumField() {
		events := reflect.Indirect(v.Field(i))
		for j := range events.NumField() {
			f(v.Type().Field(i).Name+"."+events.Type().Field(j).Name, events.Field(j))
		}
	}
}

// The number of series does not grow with the number of keys.
func TestKeysMakeNoSeries(t *testing.T) {
	t.Parallel()
	const keys = 100_000
	ctx := t.Context()
	f, events := newFake(t, metrics.Config{})
	tell := func(key string) {
		events.Locks.Acquired(ctx, baton.LockEvent{Store: "memory", Key: key})
		events.Locks.Released(ctx, baton.LockEvent{Store: "memory", Key: key})
	}
	for i := range metrics.MaxClasses { // as many as there may be
		tell(fmt.Sprint("class", i, "/7"))
	}
	tell("one too many/7")
	before := f.series
	for i := range keys {
		tell(fmt.Sprint("class", i%(2*metrics.MaxClasses), "/", i))
	}
	if f.series != before {
		t.Errorf("%d series became %d", before, f.series)
	}
	for class, want := range map[string]float64{"class0": 1_001, "class49": 1_001, "other": 50_001} {
		if got := f.sum("baton.lock.acquired", "memory", class); got != want {
			t.Errorf("%s: %v acquired, want %v", class, got, want)
		}
	}
}

func TestClass(t *testing.T) {
	t.Parallel()
	f, events := newFake(t, metrics.Config{Class: func(key string) string { return key[:1] + "\xff" }})
	events.Locks.Acquired(t.Context(), baton.LockEvent{Store: "memory", Key: "key"})
	if f.sum("baton.lock.acquired", "memory", "k�") != 1 {
		t.Error(f.text())
	}
}
