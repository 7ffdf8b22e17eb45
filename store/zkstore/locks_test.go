package zkstore

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// What an acquisition and its release cost the server. Sessions are so long that
// nothing is sent to keep them alive. Many rounds need a few requests less: the first
// and the last waiters are not measured completely.
func TestCost(t *testing.T) {
	t.Parallel()
	const rounds, others = 50, 10
	server := testserver.ZooKeeper(t, "maxSessionTimeout=1200000")
	open := func(t *testing.T, root string) *Store {
		return longWaiting(mustOpen(t, Server{Addrs: []string{server.Addr}, Session: 20 * time.Minute}, Config{Root: root}))
	}
	writer := func(key string) driver.Request {
		r := writer(key)
		r.TTL = time.Minute
		return r
	}
	// On a machine that was too busy the store asked again meanwhile: count once more.
	expect := func(t *testing.T, work func(), requests, commits int64) {
		t.Helper()
		got := counted(t, server, work)
		for tries := 2; tries > 0 && got.Requests > requests*rounds+others; tries-- {
			t.Logf("%d rounds took %d requests: again", rounds, got.Requests)
			got = counted(t, server, work)
		}
		if got.Commits != commits*rounds {
			t.Errorf("%d rounds took %d transactions, want %d each", rounds, got.Commits, commits)
		}
		if got.Requests < requests*rounds-others || got.Requests > requests*rounds+others {
			t.Errorf("%d rounds took %d requests, want %d each", rounds, got.Requests, requests)
		}
	}

	t.Run("no other claim, a known key", func(t *testing.T) {
		s := open(t, "/"+driver.NewID())
		r := writer("k")
		hold(t, s, r)
		release(t, s, r)
		expect(t, func() {
			for range rounds {
				r := writer("k")
				hold(t, s, r)
				release(t, s, r)
			}
		}, 2, 2)
	})
	t.Run("a new key", func(t *testing.T) {
		s := open(t, "/"+driver.NewID())
		r := writer("k")
		hold(t, s, r) // makes the root
		release(t, s, r)
		n := 0
		expect(t, func() {
			for range rounds {
				n++
				r := writer(fmt.Sprint("k", n))
				hold(t, s, r)
				release(t, s, r)
			}
		}, 3, 2)
	})
	t.Run("eight processes that wait", func(t *testing.T) {
		root := "/" + driver.NewID()
		var stores []*Store
		for range 9 {
			stores = append(stores, open(t, root))
		}
		type waiter struct {
			driver.Request
			s     *Store
			hints <-chan driver.Hint
		}
		n := 0
		join := func(waits bool) waiter {
			r, s := writer("k"), stores[n%len(stores)]
			n++
			w := waiter{r, s, watching(t, s, r)}
			if g := acquire(t, s, r); g.Waiting != waits {
				t.Fatalf("waiting: %v, want %v", g.Waiting, waits)
			}
			return w
		}
		holder := join(false)
		var queue []waiter
		for range 8 {
			queue = append(queue, join(true))
		}
		expect(t, func() {
			for range rounds {
				release(t, holder.s, holder.Request)
				awaitHeld(t, queue[0].s, queue[0].Request, queue[0].hints)
				holder = queue[0]
				queue = append(queue[1:], join(true))
			}
		}, 5, 2)
	})
	t.Run("three hundred renewed", func(t *testing.T) {
		s := open(t, "/"+driver.NewID())
		var claims []driver.Claim
		for i := range 300 {
			r := writer(fmt.Sprint("k", i))
			hold(t, s, r)
			claims = append(claims, r.Claim)
		}
		expect(t, func() {
			for range rounds {
				for _, a := range s.Renew(t.Context(), claims, time.Minute) {
					if a.State != driver.Held {
						t.Fatalf("renewed: %+v", a)
					}
				}
			}
		}, 2, 2)
	})
}

