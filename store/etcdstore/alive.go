package etcdstore

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// Leases are kept alive over one stream that stays open: the client logs in again for
// each stream, which costs the servers a proposal and a hash that is slow on purpose.
// If a stream's member does not answer in time, or answers as one that leads no longer,
// a stream to another member replaces it.

// tries is how many parts the TTL of a lease is cut into: if a member has not answered
// after one of them, another is asked, too.
const tries = 12

// patienceFor is how long to wait for one member before another is asked, for a claim
// or lease of that TTL.
func patienceFor(ttl time.Duration) time.Duration { return ttl / tries }

// keeper has the stream. Guarded by its own lock.
type keeper struct {
	mu        sync.Mutex
	now       *stream // for new requests; nil: none
	elsewhere bool    // the next stream goes to another member
}

// A stream is one call of LeaseKeepAlive.
type stream struct {
	cancel context.CancelFunc
	opened chan struct{} // closed when calls is set, or err

	calls   grpc.BidiStreamingClient[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse]
	sending sync.Mutex // one at a time, and in the order of waiting

	mu sync.Mutex
	// waiting are the requests without an answer, by lease, in the order in which they
	// were sent. A request that was given up stays in it, so that its answer is not
	// taken for that of a later request.
	waiting map[int64][]chan told
	err     error // why the stream has ended
}

// told is what a member has said of a lease.
type told struct {
	stream *stream
	resp   *pb.LeaseKeepAliveResponse
	err    error
}

// stream returns the present stream, or opens another one if the present one is in no,
// or has ended. To avoid a member it opens a stream to the next endpoint, by a separate
// connection: the client might choose the same member again.
func (s *Store) stream(no []*stream) *stream {
	s.alive.mu.Lock()
	defer s.alive.mu.Unlock()
	if st := s.alive.now; st != nil && !slices.Contains(no, st) && !st.ended() {
		return st
	}
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(s.ctx))
	st := &stream{cancel: cancel, opened: make(chan struct{}), waiting: map[int64][]chan told{}}
	s.alive.now = st
	leaser, elsewhere := s.leaser, s.alive.elsewhere
	s.alive.elsewhere = false
	go func() {
		defer cancel()
		if elsewhere {
			conn, err := s.spare()
			if err != nil {
				st.end(err)
				return
			}
			defer conn.Close()
			leaser = pb.NewLeaseClient(conn)
		}
		st.run(ctx, leaser)
	}()
	return st
}

// giveUp sends nothing more on a stream. elsewhere makes the next stream go to another
// member. The stream stays open for a while, as other calls may wait for its answers.
func (s *Store) giveUp(st *stream, elsewhere bool) {
	s.alive.mu.Lock()
	defer s.alive.mu.Unlock()
	if s.alive.now == st {
		s.alive.now, s.alive.elsewhere = nil, elsewhere
		time.AfterFunc(requestTime, st.cancel)
	}
}

// spare connects to one endpoint, another one each time.
func (s *Store) spare() (*grpc.ClientConn, error) {
	all := s.client.Endpoints()
	if len(all) == 0 {
		return nil, errors.New("there is no endpoint")
	}
	return s.client.Dial(all[int(s.spares.Add(1)%uint32(len(all)))])
}

func (st *stream) run(ctx context.Context, leaser pb.LeaseClient) {
	calls, err := leaser.LeaseKeepAlive(ctx)
	if err != nil {
		st.end(err)
		return
	}
	st.calls = calls
	close(st.opened)
	for {
		resp, err := calls.Recv()
		if err != nil {
			st.end(err)
			return
		}
		st.mu.Lock()
		if first := st.waiting[resp.ID]; len(first) > 0 { // a member answers requests in order
			first[0] <- told{stream: st, resp: resp} // never blocks: the channel has room for one
			st.waiting[resp.ID] = first[1:]
		}
		if len(st.waiting[resp.ID]) == 0 {
			delete(st.waiting, resp.ID)
		}
		st.mu.Unlock()
	}
}

// end tells all calls that wait.
func (st *stream) end(err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.err = err
	for _, all := range st.waiting {
		for _, w := range all {
			w <- told{stream: st, err: err}
		}
	}
	st.waiting = nil
	if st.calls == nil {
		close(st.opened)
	}
}

func (st *stream) ended() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.err != nil
}

// ask sends a request, and passes the answer to the channel, unless ctx ends before.
func (st *stream) ask(ctx context.Context, id int64, answers chan<- told) {
	select {
	case <-st.opened:
	case <-ctx.Done():
		return
	}
	one := make(chan told, 1)
	st.sending.Lock()
	st.mu.Lock()
	err := st.err
	if err == nil {
		st.waiting[id] = append(st.waiting[id], one)
	}
	st.mu.Unlock()
	if err == nil {
		// If it fails the stream ends, which the call that waits hears of.
		_ = st.calls.Send(&pb.LeaseKeepAliveRequest{ID: id})
	}
	st.sending.Unlock()
	t := told{stream: st, err: err}
	if err == nil {
		select {
		case t = <-one:
		case <-ctx.Done():
			return
		}
	}
	select {
	case answers <- t:
	case <-ctx.Done():
	}
}

// keepAlive prolongs a lease and returns the answer of a member that leads, as far as
// is known. The client's own KeepAliveOnce asks again and again, and its KeepAlive
// counts from when the answer came.
func (s *Store) keepAlive(ctx context.Context, id int64, class int64, a *asking) (*pb.LeaseKeepAliveResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	left := 2 + len(s.client.Endpoints()) // how many requests may yet fail
	after := s.answers.patient(patienceFor(time.Duration(class) * time.Second))
	answers := make(chan told)
	var no []*stream
	under := 0
	ask := func() {
		st := s.stream(no)
		no = append(no, st)
		under++
		go st.ask(ctx, id, answers)
	}
	ask()
	silence := time.NewTicker(after)
	defer silence.Stop()
	var last error
	for {
		select {
		case t := <-answers:
			under--
			switch {
			case t.err != nil:
				last = t.err
			case s.void(a, t.resp):
				last = errVoid
			case t.resp.TTL <= 0:
				return nil, rpctypes.ErrLeaseNotFound
			default:
				a.by = t.stream
				return t.resp, nil
			}
			s.giveUp(t.stream, errors.Is(last, errVoid))
			if left--; left > 0 {
				ask()
			} else if under == 0 {
				return nil, last
			}
		case <-silence.C:
			for _, st := range no {
				s.giveUp(st, true)
			}
			ask()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

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
