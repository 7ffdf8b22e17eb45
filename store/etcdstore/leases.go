package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
)

// waiterSeconds is the class of the lease for waiters' names: the shortest that a server
// with default settings grants, so that the names of a dead process cost others no more
// than WaiterTTL and ClaimTTL.
const waiterSeconds = 2

// seconds is the class of the lease for a TTL.
func seconds(ttl time.Duration) int64 { return int64((ttl + time.Second - 1) / time.Second) }

// A lease of the server. The process has one for each class of TTL. It is kept alive only
// for a call about a claim on it, never in the background: a process that hangs must lose
// its locks. Guarded by Store.mu.
type lease struct {
	seconds int64 // the class
	id      int64 // 0 until it is granted
	end     time.Time
	dead    bool // the server said so

	// unresolved says that a request to put a name on the lease got no answer. next then
	// replaces this lease: see followLocked.
	unresolved bool
	next       *lease

	request     *leaseRequest // the request under way, if any
	unconfirmed *leaseRequest // the last answer, until an answer of the majority confirms it: see confirmTerm
}

// leasesLocked are the present leases of the process, and the former ones.
func (s *Store) leasesLocked() iter.Seq[*lease] {
	return func(yield func(*lease) bool) {
		for _, l := range s.leases {
			if !yield(l) {
				return
			}
		}
		for _, l := range s.former {
			if !yield(l) {
				return
			}
		}
	}
}

// leaseLocked is the lease of this process with that ID, or nil.
func (s *Store) leaseLocked(id int64) *lease {
	for l := range s.leasesLocked() {
		if l.id == id {
			return l
		}
	}
	return nil
}

// A leaseRequest grants a lease or keeps it alive, for all calls that need it.
type leaseRequest struct {
	sent   time.Time
	number int           // the count of such requests, with this one
	done   chan struct{} // closed when err is set
	err    error

	// Set for a prolonged lease, when done is closed.
	end  time.Time // the lease's end, if an answer of the majority confirms it
	term uint64    // of the member that answered
	by   *stream

	checked    bool   // a later request was answered
	lowestTerm uint64 // the lowest term of those answers; guarded by Store.mu, like checked
}

// leaseFor returns the lease of the class, granted and, as far as this process knows,
// alive.
func (s *Store) leaseFor(ctx context.Context, class int64) (*lease, error) {
	for {
		s.mu.Lock()
		l := s.leases[class]
		if l != nil && l.id != 0 && !l.dead && bootclock.Now().Before(l.end) {
			s.mu.Unlock()
			return l, nil
		}
		if l == nil || l.id != 0 { // it ended, and every claim on it is lost
			l = &lease{seconds: class}
			s.leases[class] = l
		}
		a := s.refreshLocked(l)
		s.mu.Unlock()
		if err := a.wait(ctx); err != nil {
			return nil, err
		}
	}
}

// refreshLocked asks the server to grant l or to keep it alive.
func (s *Store) refreshLocked(l *lease) *leaseRequest {
	s.followLocked(l)
	if l.request != nil {
		return l.request
	}
	a := &leaseRequest{sent: bootclock.Now(), done: make(chan struct{})}
	a.number = s.history.countKeepAlive() // after sent
	l.request = a
	id := l.id
	go func() {
		// A longer wait does not pay: the next request may be sent then.
		ctx, cancel := context.WithTimeout(s.ctx, min(requestTime, time.Duration(l.seconds)*time.Second/2))
		defer cancel()
		granted := int64(0)
		var header *pb.ResponseHeader
		if id == 0 {
			var resp *pb.LeaseGrantResponse
			if resp, a.err = s.grant(ctx, l.seconds); a.err == nil {
				id, granted = resp.ID, resp.TTL
			}
		} else {
			var resp *pb.LeaseKeepAliveResponse
			if resp, a.err = s.keepAlive(ctx, id, l.seconds, a); a.err == nil {
				granted, header = resp.TTL, resp.GetHeader()
			}
		}
		gone := leaseGone(a.err)
		if gone {
			a.err = fmt.Errorf("etcd: %w: the process's lease has ended", driver.ErrUnavailable)
		} else {
			a.err = readFailure(ctx, a.err)
		}
		s.mu.Lock()
		l.request = nil
		var wake []func()
		switch {
		case gone:
			wake = s.leaseGoneLocked(l)
		case a.err == nil && l.id == 0: // a majority has agreed
			a.end = a.sent.Add(time.Duration(granted) * time.Second)
			l.id, l.end = id, a.end
		case a.err == nil:
			a.end, a.term = a.sent.Add(time.Duration(granted)*time.Second), header.GetRaftTerm()
			l.unconfirmed = a
			l.extendLocked()
		}
		s.mu.Unlock()
		close(a.done)
		for _, f := range wake {
			f()
		}
	}()
	return a
}

