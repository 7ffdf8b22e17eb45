package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/workers"
)

const (
	maxBatch    = 60                     // the server allows 128 operations
	maxFlying   = 2                      // transactions under way, so that one is written while one is made up
	stuckAfter  = 300 * time.Millisecond // one that takes longer does not keep others back
	requestTime = 5 * time.Second        // when it is given up: a server that is alive answers before
	patience    = 4 * time.Millisecond   // how long an item that is in no hurry waits for others

	// alonePatience is patienceFor what has no TTL.
	alonePatience = requestTime / 5
)

// An item is one conditional transaction about one name.
type item struct {
	dir  string // of the key
	name string
	puts bool // it may create the name
	once bool // a decision about limits: twice is not once, so only one member is asked
	txn  *pb.TxnRequest
	on   []*lease      // what it may put the name on
	ttl  time.Duration // of the claim; 0: not known

	wrapped bool      // the failure of txn is one that asks for more
	patient bool      // it is in no hurry: let it go with others if there are any soon
	queued  time.Time // since when

	done chan struct{} // closed when the rest is set
	resp *pb.TxnResponse
	rev  int64 // the store's revision after it
	err  error // of package driver

	again bool      // it may have been done before: what it finds may be its own doing
	twice bool      // several members were asked: it may be done once more
	sent  bool      // guarded by batcher.mu
	doubt time.Time // of the claim before this one's answer was not waited for; guarded by Store.mu
}

// answer is the transaction that was done, and what it said.
func (it *item) answer() (*pb.TxnRequest, *pb.TxnResponse) {
	if it.wrapped && !it.resp.Succeeded {
		return it.txn.Failure[0].GetRequestTxn(), answerOf(it.resp.Responses[0])
	}
	return it.txn, it.resp
}

// batcher sends items to the server: at once while nothing is under way, and
// otherwise those that have gathered meanwhile in one transaction.
type batcher struct {
	store    *Store
	workers  *workers.Pool
	patience time.Duration

	mu     sync.Mutex
	queue  []*item
	flying int
	armed  bool // somebody looks whether patience is at an end
}

// do has the item done and waits for it. After an error that is ErrUnknown it
// may still happen: item.done tells when that is over.
func (b *batcher) do(ctx context.Context, it *item) error {
	it.done, it.queued = make(chan struct{}), time.Now()
	b.mu.Lock()
	b.queue = append(b.queue, it)
	b.launchLocked()
	b.mu.Unlock()
	select {
	case <-it.done:
		return it.err
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !it.sent {
		for i, q := range b.queue {
			if q == it {
				b.queue = append(b.queue[:i:i], b.queue[i+1:]...)
				break
			}
		}
		it.err = ctx.Err()
		close(it.done)
		return it.err
	}
	select {
	case <-it.done: // just now
		return it.err
	default:
		return failure(ctx, ctx.Err())
	}
}

func (b *batcher) launchLocked() {
	if b.flying >= maxFlying {
		return
	}
	if batch := b.takeLocked(); len(batch) > 0 {
		b.flying++
		b.workers.Go(func() { b.fly(batch) })
	}
}

// waitLocked reports whether nothing in the queue is in a hurry. It sees to
// that what is there goes in a while.
func (b *batcher) waitLocked() bool {
	if len(b.queue) == 0 || slices.ContainsFunc(b.queue, func(it *item) bool { return !it.patient }) {
		return false
	}
	left := b.patience - time.Since(b.queue[0].queued)
	if left <= 0 {
		return false
	}
	if !b.armed {
		b.armed = true
		time.AfterFunc(left, func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.armed = false
			b.launchLocked()
		})
	}
	return true
}

// fly sends batches until nothing is left to send.
func (b *batcher) fly(batch []*item) {
	for {
		// Whoever is stuck gives its place to another, once.
		counted := true
		stuck := time.AfterFunc(stuckAfter, func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			if counted {
				counted = false
				b.flying--
				b.launchLocked()
			}
		})
		b.send(batch)
		stuck.Stop()

		b.mu.Lock()
		if !counted { // another flies in its place
			b.mu.Unlock()
			return
		}
		counted = false
		if batch = b.takeLocked(); len(batch) == 0 {
			b.flying--
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
	}
}

// takeLocked takes what may go together: one put for each key, since two would
// share their revision and with it their place in line, and one item for each
// name, as the server wants it; and what is to be asked for once alone, or nothing
// of that. The order of the items of one key stays.
func (b *batcher) takeLocked() []*item {
	if b.waitLocked() {
		return nil
	}
	if len(b.queue) == 0 {
		return nil
	}
	if len(b.queue) == 1 {
		it := b.queue[0]
		b.queue = nil
		it.sent = true
		return []*item{it}
	}
	var batch, rest []*item
	puts, names, blocked := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, it := range b.queue {
		if len(batch) == maxBatch || it.once != b.queue[0].once || names[it.name] || blocked[it.name] || it.puts && puts[it.dir] {
			rest = append(rest, it)
			blocked[it.name] = true
			continue
		}
		names[it.name] = true
		puts[it.dir] = puts[it.dir] || it.puts
		it.sent = true
		batch = append(batch, it)
	}
	b.queue = rest
	return batch
}

func (b *batcher) send(batch []*item) {
	if len(batch) == 1 {
		b.sendAlone(batch[0])
		return
	}
	txn := &pb.TxnRequest{Success: make([]*pb.RequestOp, len(batch))}
	for i, it := range batch {
		txn.Success[i] = nested(it.txn)
	}
	ctx, cancel := context.WithTimeout(b.store.ctx, requestTime)
	defer cancel()
	after := batch[0].patience()
	for _, it := range batch {
		after = min(after, it.patience())
	}
	resp, twice, err := b.store.txn(ctx, after, txn)
	full := errors.Is(rpctypes.Error(err), rpctypes.ErrNoSpace)
	if err = failure(ctx, err); full || errors.Is(err, driver.ErrUnavailable) {
		// Nothing was done, perhaps for one item's sake. If the server is full it
		// may have been: then it still does what needs no space.
		var work sync.WaitGroup
		for _, it := range batch {
			it.again, it.twice = full || twice, twice
			work.Go(func() { b.sendAlone(it) })
		}
		work.Wait()
		return
	}
	for i, it := range batch {
		it.again, it.twice = twice, twice
		var own *pb.TxnResponse
		if err == nil {
			own = answerOf(resp.Responses[i])
		}
		it.answered(own, resp.GetHeader().GetRevision(), err)
	}
}

func (b *batcher) sendAlone(it *item) {
	ctx, cancel := context.WithTimeout(b.store.ctx, requestTime)
	defer cancel()
	resp, twice, err := b.store.txn(ctx, it.patience(), it.txn)
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
	close(it.done)
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
