package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/batch"
)

const (
	maxBatch    = 60                     // the server allows 128 operations
	maxFlying   = 2                      // transactions under way, so that one is written while one is made up
	stuckAfter  = 300 * time.Millisecond // one that takes longer does not keep others back
	requestTime = 5 * time.Second        // when it is given up: a server that is alive answers before
	unhurried   = 4 * time.Millisecond   // how long an item that is in no hurry waits for others

	// alonePatience is patienceFor what has no TTL.
	alonePatience = requestTime / 5
)

// An item is one conditional transaction about one name.
type item struct {
	batch.Item
	dir  string // of the key
	name string
	puts bool // it may create the name
	once bool // a decision about limits: twice is not once, so only one member is asked
	txn  *pb.TxnRequest
	on   []*lease      // what it may put the name on
	ttl  time.Duration // of the claim; 0: not known
	keys [2]batch.Key  // room for what travels returns

	wrapped bool // the failure of txn is one that asks for more
	patient bool // it is in no hurry: let it go with others if there are any soon

	resp *pb.TxnResponse
	rev  int64 // the store's revision after it
	err  error // of package driver

	again bool      // it may have been done before: what it finds may be its own doing
	twice bool      // several members were asked: it may be done once more
	doubt time.Time // of the claim before this one's answer was not waited for; guarded by Store.mu
}

// answer is the transaction that was done, and what it said.
func (it *item) answer() (*pb.TxnRequest, *pb.TxnResponse) {
	if it.wrapped && !it.resp.Succeeded {
		return it.txn.Failure[0].GetRequestTxn(), answerOf(it.resp.Responses[0])
	}
	return it.txn, it.resp
}

// newBatcher joins the transactions of items.
func (s *Store) newBatcher(patience time.Duration) *batch.Batcher[*item] {
	return batch.New(batch.Config[*item]{
		Send: s.sendItems, Go: s.workers.Go,
		Max: maxBatch, InFlight: maxFlying, Stuck: stuckAfter,
		Keys:    (*item).travels,
		Kind:    (*item).kind,
		Patient: func(it *item) bool { return it.patient }, Linger: patience,
	})
}

// travels keeps apart what the server refuses in one transaction, two items about one
// name, and two puts for one key: they would share their revision, and with it their
// place in line.
func (it *item) travels() []batch.Key {
	it.keys[0] = batch.Key{Name: it.name, Rule: batch.Once | batch.Order}
	if !it.puts {
		return it.keys[:1]
	}
	it.keys[1] = batch.Key{Name: it.dir, Rule: batch.Once}
	return it.keys[:]
}

// kind keeps what only one member may be asked for from what others are asked for, too.
func (it *item) kind() int {
	if it.once {
		return 1
	}
	return 0
}

// do has the item done and waits for it. After an error that is ErrUnknown it may
// still happen: it.Done tells when that is over.
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

// sendItems makes one transaction, in which each item is a nested one that succeeds or
// fails by itself.
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
	after := all[0].patience()
	for _, it := range all {
		after = min(after, it.patience())
	}
	resp, twice, err := s.txn(ctx, after, txn)
	full := errors.Is(rpctypes.Error(err), rpctypes.ErrNoSpace)
	if err = failure(ctx, err); full || errors.Is(err, driver.ErrUnavailable) {
		// Nothing was done, perhaps for one item's sake. If the server is full it
		// may have been: then it still does what needs no space.
		var work sync.WaitGroup
		for _, it := range all {
			it.again, it.twice = full || twice, twice
			work.Go(func() { s.sendAlone(it) })
		}
		work.Wait()
		return
	}
	for i, it := range all {
		it.again, it.twice = twice, twice
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
	resp, twice, err := s.txn(ctx, it.patience(), it.txn)
	it.again, it.twice = it.again || twice, it.twice || twice
	if err != nil && it.again {
		err = fmt.Errorf("etcd: %w: %w", driver.ErrUnknown, rpctypes.Error(err))
	} else {
		err = failure(ctx, err)
	}
	it.answered(resp, resp.GetHeader().GetRevision(), err)
}

// errTwice says that a request finds things not as they should be, perhaps because
// it has changed them itself.
var errTwice = errors.New("it was asked for twice, and the first time may have had the effect")

// answered sets the outcome.
func (it *item) answered(resp *pb.TxnResponse, rev int64, err error) {
	switch {
	case err != nil:
		it.err = err
	case it.again && !resp.Succeeded && !it.puts:
		it.err = fmt.Errorf("etcd: %w: %w", driver.ErrUnknown, errTwice)
	default:
		it.resp, it.rev = resp, rev
	}
	it.Finish()
}

func (it *item) patience() time.Duration {
	switch {
	case it.once:
		return 2 * requestTime // it is given up before
	case it.ttl == 0:
		return alonePatience
	}
	return patienceFor(it.ttl)
}
