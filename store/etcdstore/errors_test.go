package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/batch"
	"github.com/batonhq/baton/internal/bootclock"
	"github.com/batonhq/baton/internal/testserver"
)

// Trap 12: what certainly had no effect is distinguished from what may have had one.
func TestFailures(t *testing.T) {
	t.Parallel()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, test := range []struct {
		err  error
		ctx  context.Context
		want error
	}{
		{rpctypes.ErrGRPCNoSpace, t.Context(), driver.ErrUnknown},
		{rpctypes.ErrGRPCRequestTooManyRequests, t.Context(), driver.ErrUnavailable}, // the server's queue is full
		{rpctypes.ErrGRPCTooManyOps, t.Context(), driver.ErrUnavailable},             // --max-txn-ops
		{rpctypes.ErrGRPCRequestTooLarge, t.Context(), driver.ErrUnavailable},
		{rpctypes.ErrGRPCNoLeader, t.Context(), driver.ErrUnavailable},
		{rpctypes.ErrGRPCLeaseNotFound, t.Context(), driver.ErrUnavailable},
		{rpctypes.ErrGRPCPermissionDenied, t.Context(), driver.ErrDenied},
		{rpctypes.ErrGRPCInvalidAuthToken, t.Context(), driver.ErrUnavailable},
		{status.Error(codes.Unavailable, `connection error: desc = "transport: error while dialing: refused"`), t.Context(), driver.ErrUnavailable},
		{status.Error(codes.ResourceExhausted, "grpc: received message larger than max (3041058 vs. 2097152)"), t.Context(), driver.ErrUnavailable},
		{status.Error(codes.ResourceExhausted, "trying to send message larger than max (3000000 vs. 2097152)"), t.Context(), driver.ErrUnavailable},

		{rpctypes.ErrGRPCTimeout, t.Context(), driver.ErrUnknown},
		{rpctypes.ErrGRPCTimeoutDueToLeaderFail, t.Context(), driver.ErrUnknown},
		{rpctypes.ErrGRPCTimeoutDueToConnectionLost, t.Context(), driver.ErrUnknown},
		{rpctypes.ErrGRPCLeaderChanged, t.Context(), driver.ErrUnknown},
		{rpctypes.ErrGRPCStopped, t.Context(), driver.ErrUnknown},
		{status.Error(codes.Unavailable, "error reading from server: EOF"), t.Context(), driver.ErrUnknown},
		{status.Error(codes.DeadlineExceeded, "context deadline exceeded"), t.Context(), driver.ErrUnknown},
		{status.Error(codes.Internal, "error while dialing"), t.Context(), driver.ErrUnknown},
		{io.EOF, t.Context(), driver.ErrUnknown},
		{context.Canceled, over, driver.ErrUnknown},
	} {
		t.Run(fmt.Sprint(test.err), func(t *testing.T) {
			got := failure(test.ctx, test.err)
			if !errors.Is(got, test.want) || errors.Is(got, driver.ErrUnknown) && errors.Is(got, driver.ErrUnavailable) {
				t.Errorf("%v, want %v", got, test.want)
			}
			if c := test.ctx.Err(); c != nil && !errors.Is(got, c) {
				t.Errorf("%v does not say that the context has ended", got)
			}
			read := driver.ErrUnavailable
			if test.want == driver.ErrDenied {
				read = test.want
			}
			if err := readFailure(t.Context(), test.err); !errors.Is(err, read) || errors.Is(err, driver.ErrUnknown) {
				t.Errorf("of a read: %v, want %v", err, read)
			}
		})
	}
}

// Trap 10: a server whose quota is used up grants nothing, but renewing and
// releasing go on.
func TestNoSpace(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t, "--quota-backend-bytes=4194304")
	s := openOn(t, server, 1)[0]
	c, _ := take(t, s, claimOf("k", "me"), long, false)
	fill(t, s)
	_, err := s.Acquire(t.Context(), driver.Request{Claim: claimOf("other", "me"), TTL: long})
	if !errors.Is(err, driver.ErrUnknown) || !strings.Contains(err.Error(), "space") {
		t.Errorf("acquire: %v, want ErrUnknown about space", err)
	}
	if r := renewOne(t, s, c, long); r.State != driver.Held {
		t.Errorf("renew: %v (%v), want held", r.State, r.Err)
	}
	mustRelease(t, s, c)
}

// fill writes until the server has no space.
func fill(t *testing.T, s *Store) {
	t.Helper()
	text := strings.Repeat("x", 500_000)
	for i := range 100 {
		if _, err := s.client.Put(t.Context(), fmt.Sprint("fill", i), text); err != nil {
			return
		}
	}
	t.Fatal("the quota was not reached")
}

