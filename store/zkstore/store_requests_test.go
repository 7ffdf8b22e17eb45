package zkstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/batch"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// gather lets nothing leave the batcher until flush.
func gather(s *Store) { s.batch.Pause() }

func flush(s *Store) { s.batch.Pause()() }

// queued waits until n items are in the batcher's queue.
func queued(t *testing.T, s *Store, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d in the queue", n), func() bool {
		return s.batch.Waiting() == n
	})
}

// known makes the store remember the keys' parents.
func known(t *testing.T, s *Store, keys ...string) {
	t.Helper()
	for _, k := range keys {
		r := writer(k)
		hold(t, s, r)
		release(t, s, r)
	}
}

// together acquires requests by one transaction, as far as possible.
func together(t *testing.T, s *Store, requests []driver.Request) []driver.Grant {
	t.Helper()
	grants, errs := make([]driver.Grant, len(requests)), make([]error, len(requests))
	gather(s)
	var work sync.WaitGroup
	for i, r := range requests {
		work.Go(func() { grants[i], errs[i] = s.Acquire(t.Context(), r) })
	}
	queued(t, s, len(requests))
	flush(s)
	work.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return grants
}

func keysAndWriters(n int) (keys []string, requests []driver.Request) {
	for i := range n {
		k := fmt.Sprint("k", i)
		keys, requests = append(keys, k), append(requests, writer(k))
	}
	return keys, requests
}

func TestOneTransactionForMany(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t, "maxSessionTimeout=1200000")
	s := longWaiting(mustOpen(t, Server{Addrs: []string{server.Addr}}, Config{Root: "/" + driver.NewID()}))
	keys, requests := keysAndWriters(20)
	known(t, s, keys...)
	var grants []driver.Grant
	if got := counted(t, server, func() { grants = together(t, s, requests) }); got.Commits != 1 {
		t.Errorf("%d transactions acquired %d keys", got.Commits, len(keys))
	}
	for i, r := range requests {
		if g := grants[i]; g.Waiting || g.TTL <= 0 {
			t.Errorf("%s: %+v", r.Key, g)
		}
		if a := renew(t, s, r); a.State != driver.Held || a.Grant.Token != grants[i].Token {
			t.Errorf("%s: %+v, want token %d", r.Key, a, grants[i].Token)
		}
	}
	got := counted(t, server, func() {
		gather(s)
		var work sync.WaitGroup
		for _, r := range requests {
			work.Go(func() {
				if err := s.Release(t.Context(), r.Claim); err != nil {
					t.Errorf("%s: %v", r.Key, err)
				}
			})
		}
		queued(t, s, len(requests))
		flush(s)
		work.Wait()
	})
	if got.Commits != 1 {
		t.Errorf("%d transactions released %d keys", got.Commits, len(keys))
	}
	for _, k := range keys {
		if left := queueIn(t, s.conn, s, k); len(left) > 0 {
			t.Errorf("%s: %v are left", k, left)
		}
	}
}

// Requests for one key that gather get different tokens: no two holders may share one,
// nor a holder and the one before.
func TestTokensInOneTransaction(t *testing.T) {
	t.Parallel()
	s := longWaiting(openOn(t, "", testserver.SharedZooKeeper(t).Addr))
	known(t, s, "k")
	var requests []driver.Request
	for range 8 {
		requests = append(requests, reader("k"))
	}
	tokens := map[int64]bool{}
	for _, g := range together(t, s, requests) {
		if g.Waiting || tokens[g.Token] {
			t.Errorf("%+v, beside %v", g, tokens)
		}
		tokens[g.Token] = true
	}
	for _, r := range requests {
		release(t, s, r)
	}

	first, second := writer("k"), writer("k")
	before := hold(t, s, first)
	gather(s)
	var work sync.WaitGroup
	var g driver.Grant
	work.Go(func() {
		if err := s.Release(t.Context(), first.Claim); err != nil {
			t.Error(err)
		}
	})
	queued(t, s, 1)
	work.Go(func() {
		var err error
		if g, err = s.Acquire(t.Context(), second); err != nil {
			t.Error(err)
		}
	})
	queued(t, s, 2)
	flush(s)
	work.Wait()
	if g.Waiting || g.Token <= before.Token {
		t.Errorf("after token %d: %+v", before.Token, g)
	}
}

// One request that is refused has no effect on those that went with it: a parent that
// the server removed, or nodes that another client deleted.
func TestRefusedAmongMany(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	s := longWaiting(openOn(t, "", server.Addr))
	keys, requests := keysAndWriters(10)
	known(t, s, keys...)
	other := plain(t, server.Addr)
	for _, k := range keys[3:5] {
		if err := other.Delete(s.parent(k), -1); err != nil && err != zk.ErrNoNode { // the server was faster
			t.Fatal(err)
		}
	}
	for i, g := range together(t, s, requests) {
		if g.Waiting {
			t.Errorf("%s: %+v", keys[i], g)
		}
	}
	for _, k := range keys[5:7] {
		for _, n := range queueIn(t, other, s, k) {
			if err := other.Delete(s.parent(k)+"/"+n, -1); err != nil {
				t.Fatal(err)
			}
		}
	}
	gather(s)
	var work sync.WaitGroup
	for i, r := range requests {
		work.Go(func() {
			err := s.Release(t.Context(), r.Claim)
			if lost := i == 5 || i == 6; errors.Is(err, driver.ErrLost) != lost || !lost && err != nil {
				t.Errorf("%s: %v, lost %v", r.Key, err, lost)
			}
		})
	}
	queued(t, s, len(requests))
	flush(s)
	work.Wait()
	for _, k := range keys {
		if left := queueIn(t, other, s, k); len(left) > 0 {
			t.Errorf("%s: %v are left", k, left)
		}
	}
}

