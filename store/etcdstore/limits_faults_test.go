package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/rate"
	"github.com/batonhq/baton/internal/testserver"
)

// An answer that never came: with an ID the store finds out what happened, and
// without one it says that it does not know.
func TestLimitLostAnswer(t *testing.T) {
	t.Parallel()
	for _, happened := range []bool{true, false} {
		all := openOn(t, testserver.SharedEtcd(t), 2)
		key := fmt.Sprint("k", happened)
		k := tap(all[0])
		k.lose(t, happened)
		if d := mustTake(t, all[0], withID(asks(key, five, 2))); !d.OK || d.Repeated != happened || d.Limits[0].Remaining != 3 {
			t.Errorf("with an ID, happened %v: %+v", happened, d)
		}
		k.lose(t, happened)
		left := int64(3)
		if happened {
			left = 1
		}
		if d, err := all[0].Take(t.Context(), asks(key, five, 2)); !errors.Is(err, driver.ErrUnknown) {
			t.Errorf("without one, happened %v: %+v, %v", happened, d, err)
		}
		if d := mustTake(t, all[1], asks(key, five, 0)); d.Limits[0].Remaining != left {
			t.Errorf("happened %v: %+v, want %d", happened, d, left)
		}
		k.lose(t, happened)
		if _, err := all[0].Take(t.Context(), asks(key, five, 0)); err != nil {
			t.Errorf("a look: %v", err)
		}
	}
}

// Only a request with an ID can be asked about: the other callers of the transaction
// hear that nothing is known, and a request that changed nothing is decided again.
func TestLimitLostAnswerOfMany(t *testing.T) {
	t.Parallel()
	s := openOn(t, testserver.SharedEtcd(t), 1)[0]
	k := tap(s)
	held, release := make(chan struct{}), make(chan struct{})
	k.before = func(n int, r *pb.TxnRequest) error {
		switch n {
		case 1:
			close(held)
			<-release
		case 2:
			return io.EOF
		}
		return nil
	}
	requests := []limits.Request{
		asks("k", five, 1), withID(asks("k", five, 1)), asks("k", five, 1), asks("k", five, 0), asks("k", five, 6), withID(asks("k", five, 1)),
	}
	var work sync.WaitGroup
	for i, r := range requests {
		work.Go(func() {
			d, err := s.Take(t.Context(), r)
			switch i {
			case 2:
				if !errors.Is(err, driver.ErrUnknown) {
					t.Errorf("without an ID: %+v, %v", d, err)
				}
			default:
				if err != nil || d.OK != (i != 4) {
					t.Errorf("call %d: %+v, %v", i, d, err)
				}
			}
		})
		if i == 0 {
			<-held
		}
	}
	eventually(t, "they wait", 20*time.Second, func() bool { return waitingCalls(s, "k") == len(requests)-1 })
	close(release)
	work.Wait()
	if d := mustTake(t, s, asks("k", five, 0)); d.Limits[0].Remaining != 2 {
		t.Errorf("%+v", d)
	}
}

// A transaction whose answer was lost may still be under way when its caller has been
// unconfirmed that it was refused. Then it must not take effect, even if everything is again
// as when it was sent.
func TestLimitLateTransaction(t *testing.T) {
	t.Parallel()
	all := openOn(t, testserver.SharedEtcd(t), 2)
	k := tap(all[0])
	var late *pb.TxnRequest
	k.before = func(n int, r *pb.TxnRequest) error {
		if n > 1 {
			return nil
		}
		late = r
		mustTake(t, all[1], asks("k", five, 5))
		return io.EOF
	}
	r := withID(asks("k", five, 5))
	if d := mustTake(t, all[0], r); d.OK {
		t.Fatalf("%+v", d)
	}
	forget := asks("k", five, 0)
	forget.Mode = limits.Forget
	mustTake(t, all[1], forget)
	resp, err := k.KVClient.Txn(t.Context(), late)
	if err != nil || resp.Succeeded {
		t.Errorf("it happened after all: %v, %v", resp, err)
	}
	if d := mustTake(t, all[1], asks("k", five, 0)); d.Limits[0].Remaining != 5 {
		t.Errorf("%+v", d)
	}
	// A refusal is not remembered.
	if d := mustTake(t, all[0], r); !d.OK || d.Repeated {
		t.Errorf("asked again: %+v", d)
	}
	if d := mustTake(t, all[0], r); !d.OK || !d.Repeated {
		t.Errorf("and again: %+v", d)
	}
}

