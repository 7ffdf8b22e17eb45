package etcdstore

import (
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// Trap 4: the holder hears at once that its name was deleted, though it only
// renews much later.
func TestHolderHearsOfDeletion(t *testing.T) {
	t.Parallel()
	s := openOn(t, testserver.SharedEtcd(t), 1)[0]
	c := claimOf("k", "me")
	hints := hintsOf(t, s, c)
	c, _ = take(t, s, c, long, true)
	synced(t, s, "k") // by itself, since it is held for a while
	if _, err := s.client.Delete(t.Context(), s.dir("k"), clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	awaitHint(t, "deleted", hints, func(h driver.Hint) bool { return !h.Granted })
	if r := renewOne(t, s, c, long); r.State != driver.Lost {
		t.Errorf("%v, want lost", r.State)
	}
}

// Trap 7: a compaction ends watches that lag behind. The waiter is still granted the
// lock, and by a hint.
func TestCompactionUnderAWaiter(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t)
	proxy := faultproxy.New(t, server.Addr)
	holder := openOn(t, server, 1)[0]
	waiter := mustNew(t, dial(t, proxy.Addr), Config{Prefix: prefixOf(t)})
	h, _ := take(t, holder, claimOf("k", "holder"), long, false)
	a := claimOf("k", "waiter")
	hints := hintsOf(t, waiter, a)
	a, _ = take(t, waiter, a, long, true)
	synced(t, waiter, "k")

	// The connection is lost, and what happened since is compacted before it
	// is back.
	proxy.Refuse()
	proxy.Cut()
	for range 5 {
		c, _ := take(t, holder, claimOf("k/other", "holder"), long, false)
		mustRelease(t, holder, c)
	}
	head, err := holder.client.Get(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := holder.client.Compact(t.Context(), head.Header.Revision); err != nil {
		t.Fatal(err)
	}
	proxy.Accept()
	eventually(t, "the waiter is confirmed", 20*time.Second, func() bool {
		return renewOne(t, waiter, a, long).State != driver.Unknown
	})
	if r := renewOne(t, waiter, a, long); r.State == driver.Lost {
		t.Log("not concluded: it was away for longer than a place lives")
		return
	}
	synced(t, waiter, "k")
	mustRelease(t, holder, h)
	for {
		select {
		case g := <-hints:
			if g.Granted && g.Grant.Token == a.Ticket {
				return
			}
		case <-time.After(driver.RefreshEvery):
			if r := renewOne(t, waiter, a, long); r.State != driver.Waiting {
				if r.State != driver.Held {
					t.Errorf("%v, want held", r.State)
				}
				return // the poll was first
			}
		}
	}
}

// Trap 7: after a lost connection the store lists the queue again, so that a hint tells
// what happened meanwhile.
func TestReconnectListsAgain(t *testing.T) {
	t.Parallel()
	testserver.NeedEtcd(t)
	steady(t, func(t testing.TB) {
		server := testserver.SharedEtcd(t)
		proxy := faultproxy.New(t, server.Addr)
		holder := openOn(t, server, 1)[0]
		waiter := mustNew(t, dial(t, proxy.Addr), Config{Prefix: prefixOf(t)})
		h, _ := take(t, holder, claimOf("k", "holder"), long, false)
		a := claimOf("k", "waiter")
		hints := hintsOf(t, waiter, a)
		a, _ = take(t, waiter, a, long, true)
		synced(t, waiter, "k")
		proxy.Refuse()
		proxy.Cut()
		mustRelease(t, holder, h)
		proxy.Accept()
		// No renewal asks: the waiter gets a hint, or its position ends.
		if got := awaitHint(t, "granted", hints, func(driver.Hint) bool { return true }); !got.Granted || got.Grant.Token != a.Ticket {
			t.Errorf("%+v, want it granted with token %d", got, a.Ticket)
		}
	})
}
