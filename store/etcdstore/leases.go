package etcdstore

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
)

// waiterSeconds is the class of the lease that waiters' names are on: the shortest that
// a server with default settings grants, so that the names of a process that died are
// gone before they cost other processes more than WaiterTTL and ClaimTTL.
const waiterSeconds = 2

// seconds is the class of lease for a TTL.
func seconds(ttl time.Duration) int64 { return int64((ttl + time.Second - 1) / time.Second) }

// A lease of the server, of which the process has one for each class of TTL. It is kept
// alive only for a call about a claim on it, never in the background: a process that
// hangs must lose its locks. Guarded by Store.mu.
type lease struct {
	seconds int64 // the class
	id      int64 // 0 until it is granted
	end     time.Time
	dead    bool // the server said so

	// unresolved says that a request to put a name on the lease got no answer. next is
	// then the lease that is to replace this one: see followLocked.
	unresolved bool
	next       *lease

	asking *asking // the request under way, if any
	told   *asking // the last answer, while no answer of the majority confirms it: see bear
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

// asking is a request to grant a lease or to keep it alive, shared by all calls that
// want the same.
type asking struct {
	sent time.Time
	no   int           // how many requests there had been, with this one
	done chan struct{} // closed when err is set
	err  error

	// Set for a lease that was prolonged, when done is closed.
	end  time.Time // when the lease ends, if an answer of the majority confirms it
	term uint64    // of the member that answered
	by   *stream

	borne bool   // a request that was sent after this one was answered
	low   uint64 // the lowest term of those answers; guarded by Store.mu, as borne is
}

// leaseFor returns the lease of the class, granted and, as far as this process
// knows, alive.
func (s *Store) leaseFor(ctx context.Context, class int64) (*lease, error) {
	for {
		s.mu.Lock()
		l := s.leases[class]
		if l != nil && l.id != 0 && !l.dead && bootclock.Coarse().Before(l.end) {
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
func (s *Store) refreshLocked(l *lease) *asking {
	s.followLocked(l)
	if l.asking != nil {
		return l.asking
	}
	a := &asking{sent: bootclock.Now(), done: make(chan struct{})}
	a.no = s.past.ask() // after sent
	l.asking = a
	id := l.id
	go func() {
		// No answer is worth a longer wait: the next request may be sent then.
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
		l.asking = nil
		var wake []func()
		switch {
		case gone:
			wake = s.leaseGoneLocked(l)
		case a.err == nil && l.id == 0: // a majority has agreed
			a.end = a.sent.Add(time.Duration(granted) * time.Second)
			l.id, l.end = id, a.end
		case a.err == nil:
			a.end, a.term = a.sent.Add(time.Duration(granted)*time.Second), header.GetRaftTerm()
			l.told = a
			l.believeLocked()
		}
		s.mu.Unlock()
		close(a.done)
		for _, f := range wake {
			f()
		}
	}()
	return a
}

// grant asks for a new lease. If several members are asked, the unused lease runs out.
func (s *Store) grant(ctx context.Context, class int64) (*pb.LeaseGrantResponse, error) {
	after := patienceFor(time.Duration(class) * time.Second)
	resp, _, err := elsewhere(ctx, s, after, func(ctx context.Context, _ pb.KVClient, leaser pb.LeaseClient) (*pb.LeaseGrantResponse, error) {
		return leaser.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: class})
	})
	return resp, err
}

// followLocked replaces a lease that is unresolved. A member that hangs may do after hours
// what it was asked, when this process no longer looks for that; a name that it then
// puts on a lease that is kept alive stays and holds the lock. It can put nothing on a
// lease that has ended. The claims move to the new lease when they are renewed, and the
// old one is no longer kept alive.
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
			l.next = nil // try again when the lease is kept alive the next time
		case s.leases[l.seconds] == l:
			s.leases[l.seconds] = next
			now := bootclock.Coarse()
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
func (s *Store) prolong(ctx context.Context, l *lease, since time.Time) (*asking, error) {
	for {
		s.mu.Lock()
		a := s.refreshLocked(l)
		s.mu.Unlock()
		if err := a.wait(ctx); err != nil || !a.sent.Before(since) {
			return a, err
		}
	}
}

// wait waits for the answer.
func (a *asking) wait(ctx context.Context) error {
	select {
	case <-a.done:
		return a.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// leaseGoneLocked notes that the server has ended a lease, and everything that was on
// it. The caller runs what it returns after unlocking.
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