// grant asks for a new lease. If it asks several members, the unused lease expires.
func (s *Store) grant(ctx context.Context, class int64) (*pb.LeaseGrantResponse, error) {
	after := hedgeAfter(time.Duration(class) * time.Second)
	resp, _, err := hedged(ctx, s, after, func(ctx context.Context, _ pb.KVClient, leaser pb.LeaseClient) (*pb.LeaseGrantResponse, error) {
		return leaser.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: class})
	})
	return resp, err
}

// followLocked replaces a lease that is unresolved. A member that hangs may execute a
// request after hours, when this process no longer looks for its effect. If the lease
// were still kept alive, the name would hold the lock for good; on an ended lease the
// request fails. The claims move to the new lease when they are renewed, and the old one
// is no longer kept alive.
func (s *Store) followLocked(l *lease) {
	if !l.unresolved || l.next != nil || l.id == 0 || s.closed {
		return
	}
	next := &lease{seconds: l.seconds}
	l.next = next
	a := s.refreshLocked(next)
	s.work.Go(func() {
		<-a.done
		s.mu.Lock()
		defer s.mu.Unlock()
		switch {
		case a.err != nil:
			l.next = nil // try again at the next keep-alive of the lease
		case s.leases[l.seconds] == l:
			s.leases[l.seconds] = next
			now := bootclock.Now()
			s.former = slices.DeleteFunc(s.former, func(l *lease) bool { return l.dead || !now.Before(l.end) })
			s.former = append(s.former, l)
		}
	})
}