// A call that gives up while it waits takes nothing and holds up no other call; one
// that gives up while the transaction is under way does not know its outcome.
func TestLimitGivenUp(t *testing.T) {
	t.Parallel()
	s := openOn(t, testserver.SharedEtcd(t), 1)[0]
	k := tap(s)
	held, release := make(chan struct{}), make(chan struct{})
	k.before = func(n int, _ *pb.TxnRequest) error {
		if n == 1 {
			close(held)
			<-release
		}
		return nil
	}
	var work sync.WaitGroup
	give := func(key string, want error, others ...string) context.CancelFunc {
		ctx, cancel := context.WithCancel(t.Context())
		r := asks(key, five, 1)
		for _, other := range others {
			r.Takes = append(r.Takes, limits.Take{Key: other, Limit: five, Cost: 1})
		}
		work.Go(func() {
			_, err := s.Take(ctx, r)
			r.Takes[0].Key = "the caller's again"
			if !errors.Is(err, context.Canceled) || errors.Is(err, driver.ErrUnknown) != (want != nil) {
				t.Errorf("%s: %v", key, err)
			}
		})
		return cancel
	}
	underWay := give("k", driver.ErrUnknown)
	<-held
	// This one waits for k, and others wait for it, although l is free.
	inLine := give("l", nil, "k")
	eventually(t, "it waits", 20*time.Second, func() bool { return waitingCalls(s, "k") == 1 })
	behind := make(chan limits.Taken)
	work.Go(func() { behind <- mustTake(t, s, asks("l", five, 1)) })
	eventually(t, "another waits behind it", 20*time.Second, func() bool { return waitingCalls(s, "l") == 2 })
	inLine()
	if d := <-behind; !d.OK || d.Limits[0].Remaining != 4 {
		t.Errorf("%+v", d)
	}
	underWay()
	work.Wait()
	close(release)
	if d := mustTake(t, s, asks("k", five, 0)); d.Limits[0].Remaining != 4 {
		t.Errorf("what was under way: %+v", d)
	}
	eventually(t, "nothing is left behind", 20*time.Second, func() bool {
		s.limits.mu.Lock()
		defer s.limits.mu.Unlock()
		return len(s.limits.keys) == 0
	})
}

// A store that is closed during calls still answers them.
func TestLimitClosed(t *testing.T) {
	t.Parallel()
	s := openOn(t, testserver.SharedEtcd(t), 1)[0]
	k := tap(s)
	held, release := make(chan struct{}), make(chan struct{})
	k.before = func(n int, _ *pb.TxnRequest) error {
		if n == 1 {
			close(held)
			<-release
		}
		return nil
	}
	var work sync.WaitGroup
	ask := func(want error) {
		work.Go(func() {
			if d, err := s.Take(t.Context(), asks("k", five, 1)); !errors.Is(err, want) {
				t.Errorf("%+v, %v, want %v", d, err, want)
			}
		})
	}
	ask(driver.ErrUnknown)
	<-held
	ask(driver.ErrClosed)
	eventually(t, "it waits", 20*time.Second, func() bool { return waitingCalls(s, "k") == 1 })
	s.Close()
	close(release)
	work.Wait()
	if _, err := s.Take(t.Context(), asks("k", five, 1)); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("afterwards: %v", err)
	}
}

// A cluster loses its leader under many calls: no caller pays twice, and nothing that
// was allowed is forgotten.
func TestLimitLeaderKilled(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	cluster := testserver.EtcdThree(t)
	var all []*Store
	for range 2 {
		all = append(all, mustNew(t, dial(t, cluster.Addrs()...), Config{Prefix: prefixOf(t)}))
	}
	lots := limits.Limit{Algorithm: limits.TokenBucket, N: 1, Period: 1000 * time.Hour, Burst: 400}
	const callers, each = 16, 30 // of which 400 are allowed
	var ok, answers, unknown atomic.Int64
	halfway := make(chan struct{})
	late, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var work sync.WaitGroup
	for i := range callers {
		work.Go(func() {
			for range each {
				r := withID(asks("k", lots, 1))
				for {
					ctx, cancel := context.WithTimeout(late, 2*time.Second)
					d, err := all[i%2].Take(ctx, r)
					cancel()
					if err == nil {
						if d.OK {
							ok.Add(1)
						}
						break
					}
					if late.Err() != nil {
						t.Error(err)
						return
					}
					unknown.Add(1)
					<-time.After(20 * time.Millisecond) // there is no leader
				}
				if answers.Add(1) == callers*each/4 {
					close(halfway)
				}
			}
		})
	}
	select {
	case <-halfway:
	case <-late.Done():
	}
	leader := cluster.Leader(t)
	leader.Kill()
	work.Wait()
	t.Logf("%d attempts had no answer", unknown.Load())
	if n := ok.Load(); n != 400 {
		t.Errorf("%d of 400 were allowed", n)
	}
	testserver.RestartEtcd(t, leader)
	if d := mustTake(t, all[0], asks("k", lots, 0)); d.Limits[0].Remaining != 0 {
		t.Errorf("%+v", d)
	}
}