// Two items delete the same node, and the caller of the first has left when the second
// is refused: the node is still deleted.
func TestRefusedWhenAbandoned(t *testing.T) {
	t.Parallel()
	s := longWaiting(openOn(t, "", testserver.SharedZooKeeper(t).Addr))
	r := writer("k")
	hold(t, s, r)
	nodes := queueIn(t, s.conn, s, "k")
	one := func() *item {
		return &item{Item: batch.NewItem(), parent: s.parent("k"), ops: []any{
			&zk.DeleteRequest{Path: s.parent("k") + "/" + nodes[0], Version: -1},
		}}
	}
	left, stays := one(), one()
	left.abandoned.Store(true)
	s.sendItems(t.Context(), []*item{left, stays})
	if stays.err != nil {
		t.Errorf("deleted: %v", stays.err)
	}
	if now := queueIn(t, s.conn, s, "k"); len(now) != len(nodes)-1 {
		t.Errorf("%v are left of %v", now, nodes)
	}
}

// A caller that leaves before its request is sent has asked for nothing. If a caller
// leaves a send that is refused because of another item, its item is not sent later.
func TestAbandonedBeforeItIsSent(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	s := longWaiting(openOn(t, "", server.Addr))
	known(t, s, "a", "b", "gone")
	gather(s)
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error)
	go func() {
		_, err := s.Acquire(ctx, writer("a"))
		failed <- err
	}()
	queued(t, s, 1)
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) || errors.Is(err, driver.ErrUnknown) {
		t.Errorf("left before it was sent: %v", err)
	}
	queued(t, s, 0)
	flush(s)
	if left := queueIn(t, s.conn, s, "a"); len(left) > 0 {
		t.Errorf("%v were made", left)
	}

	if err := s.conn.Delete(s.parent("gone"), -1); err != nil {
		t.Fatal(err)
	}
	create := func(key string) *item {
		return &item{Item: batch.NewItem(), parent: s.parent(key), creates: true, ops: []any{
			&zk.CreateRequest{Path: s.parent(key) + "/x", Acl: s.acl, Flags: zk.FlagEphemeral},
		}}
	}
	left, gone, stays := create("a"), create("gone"), create("b")
	left.abandoned.Store(true)
	s.sendItems(t.Context(), []*item{left, gone, stays})
	<-left.Done()
	if gone.err != zk.ErrNoNode || stays.err != nil {
		t.Errorf("%v and %v", gone.err, stays.err)
	}
	if made := queueIn(t, s.conn, s, "a"); len(made) > 0 {
		t.Errorf("%v were made for one who had left", made)
	}
}

// The answer to many items is lost: each call finds out for itself what happened.
func TestAnswerToManyLost(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	proxy := faultproxy.New(t, server.Addr)
	s := longWaiting(openOn(t, "", proxy.Addr))
	keys, requests := keysAndWriters(10)
	known(t, s, keys...)
	gather(s)
	errs := make([]error, len(requests))
	var work sync.WaitGroup
	for i, r := range requests {
		work.Go(func() { _, errs[i] = s.Acquire(t.Context(), r) })
	}
	queued(t, s, len(requests))
	cut := proxy.CutAfterRequest(creates(s, keys[9]))
	flush(s)
	work.Wait()
	<-cut
	other := plain(t, server.Addr)
	for i, r := range requests {
		if !errors.Is(errs[i], driver.ErrUnknown) {
			t.Errorf("%s: %v", r.Key, errs[i])
		}
		r.Retry = true
		if g, _ := insist(t, s, r); g.Waiting {
			t.Errorf("%s: %+v", r.Key, g)
		}
		if n := queueIn(t, other, s, r.Key); len(n) != 2 {
			t.Errorf("%s: %v", r.Key, n)
		}
	}
}

// A request without an answer obeys its context, and its effect is found later.
func TestContextEndsWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	proxy := faultproxy.New(t, server.Addr)
	s := openOn(t, "", proxy.Addr)
	warm := writer("k")
	hold(t, s, warm)
	release(t, s, warm)
	proxy.Hold(faultproxy.ToClient)
	for _, call := range []func(context.Context) error{
		func(ctx context.Context) error {
			r := writer("k")
			r.TTL = time.Second // it may be repeated for that long
			_, err := s.Acquire(ctx, r)
			return err
		},
		func(ctx context.Context) error { _, err := s.Inspect(ctx, "k"); return err },
		func(ctx context.Context) error { _, err := s.Break(ctx, "k"); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if err := call(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want the context's error", err)
		}
		cancel()
	}
	proxy.Heal()
	direct := plain(t, server.Addr)
	eventually(t, "an empty line", func() bool { return len(queueIn(t, direct, s, "k")) == 0 })
}
