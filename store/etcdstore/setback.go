package etcdstore

import (
	"context"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A server that was set back. A snapshot that was restored, or a disk that was
// lost, brings back a state that this process has gone beyond. Then names are on
// our leases again that we had removed, and would stay for as long as we keep the
// leases alive; watches wait for revisions to come that had been seen; and what
// was made since is no more.
//
// It shows when an answer has a lower revision than one before, or comes from
// another cluster. Others may have written so much before we ask again that it
// does not. So whenever a server was not reached, or something of ours is missing,
// we look for names on our leases that we know nothing of.

// past is what the servers' answers have told of their state.
type past struct {
	mu      sync.Mutex
	rev     int64 // the highest revision
	cluster uint64
	life    int // raised whenever the servers were set back
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

// learn takes the answer to a request that was sent at that sight, and reports
// whether the servers were set back in between. Answers of before that count no
// more.
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

// answered looks at what came of a request.
func (s *Store) answered(at sight, h *pb.ResponseHeader, err error) {
	if err == nil {
		s.bear(at.asks, h.GetRaftTerm())
	}
	switch {
	case err == nil && s.past.learn(at, h):
		s.setBack(h.Revision)
	case status.Code(err) == codes.Unavailable:
		s.mu.Lock()
		s.doubtLocked()
		s.mu.Unlock()
	}
}

// setBack is called when the servers' state is found to be an older one, of that
// revision.
func (s *Store) setBack(rev int64) {
	s.limits.mu.Lock()
	s.limits.known = knowledge{} // its revisions may be given out anew
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
	s.doubtLocked()
	s.mu.Unlock()
	for _, f := range wake {
		f()
	}
}

// doubtPause is between two looks for strays that got no answer.
const doubtPause = 200 * time.Millisecond

// doubtLocked has the leases looked at, in the background, until that was done.
func (s *Store) doubtLocked() {
	s.doubts++
	if s.closed || s.doubting {
		return
	}
	s.doubting = true
	s.work.Go(func() {
		for {
			s.mu.Lock()
			doubts := s.doubts
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
			if looked && doubts == s.doubts {
				s.doubting = false
				s.mu.Unlock()
				return
			}
			s.mu.Unlock()
			t := time.NewTimer(doubtPause)
			select {
			case <-t.C:
			case <-s.ctx.Done():
				t.Stop()
				return
			}
		}
	})
}

// dropStrays removes what is on a lease of ours and no claim's. It reports
// whether there is nothing to be tried again.
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
	// What was put since then is not among them, and what was forgotten since then
	// has gone, or has another revision when it comes again. A claim that stands is
	// renewed, and lost if the name is not its own.
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
			// It may have come back with a name that another claim has now, whose own
			// was put without an answer, or not at all.
			if c.name == name && (c.rev == kv.CreateRevision || c.value == string(kv.Value)) {
				s.mu.Unlock()
				return nil
			}
		}
	}
	s.mu.Unlock()
	_, err = s.kv.Txn(ctx, &pb.TxnRequest{
		Compare: only(createRev(name, kv.CreateRevision), onLease(name, lease)),
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

// anewLocked has the queue watched and listed anew.
func (m *mirror) anewLocked() {
	m.synced, m.idle = false, time.Time{}
	if m.anew != nil {
		m.anew()
	}
}
