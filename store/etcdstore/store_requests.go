package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/batch"
)

const (
	maxBatch    = 60                     // the server allows 128 operations
	maxFlying   = 2                      // concurrent transactions: one is written while the next is made
	stuckAfter  = 300 * time.Millisecond // a slower transaction does not delay the next ones
	requestTime = 5 * time.Second        // when a request is given up: a live server answers before

	hedgeWithoutTTL = requestTime / 5
)

// An item is one conditional transaction about one name.
type item struct {
	batch.Item
	dir  string // of the key
	name string
	puts bool // it may create the name
	once bool // a decision about limits: it must not happen twice, so only one member is asked
	txn  *pb.TxnRequest
	on   []*lease      // the leases that it may put the name on
	ttl  time.Duration // of the claim; 0: unknown
	keys [2]batch.Key  // memory for batchKeys

	wrapped bool // txn's failure branch is a transaction that reads more

	resp *pb.TxnResponse
	rev  int64 // the revision after it
	err  error // of package driver

	repeated   bool      // it may have been executed before, so that it finds its own effect
	hedged     bool      // several members were asked: it may be executed once more
	abandoned  bool      // its caller has left; guarded by Store.mu
	unresolved time.Time // the claim's before that
}

// answer returns the transaction that was executed, and its answer.
func (it *item) answer() (*pb.TxnRequest, *pb.TxnResponse) {
	if it.wrapped && !it.resp.Succeeded {
		return it.txn.Failure[0].GetRequestTxn(), answerOf(it.resp.Responses[0])
	}
	return it.txn, it.resp
}

// newBatcher merges the transactions of items.
func (s *Store) newBatcher() *batch.Batcher[*item] {
	return batch.New(batch.Config[*item]{
		Send: s.sendItems, Go: s.workers.Go,
		Max: maxBatch, InFlight: maxFlying, Stuck: stuckAfter,
		Keys: (*item).batchKeys,
		Kind: (*item).kind,
	})
}

// batchKeys separates what the server refuses in one transaction, two items about one
// name, and two puts for one key, which would share a revision and so a position.
func (it *item) batchKeys() []batch.Key {
	it.keys[0] = batch.Key{Name: it.name, Rule: batch.Once | batch.Order}
	if !it.puts {
		return it.keys[:1]
	}
	it.keys[1] = batch.Key{Name: it.dir, Rule: batch.Once}
	return it.keys[:]
}

// kind separates items that only one member may be asked for from the others.
func (it *item) kind() any { return it.once }

// do sends the item and waits for its outcome. After ErrUnknown the item may still
// happen, until it.Done.
func (s *Store) do(ctx context.Context, it *item) error {
	err := s.batch.Do(ctx, it)
	switch {
	case errors.Is(err, driver.ErrUnknown):
		return fmt.Errorf("etcd: %w", err)
	case err != nil:
		return err
	}
	return it.err
}

// sendItems makes one transaction, in which each item is a nested transaction that
// succeeds or fails by itself.
func (s *Store) sendItems(_ context.Context, all []*item) {
	if len(all) == 1 {
		s.sendAlone(all[0])
		return
	}
	txn := &pb.TxnRequest{Success: make([]*pb.RequestOp, len(all))}
	for i, it := range all {
		txn.Success[i] = nested(it.txn)
	}
	ctx, cancel := context.WithTimeout(s.ctx, requestTime)
	defer cancel()
	after := all[0].hedgeAfter()
	for _, it := range all {
		after = min(after, it.hedgeAfter())
	}
	resp, twice, err := s.txn(ctx, after, txn)
	full := errors.Is(rpctypes.Error(err), rpctypes.ErrNoSpace)
	if err = failure(ctx, err); full || errors.Is(err, driver.ErrUnavailable) {
		// The server did nothing, perhaps because of one item. A full server may have
		// executed items that need no space, and does so again.
		var work sync.WaitGroup
		for _, it := range all {
			it.repeated, it.hedged = full || twice, twice
			work.Go(func() { s.sendAlone(it) })
		}
		work.Wait()
		return
	}
	for i, it := range all {
		it.repeated, it.hedged = twice, twice
		var own *pb.TxnResponse
		if err == nil {
			own = answerOf(resp.Responses[i])
		}
		it.answered(own, resp.GetHeader().GetRevision(), err)
	}
}

func (s *Store) sendAlone(it *item) {
	ctx, cancel := context.WithTimeout(s.ctx, requestTime)
	defer cancel()
	resp, twice, err := s.txn(ctx, it.hedgeAfter(), it.txn)
	it.repeated, it.hedged = it.repeated || twice, it.hedged || twice
	if err != nil && it.repeated {
		err = fmt.Errorf("etcd: %w: %w", driver.ErrUnknown, rpctypes.Error(err))
	} else {
		err = failure(ctx, err)
	}
	it.answered(resp, resp.GetHeader().GetRevision(), err)
}

// errTwice says that a condition of a request did not hold, perhaps because of an earlier
// effect of the request itself.
var errTwice = errors.New("it was asked for twice, and the first time may have had the effect")