// A server may have carried out a request when it says that it is full.
func TestFullAfterTheEffect(t *testing.T) {
	t.Parallel()
	s := openOn(t, testserver.SharedEtcd(t), 1)[0]
	held, _ := take(t, s, claimOf("held", "me"), long, false)
	k := tap(s)
	k.before = func(n int, r *pb.TxnRequest) error {
		if len(r.Success) != 1 || !strings.Contains(string(r.Success[0].GetRequestPut().GetValue()), `"me"`) {
			return nil // neither an acquire nor a downgrade
		}
		if _, err := k.KVClient.Txn(t.Context(), r); err != nil {
			t.Error(err)
		}
		return rpctypes.ErrGRPCNoSpace
	}
	r := driver.Request{Claim: claimOf("k", "me"), TTL: long}
	if _, err := s.Acquire(t.Context(), r); !errors.Is(err, driver.ErrUnknown) {
		t.Errorf("acquire: %v, want ErrUnknown", err)
	}
	mustRelease(t, s, r.Claim)
	if _, err := s.Downgrade(t.Context(), held, long); !errors.Is(err, driver.ErrUnknown) {
		t.Errorf("downgrade: %v, want ErrUnknown", err)
	}
	reader := claimOf("held", "other")
	reader.Weight = 1
	beside, _ := take(t, s, reader, long, false)
	if a := renewOne(t, s, held, long); a.State != driver.Held {
		t.Errorf("downgraded, and renewed: %+v", a)
	}
	mustRelease(t, s, beside)
	mustRelease(t, s, held)
	nothingLeft(t, s, "k", "held")
}

// The same for several items that went together: each is sent again, and one that does
// not find things as they were cannot tell which request has changed them.
func TestFullAfterTheEffectOfMany(t *testing.T) {
	t.Parallel()
	for _, happened := range []bool{false, true} {
		s := openOn(t, testserver.SharedEtcd(t), 1)[0]
		held, _ := take(t, s, claimOf("held", "me"), long, false)
		k := tap(s)
		k.before = func(n int, r *pb.TxnRequest) error {
			if n > 1 {
				return nil
			}
			if happened {
				if _, err := k.KVClient.Txn(t.Context(), r); err != nil {
					t.Error(err)
				}
			}
			return rpctypes.ErrGRPCNoSpace
		}
		c := claimOf("k", "me")
		s.mu.Lock()
		release := s.claimLocked(held).release()
		lease := s.leases[seconds(long)].id
		s.mu.Unlock()
		name := s.ownName(s.dir("k"), 0)
		acquire := &item{Item: batch.NewItem(), dir: s.dir("k"), name: name, puts: true, txn: &pb.TxnRequest{
			Compare: only(noNames(s.dir("k"))),
			Success: ops(put(name, encode(c), lease)),
			Failure: ops(get(name), listing(s.dir("k"))),
		}}
		s.sendItems(t.Context(), []*item{acquire, release})
		if acquire.err != nil || acquire.resp.Succeeded == happened {
			t.Errorf("happened=%v: the acquire: %v (%v)", happened, acquire.resp, acquire.err)
		}
		if happened != errors.Is(release.err, driver.ErrUnknown) || !happened && release.err != nil {
			t.Errorf("happened=%v: the release: %v", happened, release.err)
		}
		awaitNames(t, s, "held", 0, 0)
	}
}

// A request that was not sent does not count as answered for calls that waited for its
// outcome.
func TestOutcomeOfWhatWasNotSent(t *testing.T) {
	t.Parallel()
	s := openOn(t, testserver.SharedEtcd(t), 1)[0]
	cl := claimOf("k", "me")
	it := putOf(t, "k")
	s.mu.Lock()
	c := s.addLocked(s.lockLocked(cl.Key), cl)
	c.item, c.unresolved = it, bootclock.Now().Add(time.Minute) // an earlier put may yet come
	s.mu.Unlock()
	resume := s.batch.Pause()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var work sync.WaitGroup
	work.Go(func() { s.resolve(c, it) }) // as a release does that began meanwhile
	work.Go(func() {
		queued(t, s.batch, 1)
		cancel()
	})
	if err := s.do(ctx, it); !errors.Is(err, context.Canceled) || errors.Is(err, driver.ErrUnknown) {
		t.Errorf("it was not sent: %v, want the context's error alone", err)
	}
	work.Wait()
	resume()
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.item != nil || c.rev != 0 {
		t.Errorf("the claim counts on it: %+v", c)
	}
	if !c.uncertain() {
		t.Error("an earlier put is no longer looked for")
	}
}