// creates matches the transaction that makes or deletes nodes of a key.
func creates(s *Store, key string) func(request []byte) bool {
	return func(request []byte) bool { return bytes.Contains(request, []byte(s.parent(key)+"/_c_")) }
}

// The answer is lost after the nodes were made, twenty times: a caller that asks again
// finds them, and a caller that gives up leaves none behind, nor does one that is never
// heard of again.
func TestLostAnswersLeaveNothing(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	proxy := faultproxy.New(t, server.Addr)
	s := openOn(t, "", proxy.Addr)
	direct := plain(t, server.Addr)
	first := writer("k")
	token := hold(t, s, first).Token // the parent is known from now on
	release(t, s, first)
	var left []string // the keys of the callers that were never heard of again
	for i := range 20 {
		r := writer("k")
		if i%3 == 2 {
			r.Key, r.TTL = fmt.Sprint("left", i), time.Second
			left = append(left, r.Key)
		}
		eventually(t, "a connection", func() bool { return s.session.link().up })
		cut := proxy.CutAfterRequest(creates(s, r.Key))
		_, err := s.Acquire(t.Context(), r)
		if !errors.Is(err, driver.ErrUnknown) {
			t.Fatalf("round %d: %v, want driver.ErrUnknown", i, err)
		}
		<-cut
		switch r.Retry = true; i % 3 {
		case 0: // asks again
			var g driver.Grant
			eventually(t, "a repeated acquire", func() bool {
				g, err = s.Acquire(t.Context(), r)
				return err == nil
			})
			if g.Waiting || g.Token <= token {
				t.Fatalf("round %d: repeated: %+v after token %d", i, g, token)
			}
			if n := len(queueIn(t, direct, s, "k")); n != 2 {
				t.Errorf("round %d: %d nodes, want the two of one request", i, n)
			}
			token = g.Token
			release(t, s, r)
		case 1: // gives up
			eventually(t, "a release", func() bool {
				err := s.Release(t.Context(), r.Claim)
				return err == nil || errors.Is(err, driver.ErrLost)
			})
		}
		eventually(t, "an empty line", func() bool { return len(queueIn(t, direct, s, "k")) == 0 })
	}
	for _, key := range left {
		eventually(t, "an empty line", func() bool { return len(queueIn(t, direct, s, key)) == 0 })
	}
}

// A node that was found after a lost answer counts only if it belongs to the present
// session: otherwise no session of ours keeps it alive.
func TestANodeOfAnotherSessionIsNotAdopted(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	s := openOn(t, "", server.Addr)
	direct := plain(t, server.Addr)
	warm := writer("k")
	hold(t, s, warm)
	release(t, s, warm)

	r := writer("k")
	c := s.claim(r)
	c.state, c.guid = unsure, "_c_0123456789abcdef0123456789abcdef"
	c.endInLocked(ttl)
	for _, mark := range c.marks() {
		if _, err := direct.Create(s.parent("k")+"/"+c.guid+mark, nil, zk.FlagEphemeralSequential, s.acl); err != nil {
			t.Fatal(err)
		}
	}
	r.Retry = true
	hold(t, s, r)
	for _, n := range queueIn(t, direct, s, "k") {
		stat, err := s.exists(t.Context(), s.parent("k")+"/"+n)
		if err != nil || stat.EphemeralOwner != s.session.link().id {
			t.Errorf("%s belongs to session %x, %v", n, stat.EphemeralOwner, err)
		}
	}
}

// A user who may create children, but not write to the parent, gets locks, too.
func TestParentThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	s := longWaiting(openOn(t, "", server.Addr))
	if err := s.makeRoot(t.Context()); err != nil {
		t.Fatal(err)
	}
	acl := zk.WorldACL(zk.PermCreate | zk.PermRead | zk.PermDelete)
	if _, err := s.conn.Create(s.parent("k"), nil, 0, acl); err != nil {
		t.Fatal(err)
	}
	a, b := writer("k"), writer("k")
	hints := watching(t, s, b)
	first := hold(t, s, a)
	if !acquire(t, s, b).Waiting {
		t.Fatal("two hold")
	}
	release(t, s, a)
	if g, _ := awaitHeld(t, s, b, hints); g.Token <= first.Token {
		t.Errorf("token %d after %d", g.Token, first.Token)
	}
	release(t, s, b)
}

