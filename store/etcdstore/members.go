package etcdstore

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// hedged sends a request to one member and, if no answer came within after, also to the
// next endpoint, by a separate connection, and so on: a member whose disk or process
// hangs keeps its connections. If answers usually take long, it waits for up to twice
// after.
//
// The request must be harmless if it is executed twice: it only reads, or its conditions
// no longer hold afterwards.
//
// twice says that other members were asked. Then another member may have executed the
// request before the answering one, and it may be executed once more, at any later time.
func hedged[T any](ctx context.Context, s *Store, after time.Duration, ask func(context.Context, pb.KVClient, pb.LeaseClient) (T, error)) (resp T, twice bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	first, giveUp := context.WithCancel(ctx)
	defer giveUp()
	after = s.latency.atLeast(after)

	var mu sync.Mutex
	var begun, over bool
	type answer struct {
		resp T
		err  error
	}
	others := make(chan answer, 1) // the first answer of another member
	none := make(chan struct{})    // closed when every endpoint has failed
	failed := 0
	fails := func() {
		mu.Lock()
		defer mu.Unlock()
		if failed++; failed == len(s.client.Endpoints()) {
			close(none)
		}
	}
	var next *time.Timer
	another := func() {
		mu.Lock()
		defer mu.Unlock()
		if over {
			return
		}
		begun = true
		next.Reset(after)
		go func() {
			conn, err := s.dialNext()
			if err != nil {
				fails()
				return
			}
			defer conn.Close()
			resp, err := ask(ctx, leaderKV{pb.NewKVClient(conn), s}, pb.NewLeaseClient(conn))
			if err != nil && passing(err) {
				fails()
				return // the next one is asked soon
			}
			select {
			case others <- answer{resp, err}:
				giveUp()
			default:
			}
		}()
	}
	mu.Lock()
	next = time.AfterFunc(after, another)
	mu.Unlock()
	sent := time.Now()
	resp, err = ask(first, s.kv, s.leaser)
	if err == nil {
		s.latency.add(time.Since(sent))
	}
	mu.Lock()
	defer mu.Unlock()
	wait := begun && err != nil && passing(err)
	if !wait {
		over = true
		next.Stop()
		return resp, begun, err
	}
	mu.Unlock()
	select {
	case a := <-others:
		resp, err = a.resp, a.err
	case <-none:
	case <-ctx.Done():
	}
	mu.Lock()
	over = true
	next.Stop()
	return resp, true, err
}

// txn sends a transaction by hedged.
func (s *Store) txn(ctx context.Context, after time.Duration, r *pb.TxnRequest) (*pb.TxnResponse, bool, error) {
	return hedged(ctx, s, after, func(ctx context.Context, kv pb.KVClient, _ pb.LeaseClient) (*pb.TxnResponse, error) {
		return kv.Txn(ctx, r)
	})
}

// read reads a range by hedged.
func (s *Store) read(ctx context.Context, after time.Duration, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	resp, _, err := hedged(ctx, s, after, func(ctx context.Context, kv pb.KVClient, _ pb.LeaseClient) (*pb.RangeResponse, error) {
		return kv.Range(ctx, r)
	})
	return resp, err
}

// latency is the longest recent time of an answer. It decays with each faster answer.
type latency struct{ longest atomic.Int64 }

// atLeast is how long to wait for one member before another is asked: after, or up to
// twice that if answers take longer.
func (p *latency) atLeast(after time.Duration) time.Duration {
	return max(after, min(2*time.Duration(p.longest.Load()), 2*after))
}

func (p *latency) add(d time.Duration) { p.longest.Store(max(int64(d), p.longest.Load()*3/4)) }

// errDeposed says that a deposed leader prolonged a lease.
var errDeposed = errors.New("the lease was prolonged by a member that leads no longer")

// A leader that was deposed while it waited for its disk does not know it. Before etcd's
// PR 16822 such a member continues to prolong leases, unknown to the new leader:
// https://github.com/etcd-io/etcd/issues/15247.
//
// A new leader gives every lease its whole TTL. So an answer of any member about a lease
// is true if the request was sent before the next leader began. The proof is an answer to
// a transaction or a read through the majority that was sent after that request, with a
// term no higher than that in the lease's answer: then the majority was still of that
// term when the request had been sent. The term of a transaction's answer is that of the
// last entry that its member has applied. The term in a lease's answer is noted before
// the lease is prolonged, so it is never too high.

// confirmTerm takes the term of an answer to a transaction or read. asks is how many
// requests to keep leases alive had been sent before it.
func (s *Store) confirmTerm(asks int, term uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.leasesLocked() {
		l.confirmTermLocked(asks, term)
	}
}