// answered sets the outcome.
func (it *item) answered(resp *pb.TxnResponse, rev int64, err error) {
	switch {
	case err != nil:
		it.err = err
	case it.repeated && !resp.Succeeded && !it.puts:
		it.err = fmt.Errorf("etcd: %w: %w", driver.ErrUnknown, errTwice)
	default:
		it.resp, it.rev = resp, rev
	}
	it.Finish()
}

func (it *item) hedgeAfter() time.Duration {
	switch {
	case it.once:
		return 2 * requestTime // requestTime ends it before
	case it.ttl == 0:
		return hedgeWithoutTTL
	}
	return hedgeAfter(it.ttl)
}

// leaderKV makes a member without a leader refuse at once, instead of waiting for one. It
// takes answers of any size: a request whose answer is refused for its size has had its
// effect. The store sees all answers.
type leaderKV struct {
	pb.KVClient
	store *Store
}

var anySize = grpc.MaxCallRecvMsgSize(math.MaxInt32)

func (k leaderKV) Txn(ctx context.Context, r *pb.TxnRequest, opts ...grpc.CallOption) (*pb.TxnResponse, error) {
	at := k.store.history.now()
	resp, err := k.KVClient.Txn(clientv3.WithRequireLeader(ctx), r, append(opts, anySize)...)
	k.store.answered(at, resp.GetHeader(), err)
	return resp, err
}

func (k leaderKV) Range(ctx context.Context, r *pb.RangeRequest, opts ...grpc.CallOption) (*pb.RangeResponse, error) {
	at := k.store.history.now()
	resp, err := k.KVClient.Range(clientv3.WithRequireLeader(ctx), r, append(opts, anySize)...)
	k.store.answered(at, resp.GetHeader(), err)
	return resp, err
}

func (k leaderKV) DeleteRange(ctx context.Context, r *pb.DeleteRangeRequest, opts ...grpc.CallOption) (*pb.DeleteRangeResponse, error) {
	at := k.store.history.now()
	resp, err := k.KVClient.DeleteRange(clientv3.WithRequireLeader(ctx), r, append(opts, anySize)...)
	k.store.answered(at, resp.GetHeader(), err)
	return resp, err
}

// Constructors of the parts of etcd's requests.

func createRev(name string, rev int64) *pb.Compare {
	return &pb.Compare{
		Key: []byte(name), Target: pb.Compare_CREATE, Result: pb.Compare_EQUAL,
		TargetUnion: &pb.Compare_CreateRevision{CreateRevision: rev},
	}
}

func modRev(name string, rev int64) *pb.Compare {
	return &pb.Compare{
		Key: []byte(name), Target: pb.Compare_MOD, Result: pb.Compare_EQUAL,
		TargetUnion: &pb.Compare_ModRevision{ModRevision: rev},
	}
}

func createdAfter(name string, rev int64) *pb.Compare {
	c := createRev(name, rev)
	c.Result = pb.Compare_GREATER
	return c
}

func hasValue(name, value string) *pb.Compare {
	return &pb.Compare{
		Key: []byte(name), Target: pb.Compare_VALUE, Result: pb.Compare_EQUAL,
		TargetUnion: &pb.Compare_Value{Value: []byte(value)},
	}
}

func onLease(name string, lease int64) *pb.Compare {
	return &pb.Compare{
		Key: []byte(name), Target: pb.Compare_LEASE, Result: pb.Compare_EQUAL,
		TargetUnion: &pb.Compare_Lease{Lease: lease},
	}
}

// noNames is true if no name begins with dir.
func noNames(dir string) *pb.Compare {
	c := createRev(dir, 0)
	c.RangeEnd = []byte(dirEnd(dir))
	return c
}

// noNamesSince is true if no name that begins with dir was made after rev. With rev 0 it
// is noNames.
func noNamesSince(dir string, rev int64) *pb.Compare {
	c := noNames(dir)
	if rev > 0 {
		c.Result, c.TargetUnion = pb.Compare_LESS, &pb.Compare_CreateRevision{CreateRevision: rev + 1}
	}
	return c
}

func put(name, value string, lease int64) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{
		Key: []byte(name), Value: []byte(value), Lease: lease,
	}}}
}

func remove(name string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{
		Key: []byte(name),
	}}}
}

func get(name string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte(name)}}}
}

func listing(dir string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{
		Key: []byte(dir), RangeEnd: []byte(dirEnd(dir)),
	}}}
}

// oldest reads only the head of the queue.
func oldest(dir string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{
		Key: []byte(dir), RangeEnd: []byte(dirEnd(dir)),
		SortTarget: pb.RangeRequest_CREATE, SortOrder: pb.RangeRequest_ASCEND, Limit: 1,
	}}}
}

func nested(t *pb.TxnRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: t}}
}

func ops(o ...*pb.RequestOp) []*pb.RequestOp { return o }

func only(c ...*pb.Compare) []*pb.Compare { return c }

func rangeOf(r *pb.ResponseOp) *pb.RangeResponse { return r.GetResponseRange() }

func answerOf(r *pb.ResponseOp) *pb.TxnResponse { return r.GetResponseTxn() }
