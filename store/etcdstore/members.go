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

// elsewhere asks a member for what does no harm if it is done twice, because it only
// reads, or writes on conditions that no longer hold afterwards. If no answer has come
// after a while, it also asks the next endpoint, by a separate connection, and so on: a
// member whose disk or process hangs keeps its connections, and so costs only that
// while. Where answers usually take longer, the while is up to twice as long.
//
// twice reports that other members were asked. Then another member may have done the
// request before the one that answered, and it may be done once more, however late.
func elsewhere[T any](ctx context.Context, s *Store, after time.Duration, ask func(context.Context, pb.KVClient, pb.LeaseClient) (T, error)) (resp T, twice bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	first, giveUp := context.WithCancel(ctx)
	defer giveUp()
	after = s.answers.patient(after)

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
			conn, err := s.spare()
			if err != nil {
				fails()
				return
			}
			defer conn.Close()
			resp, err := ask(ctx, led{pb.NewKVClient(conn), s}, pb.NewLeaseClient(conn))
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
		s.answers.took(time.Since(sent))
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

// txn sends a transaction by elsewhere.
func (s *Store) txn(ctx context.Context, after time.Duration, r *pb.TxnRequest) (*pb.TxnResponse, bool, error) {
	return elsewhere(ctx, s, after, func(ctx context.Context, kv pb.KVClient, _ pb.LeaseClient) (*pb.TxnResponse, error) {
		return kv.Txn(ctx, r)
	})
}

// read reads a range by elsewhere.
func (s *Store) read(ctx context.Context, after time.Duration, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	resp, _, err := elsewhere(ctx, s, after, func(ctx context.Context, kv pb.KVClient, _ pb.LeaseClient) (*pb.RangeResponse, error) {
		return kv.Range(ctx, r)
	})
	return resp, err
}

// pace is the longest time that an answer has taken lately. It decays with each faster
// answer.
type pace struct{ longest atomic.Int64 }

// patient is how long to wait for one member before another is asked: after, or up to
// twice that where answers take longer.
func (p *pace) patient(after time.Duration) time.Duration {
	return max(after, min(2*time.Duration(p.longest.Load()), 2*after))
}

func (p *pace) took(d time.Duration) { p.longest.Store(max(int64(d), p.longest.Load()*3/4)) }

// errVoid says that a member that leads no longer prolonged a lease.
var errVoid = errors.New("the lease was prolonged by a member that leads no longer")

// A leader that was deposed while it waited for its disk does not know it. Before
// etcd's PR 16822 such a member goes on prolonging leases, and the new leader hears
// nothing of that: https://github.com/etcd-io/etcd/issues/15247.
//
// A leader that begins gives every lease its whole TTL. So an answer about a lease is
// true, whichever member gave it, if the request was sent before the next leader began.
// The proof is any answer to a transaction or a read through the majority that was sent
// after that request, and whose term is no higher than the term in the lease's answer:
// then the majority was still of that term when the request had been sent. The term of
// a transaction's answer is that of the last entry that its member has applied. The
// term in a lease's answer is noted before the lease is prolonged, so that it is never
// too high.

// bear takes the term of an answer to a transaction or read. asks is how many requests
// to keep leases alive had been sent before it.
func (s *Store) bear(asks int, term uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.leasesLocked() {
		l.bearLocked(asks, term)
	}
}

func (l *lease) bearLocked(asks int, term uint64) {
	for _, a := range []*asking{l.asking, l.told} {
		if a != nil && asks >= a.no && (!a.borne || term < a.low) {
			a.borne, a.low = true, term
		}
	}
	l.believeLocked()
}

// believeLocked trusts the answer about the lease, once an answer of the majority
// confirms it.
func (l *lease) believeLocked() {
	if a := l.told; a != nil && a.borne && a.low <= a.term {
		l.end, l.told = latest(l.end, a.end), nil
	}
}

// void reports whether the answer is already known to come from a deposed leader.
func (s *Store) void(a *asking, resp *pb.LeaseKeepAliveResponse) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return a.borne && resp.GetHeader().GetRaftTerm() < a.low
}

// trusted waits until an answer of the majority confirms the request that prolonged a
// lease, and repeats the request if it was void.
func (s *Store) trusted(ctx context.Context, l *lease, a *asking) error {
	for range attempts {
		if err := a.wait(ctx); err != nil {
			return err
		}
		s.mu.Lock()
		done, borne := !l.end.Before(a.end), a.borne
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
			if _, err := s.read(ctx, patienceFor(time.Duration(l.seconds)*time.Second), &pb.RangeRequest{Key: []byte(s.dir("?")), CountOnly: true}); err != nil {
				return readFailure(ctx, err)
			}
		}
	}
	return unavailable(errVoid)
}

// A server that was set back: a restored snapshot or a lost disk brings back a state
// older than what this process has seen. Names that we had removed are then on our
// leases again, and would stay for as long as we keep the leases alive; watches wait
// for revisions that they have seen already; and what was made since that state is
// gone.
//
// We notice when an answer has a lower revision than an earlier one, or comes from
// another cluster. Other processes may have written so much before we ask again that
// the revision is no lower. So whenever a server was not reached, or something of ours
// is missing, we look for names on our leases that we know nothing of.

// past is what the servers' answers have told of their state.
type past struct {
	mu      sync.Mutex
	rev     int64 // the highest revision
	cluster uint64
	life    int // incremented whenever the servers were set back
	asks    int // requests to keep a lease alive
}

// A sight is what was known when a request was sent.
type sight struct {
	rev  int64
	life int
	asks int
}

func (p *past) sight() sight {
	p.mu.Lock()
	defer p.mu.Unlock()
	return sight{p.rev, p.life, p.asks}
}

// ask counts one more request to keep a lease alive.
func (p *past) ask() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asks++
	return p.asks
}

// learn takes the answer to a request that was sent at that sight, and reports whether
// the servers were set back in between. It ignores answers to requests from before the
// last setback.
func (p *past) learn(at sight, h *pb.ResponseHeader) (back bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h == nil || at.life != p.life {
		return false
	}
	if h.Revision < at.rev || p.cluster != 0 && h.ClusterId != p.cluster {
		p.life++
		p.rev, p.cluster = h.Revision, h.ClusterId
		return true
	}
	p.rev, p.cluster = max(p.rev, h.Revision), h.ClusterId
	return false
}

// answered notes what the outcome of a request says of the servers' state.
func (s *Store) answered(at sight, h *pb.ResponseHeader, err error) {
	if err == nil {
		s.bear(at.asks, h.GetRaftTerm())
	}
	switch {
	case err == nil && s.past.learn(at, h):
		s.setBack(h.Revision)
	case status.Code(err) == codes.Unavailable:
		s.mu.Lock()
		s.seekStraysLocked()
		s.mu.Unlock()
	}
}

// setBack is called when the servers turn out to be back at an older state, of that
// revision.
func (s *Store) setBack(rev int64) {
	s.limits.mu.Lock()
	s.limits.known = knowledge{} // the servers may use its revisions again
	s.limits.mu.Unlock()
	var wake []func()
	s.mu.Lock()
	for _, k := range s.keys {
		if k.mirror != nil {
			k.mirror.anewLocked()
		}
		for c := range k.all {
			if c.rev > rev && !c.ended && c.item == nil {
				wake = append(wake, s.endLocked(c)...)
				s.forgetLocked(c)
			}
		}
	}
	s.seekStraysLocked()
	s.mu.Unlock()
	for _, f := range wake {
		f()
	}
}
