package etcdstore

import (
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
	"github.com/batonhq/baton/internal/testserver"
)

// With very many claims a run of the housekeeping takes longer than the pause between two
// runs. It leaves most of the time to calls all the same, however often it is due.
func TestHousekeepingLeavesTime(t *testing.T) {
	s := &Store{keys: make(map[string]*lock)}
	for i := range 20_000 {
		key := fmt.Sprint(i)
		k := &lock{key: key}
		k.all = map[*claim]bool{{Claim: driver.Claim{Key: key}, lock: k, held: true, deadline: bootclock.Now().Add(time.Hour)}: true}
		s.keys[key] = k
	}
	for range 10 { // this test may stand still in the middle
		began := bootclock.Now()
		s.keepHouse()
		s.mu.Lock()
		ended := bootclock.Now()
		s.dueLocked(ended) // as after every removal of a name
		pause := s.house.at.Sub(ended)
		s.house.timer.Stop()
		s.mu.Unlock()
		if pause > 5*ended.Sub(began) {
			return
		}
	}
	t.Error("the next run begins before calls had five times as long as the last one took")
}

// The housekeeping never rests for so long that a claim that was not renewed stands much
// longer than it was to, even if the process stood still in the middle of a run.
func TestHousekeepingRestsBriefly(t *testing.T) {
	for run, want := range map[time.Duration]time.Duration{
		0:                      0,
		10 * time.Millisecond:  90 * time.Millisecond,
		100 * time.Millisecond: 900 * time.Millisecond,
		time.Second:            maxRest,
		10 * time.Hour:         maxRest,
		math.MaxInt64:          maxRest,
	} {
		if got := restAfter(run); got != want {
			t.Errorf("after a run of %v: %v, want %v", run, got, want)
		}
	}
}

// Very many claims end at once, on a process that holds very many others: their names are
// removed one after the other, and none waits for the housekeeping, which rests for long.
func TestManyClaimsEndAtOnce(t *testing.T) {
	t.Parallel()
	const n = 8 * maxRemovals
	s := openOn(t, testserver.SharedEtcd(t), 1)[0]
	keep, _ := take(t, s, claimOf("keep", "a"), time.Minute, false)
	var wg sync.WaitGroup
	claims := make(chan driver.Claim, n)
	for range 64 {
		wg.Go(func() {
			for i := len(claims); i < n; i = len(claims) {
				c := claimOf(fmt.Sprint("k/", driver.NewID()), "a")
				g, err := s.Acquire(t.Context(), driver.Request{Claim: c, TTL: time.Minute})
				if err != nil {
					t.Error(err)
					return
				}
				c.Ticket = g.Ticket
				select {
				case claims <- c:
				default:
					return
				}
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	most := 0
	s.mu.Lock()
	for _, k := range s.keys {
		for c := range k.all {
			if c.ID != keep.ID {
				c.deadline = bootclock.Now()
			}
		}
	}
	s.mu.Unlock()
	s.keepHouse()
	s.mu.Lock()
	s.house.rest = bootclock.Now().Add(time.Hour) // as if it had very much to look at
	s.house.timer.Stop()
	s.house.at = s.house.rest
	s.mu.Unlock()
	began := time.Now()
	eventually(t, "all names are removed but one", 20*time.Second, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		most = max(most, s.house.removers)
		return len(s.house.later) == 0
	})
	if most > maxRemovals {
		t.Errorf("%d names were being removed at a time, want at most %d", most, maxRemovals)
	}
	t.Logf("%d names were removed in %v, at most %d at a time", n, time.Since(began), most)
	if r := renewOne(t, s, keep, time.Minute); r.State != driver.Held {
		t.Errorf("the one that did not end: %+v", r)
	}
	if got, err := s.client.Get(t.Context(), s.prefix, clientv3.WithPrefix(), clientv3.WithCountOnly()); err != nil || got.Count != 1 {
		t.Errorf("%d names are on the server, %v, want 1", got.Count, err)
	}
}