// Many calls whose decisions need a lease share one failure, and do not fail one after
// the other.
func TestLimitLeaseFails(t *testing.T) {
	t.Parallel()
	s := openOn(t, testserver.SharedEtcd(t), 1)[0]
	leaser := &failingLeases{LeaseClient: s.leaser, asked: make(chan struct{}, 100), fail: make(chan struct{})}
	s.leaser = leaser
	var work sync.WaitGroup
	for i := range 20 {
		work.Go(func() {
			r := asks(fmt.Sprint("k", i), five, 1)
			if d, err := s.Take(t.Context(), r); !errors.Is(err, driver.ErrUnavailable) {
				t.Errorf("%+v, %v", d, err)
			}
		})
	}
	<-leaser.asked
	eventually(t, "all are under way", 20*time.Second, func() bool {
		s.limits.mu.Lock()
		defer s.limits.mu.Unlock()
		return len(s.limits.keys) == 20
	})
	close(leaser.fail)
	work.Wait()
	s.leaser = leaser.LeaseClient
	if d := mustTake(t, s, asks("k0", five, 1)); d.Limits[0].Remaining != 4 {
		t.Errorf("%+v", d)
	}
}

type failingLeases struct {
	pb.LeaseClient
	asked, fail chan struct{}
}

func (c *failingLeases) LeaseGrant(context.Context, *pb.LeaseGrantRequest, ...grpc.CallOption) (*pb.LeaseGrantResponse, error) {
	c.asked <- struct{}{}
	<-c.fail
	return nil, io.EOF
}

// Long logs are decided. If they do not fit into a request together, nothing is
// changed.
func TestLimitLargeStates(t *testing.T) {
	t.Parallel()
	s := openOn(t, testserver.SharedEtcd(t), 1)[0]
	l := limits.Limit{Algorithm: limits.SlidingLog, N: rate.MaxLog, Period: 24 * time.Hour}
	state := rate.State{0, 1, l.N}
	end := time.Now().Add(time.Hour).UnixMicro()
	for i := range l.N - 10 {
		state = append(state, end+i, 1)
	}
	var all limits.Request
	for i := range limits.MaxTakes {
		key := fmt.Sprint("k", i)
		if _, err := s.client.Put(t.Context(), s.stateName(key), state.Text()); err != nil {
			t.Fatal(err)
		}
		all.Takes = append(all.Takes, limits.Take{Key: key, Limit: l, Cost: 1})
	}
	for _, n := range []int{limits.MaxTakes, 9} { // more than the client sends, and than the server takes
		r := all
		r.Takes = r.Takes[:n]
		if d, err := s.Take(t.Context(), r); !errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrUnknown) {
			t.Errorf("%d of them: %+v, %v", n, d.OK, err)
		}
	}
	// An answer may be of any size.
	r := limits.Request{}
	for i := range 4 {
		key := fmt.Sprint("garbage", i)
		if _, err := s.client.Put(t.Context(), s.stateName(key), strings.Repeat("x", 1_400_000)); err != nil {
			t.Fatal(err)
		}
		r.Takes = append(r.Takes, limits.Take{Key: key, Limit: five, Cost: 1})
	}
	if d := mustTake(t, s, r); !d.OK || d.Limits[3].Remaining != 4 {
		t.Errorf("%+v", d)
	}

	var work sync.WaitGroup
	for i := range limits.MaxTakes {
		work.Go(func() {
			if d := mustTake(t, s, asks(fmt.Sprint("k", i), l, 1)); d.Limits[0].Remaining != 9 {
				t.Errorf("%+v", d)
			}
		})
	}
	work.Wait()
}