func (l *lease) confirmTermLocked(asks int, term uint64) {
	for _, a := range []*leaseRequest{l.request, l.unconfirmed} {
		if a != nil && asks >= a.number && (!a.checked || term < a.lowestTerm) {
			a.checked, a.lowestTerm = true, term
		}
	}
	l.extendLocked()
}

// extendLocked sets the lease's new end, once an answer of the majority confirms it.
func (l *lease) extendLocked() {
	if a := l.unconfirmed; a != nil && a.checked && a.lowestTerm <= a.term {
		l.end, l.unconfirmed = latest(l.end, a.end), nil
	}
}

// deposed reports whether the answer is already known to come from a deposed leader.
func (s *Store) deposed(a *leaseRequest, resp *pb.LeaseKeepAliveResponse) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return a.checked && resp.GetHeader().GetRaftTerm() < a.lowestTerm
}

// awaitConfirmed waits until an answer of the majority confirms the request that
// prolonged a lease. It repeats the request if a deposed leader answered it.
func (s *Store) awaitConfirmed(ctx context.Context, l *lease, a *leaseRequest) error {
	for range attempts {
		if err := a.wait(ctx); err != nil {
			return err
		}
		s.mu.Lock()
		done, borne := !l.end.Before(a.end), a.checked
		if !done && borne {
			s.mu.Unlock()
			if a.by != nil {
				s.giveUp(a.by, true)
			}
			s.mu.Lock()
			a = s.refreshLocked(l)
		}
		s.mu.Unlock()
		if done {
			return nil
		}
		if !borne {
			if _, err := s.read(ctx, hedgeAfter(time.Duration(l.seconds)*time.Second), &pb.RangeRequest{Key: []byte(s.dir("?")), CountOnly: true}); err != nil {
				return readFailure(ctx, err)
			}
		}
	}
	return unavailable(errDeposed)
}

// A server may be restored: a snapshot or a lost disk brings back an older state than
// this process has seen. Names that the process had removed are then on its leases again,
// and would stay for as long as it keeps the leases alive; watches wait for revisions
// that they have seen already; and what was made since that state is gone.
//
// The store notices when an answer has a lower revision than an earlier one, or comes
// from another cluster. Other processes may have written so much before the next request
// that the revision is no lower. So whenever a server was not reached, or a name is
// missing, the store also searches its leases for leftovers: names that belong to no
// claim.

// history is what the servers' answers tell of their state.
type history struct {
	mu         sync.Mutex
	rev        int64 // the highest revision
	cluster    uint64
	restores   int // incremented whenever the servers were restored
	keepAlives int // requests to keep a lease alive
}

// A seenState is the history at the sending of a request.
type seenState struct {
	rev        int64
	restores   int
	keepAlives int
}

func (p *history) now() seenState {
	p.mu.Lock()
	defer p.mu.Unlock()
	return seenState{p.rev, p.restores, p.keepAlives}
}

func (p *history) countKeepAlive() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keepAlives++
	return p.keepAlives
}

// learn takes the answer to a request that was sent at at, and reports whether the
// servers were restored in between. It ignores answers to requests from before the last
// restore.
func (p *history) learn(at seenState, h *pb.ResponseHeader) (back bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h == nil || at.restores != p.restores {
		return false
	}
	if h.Revision < at.rev || p.cluster != 0 && h.ClusterId != p.cluster {
		p.restores++
		p.rev, p.cluster = h.Revision, h.ClusterId
		return true
	}
	p.rev, p.cluster = max(p.rev, h.Revision), h.ClusterId
	return false
}

// answered updates the history by the outcome of a request.
func (s *Store) answered(at seenState, h *pb.ResponseHeader, err error) {
	if err == nil {
		s.confirmTerm(at.keepAlives, h.GetRaftTerm())
	}
	switch {
	case err == nil && s.history.learn(at, h):
		s.restored(h.Revision)
	case status.Code(err) == codes.Unavailable:
		s.mu.Lock()
		s.findLeftoversLocked()
		s.mu.Unlock()
	}
}

// restored is called when the servers have an older state, of that revision.
func (s *Store) restored(rev int64) {
	s.limits.mu.Lock()
	s.limits.cache = pageCache{} // the servers may use its revisions again
	s.limits.mu.Unlock()
	var wake []func()
	s.mu.Lock()
	for _, k := range s.keys {
		if k.mirror != nil {
			k.mirror.restartWatchLocked()
		}
		for c := range k.all {
			if c.rev > rev && !c.ended && c.item == nil {
				wake = append(wake, s.endLocked(c)...)
				s.forgetLocked(c)
			}
		}
	}
	s.findLeftoversLocked()
	s.mu.Unlock()
	for _, f := range wake {
		f()
	}
}