// inside checks which goroutines hold one key.
type inside struct {
	mu               sync.Mutex
	readers, writers int
	token            int64 // the highest of all that were granted
	written          int64 // of writers
}

func (in *inside) enter(t *testing.T, r driver.Request, token int64) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if r.Exclusive() {
		if in.readers+in.writers > 0 || token <= in.token {
			t.Errorf("%s: a writer with token %d beside %d readers and %d writers, after token %d", r.Key, token, in.readers, in.writers, in.token)
		}
		in.writers++
		in.written = token
	} else {
		if in.writers > 0 || token <= in.written {
			t.Errorf("%s: a reader with token %d beside %d writers, after a writer's token %d", r.Key, token, in.writers, in.written)
		}
		in.readers++
	}
	in.token = max(in.token, token)
}

func (in *inside) leave(r driver.Request) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if r.Exclusive() {
		in.writers--
	} else {
		in.readers--
	}
}

// Many goroutines of two processes want few keys, in every mode, and some give up.
func TestStorm(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	s := longWaiting(openOn(t, "", server.Addr))
	stores := []*Store{s, s, longWaiting(openOn(t, s.root, server.Addr))} // more in one than in the other
	keys := map[string]*inside{"a": {}, "b": {}, "c": {}}
	names := []string{"a", "a", "a", "b", "c"}

	turn := func(random *rand.Rand) {
		s := stores[random.IntN(len(stores))]
		r := writer(names[random.IntN(len(names))])
		if random.IntN(5) == 0 {
			r.Weight = 1
		}
		r.Queue = random.IntN(8) > 0
		hints := make(chan driver.Hint, 16)
		stop := s.Watch(r.Claim, func(h driver.Hint) {
			select {
			case hints <- h:
			default:
			}
		})
		defer stop()
		g, err := s.Acquire(t.Context(), r)
		if err != nil {
			if r.Queue {
				t.Errorf("acquire: %v", err)
			}
			return
		}
		leaves := make(<-chan time.Time)
		if random.IntN(4) == 0 {
			leaves = time.After(time.Duration(random.Int64N(int64(30 * time.Millisecond))))
		}
		late := time.After(testTime)
		for g.Waiting {
			select {
			case h := <-hints:
				if h.Granted {
					g = h.Grant
				} else if a := s.Renew(t.Context(), []driver.Claim{r.Claim}, r.TTL)[0]; a.State == driver.Held || a.State == driver.Waiting {
					g = a.Grant
				} else {
					t.Errorf("renewed: %+v", a)
					return
				}
			case <-leaves:
				if err := s.Release(t.Context(), r.Claim); err != nil {
					t.Errorf("give up: %v", err)
				}
				return
			case <-late:
				t.Errorf("%s: not granted", r.Key)
				return
			}
		}
		keys[r.Key].enter(t, r, g.Token)
		if random.IntN(4) == 0 {
			if a := s.Renew(t.Context(), []driver.Claim{r.Claim}, r.TTL)[0]; a.State != driver.Held {
				t.Errorf("a holder was renewed: %+v", a)
			}
		}
		runtime.Gosched()
		keys[r.Key].leave(r)
		if err := s.Release(t.Context(), r.Claim); err != nil {
			t.Errorf("release: %v", err)
		}
	}
	var work sync.WaitGroup
	for i := range 24 {
		work.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 7))
			for range 40 {
				if turn(random); t.Failed() {
					return
				}
			}
		})
	}
	work.Wait()
	conn := plain(t, server.Addr)
	for k := range keys {
		if left := queueIn(t, conn, s, k); len(left) > 0 {
			t.Errorf("%s: %v are left", k, left)
		}
	}
}
