package etcdstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// lasting is longer than anything that a test does to a server.
const lasting = 5 * time.Minute

// keepRenewing renews claims for as long as the test runs.
func keepRenewing(t *testing.T, s *Store, claims ...driver.Claim) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(driver.RefreshEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				s.Renew(ctx, claims, lasting)
			case <-ctx.Done():
				return
			}
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
}

// insist repeats an acquire or release until there is an answer.
func insist(t *testing.T, what string, f func() error) {
	t.Helper()
	var err error
	eventually(t, what, time.Minute, func() bool {
		err = f()
		return !errors.Is(err, driver.ErrUnavailable) && !errors.Is(err, driver.ErrUnknown)
	})
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// A server comes back with an older state. A lock that was held then and is held now
// stays, one that was acquired since is lost and its owner hears of it, one that was
// released since is free for others, and queues are watched as they are now.
func TestServerSetBack(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t)
	all := openOn(t, server, 2)
	s, other := all[0], all[1]
	stays, held := take(t, s, claimOf("stays", "me"), lasting, false)
	back, _ := take(t, s, claimOf("back", "me"), lasting, false)
	restore := server.Backup()

	insist(t, "a release", func() error { return s.Release(t.Context(), back) })
	since := claimOf("since", "me")
	hints := hintsOf(t, s, since)
	since, _ = take(t, s, since, lasting, false)
	synced(t, s, "since") // the mirror opens when a lock is held for a while
	for i := range 50 {   // revisions that are not reached again soon
		c, _ := take(t, other, claimOf(fmt.Sprint("k", i), "other"), lasting, false)
		mustRelease(t, other, c)
	}
	s.mu.Lock()
	seen := s.keys["since"].mirror.rev
	s.mu.Unlock()
	keepRenewing(t, s, stays, since)
	restore()

	awaitHint(t, "the end of what was acquired since", hints, func(h driver.Hint) bool { return !h.Granted })
	eventually(t, "it is lost", time.Minute, func() bool {
		r := renewOne(t, s, since, lasting)
		if r.State == driver.Held {
			t.Fatal("it is confirmed")
		}
		return r.State == driver.Lost
	})
	eventually(t, "what is held goes on", time.Minute, func() bool {
		r := renewOne(t, s, stays, lasting)
		if r.State == driver.Lost || r.State == driver.Held && r.Grant.Token != held.Token {
			t.Fatalf("%+v, want it held by %d", r, held.Token)
		}
		return r.State == driver.Held
	})
	eventually(t, "what was released is free", time.Minute, func() bool {
		_, err := other.Acquire(t.Context(), driver.Request{Claim: claimOf("back", "other"), TTL: lasting})
		return err == nil
	})
	eventually(t, "the queue is watched anew", time.Minute, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		k := s.keys["since"]
		return k == nil || k.mirror == nil || k.mirror.synced && k.mirror.rev != seen
	})
	insist(t, "an acquire", func() error {
		_, err := other.Acquire(t.Context(), driver.Request{Claim: claimOf("since", "other"), TTL: lasting})
		return err
	})
}

// Other processes have written so much to a server that was set back that its revision
// does not show it. What was released since is still free.
func TestNamesThatComeBack(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t)
	proxy := faultproxy.New(t, server.Addr)
	s := mustNew(t, dial(t, proxy.Addr), Config{Prefix: prefixOf(t)})
	stays, _ := take(t, s, claimOf("stays", "me"), lasting, false)
	back, _ := take(t, s, claimOf("back", "me"), lasting, false)
	asked, _ := take(t, s, claimOf("asked", "me"), lasting, false)
	again, _ := take(t, s, claimOf("again", "me"), lasting, false)
	restore := server.Backup()

	for _, c := range []driver.Claim{back, asked, again} {
		insist(t, "a release", func() error { return s.Release(t.Context(), c) })
	}
	again, _ = take(t, s, claimOf("again", "me once more"), lasting, false)
	// This one has the name that comes back, and does not know whether it put it.
	cut := proxy.CutBeforeRequest(func(request []byte) bool { return bytes.Contains(request, []byte("asked/")) })
	if _, err := s.Acquire(t.Context(), driver.Request{Claim: claimOf("asked", "me once more"), TTL: lasting}); !errors.Is(err, driver.ErrUnknown) {
		t.Fatalf("an acquire that did not arrive: %v", err)
	}
	<-cut
	keepRenewing(t, s, stays)
	proxy.Refuse()
	proxy.Cut()
	eventually(t, "the server is missed", time.Minute, func() bool { return renewOne(t, s, stays, lasting).State == driver.Unknown })
	restore()
	other := openOn(t, server, 1)[0]
	for range 20 { // more than s has done since the backup
		c, _ := take(t, other, claimOf("k", "other"), lasting, false)
		mustRelease(t, other, c)
	}
	if n := len(names(t, other, "back").Kvs); n != 1 {
		t.Fatalf("%d names came back, want 1", n)
	}
	proxy.Accept()

	free := func(key string) {
		t.Helper()
		eventually(t, "what was released is free: "+key, time.Minute, func() bool {
			_, err := other.Acquire(t.Context(), driver.Request{Claim: claimOf(key, "other"), TTL: lasting})
			if err != nil && !errors.Is(err, driver.ErrHeld) {
				t.Fatal(err)
			}
			return err == nil
		})
	}
	free("back")
	free("asked")
	eventually(t, "all leases were looked at", time.Minute, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return !s.seekingStrays
	})
	eventually(t, "what was acquired since is lost", time.Minute, func() bool {
		return errors.Is(s.Release(t.Context(), again), driver.ErrLost)
	})
	free("again")
	eventually(t, "what is held goes on", time.Minute, func() bool {
		r := renewOne(t, s, stays, lasting)
		if r.State == driver.Lost {
			t.Fatal("it is lost")
		}
		return r.State == driver.Held
	})
	if s.past.sight().life != 0 {
		t.Error("it did show: the test is of no use")
	}
}
