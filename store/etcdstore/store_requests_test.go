package etcdstore

import (
	"fmt"
	"sync"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/batch"
	"github.com/batonhq/baton/internal/testserver"
)

// Requests that gather are one transaction, but never two for one key: they would have
// the same position.
func TestMergedRequests(t *testing.T) {
	t.Parallel()
	steady(t, mergedRequests)
}

func mergedRequests(t testing.TB) {
	s := openOn(t, testserver.SharedEtcd(t), 1)[0]
	warm, _ := take(t, s, claimOf("warm", "me"), long, false)
	mustRelease(t, s, warm)
	const keys, each = 100, 3
	var mu sync.Mutex
	revs := map[int64]int{} // names by create revision
	tickets := map[string]map[int64]bool{}
	var all []driver.Claim
	var work sync.WaitGroup
	for i := range keys * each {
		work.Go(func() {
			key := fmt.Sprint("k", i%keys)
			c, g := take(t, s, claimOf(key, "me"), long, true)
			mu.Lock()
			defer mu.Unlock()
			revs[g.Ticket]++
			if tickets[key] == nil {
				tickets[key] = map[int64]bool{}
			}
			tickets[key][g.Ticket] = true
			all = append(all, c)
		})
	}
	work.Wait()
	for key, t1 := range tickets {
		if len(t1) != each {
			t.Errorf("%s: %d claims have %d different places", key, each, len(t1))
		}
	}
	if len(revs) > keys*each/2 {
		t.Errorf("%d claims took %d transactions", keys*each, len(revs))
	}
	for _, c := range all {
		work.Go(func() { mustRelease(t, s, c) })
	}
	work.Wait()
	for i := range keys {
		if n := len(names(t, s, fmt.Sprint("k", i)).Kvs); n != 0 {
			t.Errorf("k%d: %d names are left", i, n)
		}
	}
}

// One request that cannot be done does not fail those that went with it.
func TestMergedWithABadOne(t *testing.T) {
	t.Parallel()
	s := openOn(t, testserver.SharedEtcd(t), 1)[0]
	var items []*item
	for i := range 10 {
		it := &item{Item: batch.NewItem(), dir: fmt.Sprint("d", i), name: prefixOf(t) + fmt.Sprint(i), txn: &pb.TxnRequest{
			Success: ops(put(prefixOf(t)+fmt.Sprint(i), "x", 0)),
		}}
		if i == 5 {
			it.txn.Success[0].GetRequestPut().Lease = 4711 // there is none
		}
		items = append(items, it)
	}
	s.sendItems(t.Context(), items)
	for i, it := range items {
		if bad := i == 5; bad != (it.err != nil) || bad && !leaseGone(it.err) {
			t.Errorf("number %d: %v", i, it.err)
		}
	}
}

// A release and a new position that gather in the batcher take one transaction.
func TestPositionSharesARelease(t *testing.T) {
	t.Parallel()
	testserver.NeedEtcd(t)
	steady(t, func(t testing.TB) {
		s := openOn(t, testserver.SharedEtcd(t), 2)
		me := s[0]
		spy := spyOn(me)
		claims := fillQueue(t, []*Store{me, me, me})
		resume := me.batch.Pause()
		spy.reset()
		got := make(chan driver.Grant, 1)
		c := claimOf("k", "me")
		go func() {
			g, err := me.Acquire(t.Context(), driver.Request{Claim: c, TTL: long, Queue: true})
			if err != nil {
				t.Error(err)
			}
			got <- g
		}()
		queued(t, me.batch, 1)
		var work sync.WaitGroup
		work.Go(func() { mustRelease(t, me, claims[0]) })
		queued(t, me.batch, 2)
		resume()
		work.Wait()
		if g := <-got; !g.Waiting || g.Ticket <= claims[2].Ticket {
			t.Errorf("%+v, want a position behind %d", g, claims[2].Ticket)
		}
		if n := len(spy.about(me.dir("k"))); n != 1 {
			t.Errorf("%d transactions, want one", n)
		}
	})
}