func latest(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// prolong keeps a lease alive by a request that was sent at since or later.
func (s *Store) prolong(ctx context.Context, l *lease, since time.Time) (*leaseRequest, error) {
	for {
		s.mu.Lock()
		a := s.refreshLocked(l)
		s.mu.Unlock()
		if err := a.wait(ctx); err != nil || !a.sent.Before(since) {
			return a, err
		}
	}
}

func (a *leaseRequest) wait(ctx context.Context) error {
	select {
	case <-a.done:
		return a.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// leaseGoneLocked notes that the server has ended a lease and its names. The caller runs
// the result after unlocking.
func (s *Store) leaseGoneLocked(l *lease) (wake []func()) {
	if l.dead {
		return nil
	}
	l.dead = true
	if s.leases[l.seconds] == l {
		delete(s.leases, l.seconds)
	}
	for _, k := range s.keys {
		for c := range k.all {
			if c.lease == l && !c.moving {
				wake = append(wake, s.endLocked(c)...)
				s.forgetLocked(c)
			}
		}
	}
	return wake
}

// Leases are kept alive over one stream that stays open: the client logs in again for
// each stream, which costs the servers a proposal and a slow password hash. If a stream's
// member does not answer in time, or answers as a deposed leader, a stream to another
// member replaces it.

// hedgesPerTTL is how many members are asked within one TTL if none answers: see
// hedgeAfter.
const hedgesPerTTL = 12

// hedgeAfter is how long to wait for one member before the next is asked, for a claim or
// lease with that TTL.
func hedgeAfter(ttl time.Duration) time.Duration { return ttl / hedgesPerTTL }

// keepAliveStream is the stream in use. It has a mutex of its own.
type keepAliveStream struct {
	mu      sync.Mutex
	current *stream // for new requests; nil: none
	other   bool    // the next stream goes to another member
}

type stream struct {
	cancel context.CancelFunc
	opened chan struct{} // closed when calls is set, or err

	calls   grpc.BidiStreamingClient[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse]
	sending sync.Mutex // one at a time, and in the order of waiting

	mu sync.Mutex
	// waiting are the requests without an answer, by lease, in the order of sending. A
	// request that was given up stays, so that its answer is not taken for that of a
	// later one.
	waiting map[int64][]chan aliveAnswer
	err     error // why the stream has ended
}

// An aliveAnswer is a member's answer about a lease.
type aliveAnswer struct {
	stream *stream
	resp   *pb.LeaseKeepAliveResponse
	err    error
}

// stream returns the present stream, or opens another one if the present one is in used
// or has ended. To avoid a member it opens a stream to the next endpoint, by a separate
// connection: the client might choose the same member again.
func (s *Store) stream(used []*stream) *stream {
	s.alive.mu.Lock()
	defer s.alive.mu.Unlock()
	if st := s.alive.current; st != nil && !slices.Contains(used, st) && !st.ended() {
		return st
	}
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(s.ctx))
	st := &stream{cancel: cancel, opened: make(chan struct{}), waiting: map[int64][]chan aliveAnswer{}}
	s.alive.current = st
	leaser, other := s.leaser, s.alive.other
	s.alive.other = false
	go func() {
		defer cancel()
		if other {
			conn, err := s.dialNext()
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

// giveUp sends nothing more on a stream. other makes the next stream use another member.
// The stream stays open for a while, because other calls may wait for its answers.
func (s *Store) giveUp(st *stream, other bool) {
	s.alive.mu.Lock()
	defer s.alive.mu.Unlock()
	if s.alive.current == st {
		s.alive.current, s.alive.other = nil, other
		time.AfterFunc(requestTime, st.cancel)
	}
}

// dialNext connects to the next endpoint.
func (s *Store) dialNext() (*grpc.ClientConn, error) {
	all := s.client.Endpoints()
	if len(all) == 0 {
		return nil, errors.New("there is no endpoint")
	}
	return s.client.Dial(all[int(s.dialed.Add(1)%uint32(len(all)))])
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
			first[0] <- aliveAnswer{stream: st, resp: resp} // never blocks: the channel has room for one
			st.waiting[resp.ID] = first[1:]
		}
		if len(st.waiting[resp.ID]) == 0 {
			delete(st.waiting, resp.ID)
		}
		st.mu.Unlock()
	}
}

// end reports err to all waiting calls.
func (st *stream) end(err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.err = err
	for _, all := range st.waiting {
		for _, w := range all {
			w <- aliveAnswer{stream: st, err: err}
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

// ask sends a request. The answer goes to the channel, unless ctx ends first.
func (st *stream) ask(ctx context.Context, id int64, answers chan<- aliveAnswer) {
	select {
	case <-st.opened:
	case <-ctx.Done():
		return
	}
	one := make(chan aliveAnswer, 1)
	st.sending.Lock()
	st.mu.Lock()
	err := st.err
	if err == nil {
		st.waiting[id] = append(st.waiting[id], one)
	}
	st.mu.Unlock()
	if err == nil {
		// If it fails the stream ends, and with it the waiting call.
		_ = st.calls.Send(&pb.LeaseKeepAliveRequest{ID: id})
	}
	st.sending.Unlock()
	t := aliveAnswer{stream: st, err: err}
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

// keepAlive prolongs a lease and returns the answer of a member that leads, as far as is
// known. The client's own KeepAliveOnce repeats without a bound, and its KeepAlive counts
// from when the answer came.
func (s *Store) keepAlive(ctx context.Context, id int64, class int64, a *leaseRequest) (*pb.LeaseKeepAliveResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	left := 2 + len(s.client.Endpoints()) // requests that may still fail
	after := s.latency.atLeast(hedgeAfter(time.Duration(class) * time.Second))
	answers := make(chan aliveAnswer)
	var used []*stream
	under := 0
	ask := func() {
		st := s.stream(used)
		used = append(used, st)
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
			case s.deposed(a, t.resp):
				last = errDeposed
			case t.resp.TTL <= 0:
				return nil, rpctypes.ErrLeaseNotFound
			default:
				a.by = t.stream
				return t.resp, nil
			}
			s.giveUp(t.stream, errors.Is(last, errDeposed))
			if left--; left > 0 {
				ask()
			} else if under == 0 {
				return nil, last
			}
		case <-silence.C:
			for _, st := range used {
				s.giveUp(st, true)
			}
			ask()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
