package etcdstore

import (
	"context"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

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

// strayPause is the pause before a look for strays that got no answer is repeated.
const strayPause = 200 * time.Millisecond

// seekStraysLocked has all leases looked at for strays, in the background, until that has
// succeeded.
func (s *Store) seekStraysLocked() {
	s.strayRounds++
	if s.closed || s.seekingStrays {
		return
	}
	s.seekingStrays = true
	s.work.Go(func() {
		for {
			s.mu.Lock()
			strayRounds := s.strayRounds
			var leases []int64
			for l := range s.leasesLocked() {
				if l.id != 0 && !l.dead {
					leases = append(leases, l.id)
				}
			}
			s.mu.Unlock()
			looked := true
			for _, id := range leases {
				looked = s.dropStrays(id) && looked
			}
			s.mu.Lock()
			if looked && strayRounds == s.strayRounds {
				s.seekingStrays = false
				s.mu.Unlock()
				return
			}
			s.mu.Unlock()
			t := time.NewTimer(strayPause)
			select {
			case <-t.C:
			case <-s.ctx.Done():
				t.Stop()
				return
			}
		}
	})
}

// dropStrays removes the names on a lease of ours that belong to no claim. It returns
// false if it has to be tried again.
func (s *Store) dropStrays(lease int64) (done bool) {
	ctx, cancel := context.WithTimeout(s.ctx, requestTime)
	defer cancel()
	resp, err := s.leaser.LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: lease, Keys: true}, anySize)
	if err != nil {
		return !passing(err)
	}
	strays := map[string]bool{}
	for _, name := range resp.Keys {
		strays[string(name)] = true
	}
	// A name that was put since then is not in the answer. A name that was forgotten
	// since then is gone, or has another revision if it comes again. A claim that
	// stands is renewed, and lost if the name is not its own.
	s.mu.Lock()
	for _, k := range s.keys {
		for c := range k.all {
			if c.rev > 0 && !c.ended {
				delete(strays, c.name)
			}
		}
	}
	s.mu.Unlock()
	for name := range strays {
		if err := s.dropStray(ctx, name, lease); err != nil {
			return !passing(err)
		}
	}
	return true
}

func (s *Store) dropStray(ctx context.Context, name string, lease int64) error {
	key, ok := s.keyOf(name)
	if !ok {
		return nil
	}
	resp, err := s.kv.Range(ctx, &pb.RangeRequest{Key: []byte(name)})
	if err != nil || len(resp.Kvs) == 0 || resp.Kvs[0].Lease != lease {
		return err
	}
	kv := resp.Kvs[0]
	s.mu.Lock()
	if k := s.keys[key]; k != nil {
		for c := range k.all {
			// The stray may have come back under a name that another claim uses now,
			// and whose own put had no answer, or was not sent.
			if c.name == name && (c.rev == kv.CreateRevision || c.value == string(kv.Value)) {
				s.mu.Unlock()
				return nil
			}
		}
	}
	s.mu.Unlock()
	_, err = s.kv.Txn(ctx, &pb.TxnRequest{
		Compare: only(createRev(name, kv.CreateRevision), modRev(name, kv.ModRevision), onLease(name, lease)),
		Success: ops(remove(name)),
	})
	return err
}

// passing reports whether an error is worth another try.
func passing(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unknown:
		return true
	}
	return false
}

// anewLocked ends the watch, so that another one begins and lists the queue again.
func (m *mirror) anewLocked() {
	m.synced, m.idle = false, time.Time{}
	if m.anew != nil {
		m.anew()
	}
}
