package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/batch"
	"github.com/batonhq/baton/internal/rate"
)

// memory is LimitRows of a store whose transactions take a second, and one that has the
// key "bad" is refused.
type memory struct {
	mu   sync.Mutex
	kept LimitTx
	read [][]string // by reads, and by changes
	made [][]string
	busy map[string]bool // keys that a transaction has locked
}

var errBad = errors.New("no such key")

func (m *memory) Close() {}

func (m *memory) copied() *LimitTx {
	t := m.kept
	t.Rows, t.IDs = maps.Clone(t.Rows), maps.Clone(t.IDs)
	return &t
}

func (m *memory) Read(_ context.Context, keys []string) (*LimitTx, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.read = append(m.read, keys)
	return m.copied(), nil
}

func (m *memory) Change(_ context.Context, keys []string, ops []*LimitOp) (refused bool, err error) {
	m.mu.Lock()
	m.made = append(m.made, keys)
	for _, key := range keys {
		if m.busy[key] {
			panic("two transactions lock " + key)
		}
		m.busy[key] = true
	}
	t := m.copied()
	m.mu.Unlock()
	time.Sleep(time.Second)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range keys {
		delete(m.busy, key)
	}
	if slices.Contains(keys, "bad") {
		return true, errBad
	}
	for _, o := range ops {
		t.Take(o)
	}
	for _, key := range keys {
		m.kept.Rows[key] = t.Rows[key]
	}
	maps.Copy(m.kept.IDs, t.IDs)
	return false, nil
}

func newMemory(most, flying int) (*memory, *Limits) {
	m := &memory{kept: *NewLimitTx("memory"), busy: map[string]bool{}}
	m.kept.Clock = 1_800_000_000_000_000
	return m, NewLimits("memory", batch.Config[*LimitOp]{Max: most, InFlight: flying}, func(context.Context) (LimitRows, error) { return m, nil })
}

func ten(key string, cost int64) limits.Request {
	l := limits.Limit{Algorithm: limits.FixedWindow, N: 10, Period: time.Hour}
	return limits.Request{Takes: []limits.Take{{Key: key, Limit: l, Cost: cost}}}
}

// Requests about some keys that many goroutines make at once are answered as package rate
// answers them one after the other: those to one key in the order in which they came.
func TestLimitsDecideAsRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, l := newMemory(16, 3)
		r := rand.New(rand.NewPCG(7, 7))
		all := []limits.Limit{
			{Algorithm: limits.FixedWindow, N: 50, Period: time.Hour},
			{Algorithm: limits.SlidingWindow, N: 40, Period: time.Hour, Parts: 10},
			{Algorithm: limits.SlidingLog, N: 30, Period: time.Hour},
			{Algorithm: limits.EstimatedWindow, N: 40, Period: time.Hour},
			{Algorithm: limits.TokenBucket, N: 7, Period: time.Hour, Burst: 60},
			{Algorithm: limits.LeakyBucket, N: 7, Period: time.Hour, Burst: 60},
		}
		want := NewLimitTx("memory")
		want.Clock = m.kept.Clock
		var ids []string
		var wg sync.WaitGroup
		for range 1500 {
			q := limits.Request{Mode: []limits.Mode{limits.TakeIfAllowed, limits.TakeIfAllowed, limits.TakeIfAllowed, limits.TakeAnyway, limits.Forget}[r.IntN(5)]}
			for _, i := range r.Perm(6)[:1+r.IntN(2)] {
				q.Takes = append(q.Takes, limits.Take{Key: fmt.Sprint("k", i), Limit: all[(i+r.IntN(20)/19)%6], Cost: r.Int64N(4)})
			}
			if q.Mode == limits.Forget && r.IntN(4) > 0 {
				q.Mode = limits.GiveBack
				q.At = want.Clock
			}
			if q.Mode <= limits.TakeAnyway && r.IntN(3) == 0 {
				q.ID, q.Keep = driver.NewID(), time.Hour
				if ids = append(ids, q.Takes[0].Key+" "+q.ID); r.IntN(2) == 0 {
					fmt.Sscan(ids[r.IntN(len(ids))], &q.Takes[0].Key, &q.ID)
					q.Takes = q.Takes[:1]
				}
			}
			request, err := rate.NewRequest(q)
			if err != nil {
				t.Fatal(err)
			}
			o := &LimitOp{Request: request}
			want.Take(o)
			wg.Go(func() {
				if d, err := l.Take(context.Background(), q); err != nil || !reflect.DeepEqual(d, o.taken) {
					t.Errorf("%+v: %+v, %v, want %+v", q, d, err, o.taken)
				}
			})
			synctest.Wait() // it is in the queue
		}
		wg.Wait()
		if n := len(m.made) + len(m.read); n > 600 {
			t.Errorf("%d transactions and reads for 1500 requests", n)
		}
		for key, row := range want.Rows {
			if got := m.kept.Rows[key]; !slices.Equal(got.State, row.State) || got.Ends != row.Ends {
				t.Errorf("%s: %v is kept, want %v", key, got, row)
			}
		}
	})
}

// A request that makes the server refuse the transaction fails alone.
func TestLimitsFailAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, l := newMemory(16, 1)
		var wg sync.WaitGroup
		for _, key := range []string{"first", "a", "bad", "b"} {
			wg.Go(func() {
				if d, err := l.Take(context.Background(), ten(key, 1)); (key == "bad") != errors.Is(err, errBad) || key != "bad" && (err != nil || d.Limits[0].Remaining != 9) {
					t.Errorf("%s: %+v, %v", key, d, err)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		if want := [][]string{{"first"}, {"a", "b", "bad"}, {"a"}, {"bad"}, {"b"}}; !reflect.DeepEqual(m.made, want) {
			t.Errorf("transactions about %v, want %v", m.made, want)
		}
	})
}

// A request that only looks, or that a key refuses again, makes no transaction. One that is
// allowed again does.
func TestLimitsThatChangeNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, l := newMemory(16, 1)
		for i, step := range []struct {
			cost  int64
			ok    bool
			reads int // and transactions, so far
			makes int
		}{{0, true, 1, 0}, {10, true, 1, 1}, {1, false, 1, 2}, {1, false, 2, 2}, {0, true, 3, 2}, {5, true, 4, 3}, {1, true, 4, 4}} {
			if i == 5 {
				m.kept.Clock += time.Hour.Microseconds()
			}
			d, err := l.Take(context.Background(), ten("k", step.cost))
			if err != nil || d.OK != step.ok || len(m.read) != step.reads || len(m.made) != step.makes {
				t.Errorf("step %d: %+v, %v, %d reads and %d transactions", i, d, err, len(m.read), len(m.made))
			}
		}
	})
}

// Requests to long logs do not share a transaction, those to short ones do.
func TestLimitsBoundTheNumbers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, l := newMemory(16, 1)
		var wg sync.WaitGroup
		for i, n := range []int64{1, 10_000, 10_000, 100, 100} {
			q := ten(fmt.Sprint("k", i), 1)
			q.Takes[0].Limit = limits.Limit{Algorithm: limits.SlidingLog, N: n, Period: time.Hour}
			wg.Go(func() {
				if _, err := l.Take(context.Background(), q); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		if want := [][]string{{"k0"}, {"k1"}, {"k2"}, {"k3", "k4"}}; !reflect.DeepEqual(m.made, want) {
			t.Errorf("transactions about %v, want %v", m.made, want)
		}
	})
}
