package etcdstore

import (
	"context"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	mvccpb "go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
)

// A watch is somebody who wants to be told of a claim.
type watch struct{ wake func(driver.Hint) }

// Watch has wake called when c may have been granted or lost: see
// driver.Watcher.
func (s *Store) Watch(c driver.Claim, wake func(driver.Hint)) (stop func()) {
	w := &watch{wake}
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.lockLocked(c.Key)
	if k.watches == nil {
		k.watches = map[string][]*watch{}
	}
	k.watches[c.ID] = append(k.watches[c.ID], w)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		left := slices.DeleteFunc(k.watches[c.ID], func(x *watch) bool { return x == w })
		if k.watches[c.ID] = left; len(left) == 0 {
			delete(k.watches, c.ID)
		}
		s.idleLocked(k)
	}
}

func (k *lock) watchedLocked(id string) bool { return len(k.watches[id]) > 0 }

func (k *lock) wakeLocked(id string, h driver.Hint) (wake []func()) {
	for _, w := range k.watches[id] {
		wake = append(wake, func() { w.wake(h) })
	}
	return wake
}

// waitedForLocked reports whether somebody of this process waits for the lock.
func (k *lock) waitedForLocked() bool {
	for _, c := range k.claims {
		if !c.held {
			return true
		}
	}
	return false
}

// A mirror is the queue of one key as the server tells it by events. It knows
// of a grant or a loss without asking. It may be late or miss things, so
// nothing rests on it alone: whoever waits asks again and again all the same.
// Guarded by Store.mu.
type mirror struct {
	stop   context.CancelFunc
	anew   context.CancelFunc // of the watch, which is followed by another
	idle   time.Time          // since when nobody has needed it; zero: somebody does
	synced bool
	rev    int64 // the revision of the listing
	line   line
}

// mirrorLocked opens the mirror of a lock.
func (s *Store) mirrorLocked(k *lock) {
	if k.mirror != nil || s.closed {
		return
	}
	ctx, cancel := context.WithCancel(s.ctx)
	m := &mirror{stop: cancel}
	k.mirror = m
	s.work.Go(func() {
		for s.follow(ctx, k, m) {
			s.mu.Lock()
			m.synced = false
			s.mu.Unlock()
		}
	})
	s.dueLocked(bootclock.Coarse().Add(mirrorLinger))
}

// lastLocked returns the youngest contender that is known of, but the one with
// that name. ok is false if the mirror does not know the queue, or that not
// everything in it is a lock.
func (k *lock) lastLocked(but string) (last contender, ok bool) {
	if k.mirror == nil || !k.mirror.synced {
		return last, false
	}
	return k.mirror.line.last(but)
}

// beforeLocked returns the contender right before a claim, as far as the mirror
// knows.
func (k *lock) beforeLocked(c *claim) (before contender, ok bool) {
	if k.mirror == nil || !k.mirror.synced {
		return before, false
	}
	return k.mirror.line.before(c.rev, c.name)
}

// soonLocked reports whether a release of this process is likely to come before
// anybody is kept out for want of one more in line: its claim is the next to
// hold, and another stands behind that.
func (k *lock) soonLocked() bool {
	q := k.mirror.line.queue
	return len(q) > 2 && !q[1].foreign && k.claims[q[1].ID] != nil
}

// lingerLocked closes the mirror of a lock that nobody has needed for a
// while. Otherwise it says when to look again.
func (s *Store) lingerLocked(k *lock, now time.Time) (at time.Time, ok bool) {
	m := k.mirror
	switch {
	case m == nil:
		return at, false
	case len(k.claims) > 0:
		m.idle = time.Time{}
		return now.Add(mirrorLinger), true
	case m.idle.IsZero():
		m.idle = now
		return now.Add(mirrorLinger), true
	case now.Sub(m.idle) < mirrorLinger:
		return m.idle.Add(mirrorLinger), true
	}
	m.stop()
	k.mirror = nil
	s.idleLocked(k)
	return at, false
}

// follow watches from now on and lists what was before, until the watch ends:
// because of a compaction, a lost leader, a lost connection. It reports
// whether to begin anew. A watch from a past revision, as it would take to
// avoid the listing, is served by the server with delays.
func (s *Store) follow(ctx context.Context, k *lock, m *mirror) (again bool) {
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	m.anew = cancel
	s.mu.Unlock()
	events := s.client.Watcher.Watch(watching, k.dir, clientv3.WithRange(afterDir(k.dir)), clientv3.WithCreatedNotify())
	for resp := range events {
		switch {
		case resp.Err() != nil:
			return s.rest(ctx)
		case resp.Created:
			list, err := s.kv.Range(watching, rangeRequest(k.dir))
			if err != nil {
				return s.rest(ctx)
			}
			s.listed(k, m, list.Header.Revision, contenders(k.dir, k.key, list.Kvs))
		default:
			s.changed(k, m, resp.Events)
		}
	}
	return s.rest(ctx)
}

// rest keeps a server that has trouble from being asked without a pause.
func (s *Store) rest(ctx context.Context) (again bool) {
	t := time.NewTimer(50 * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func rangeRequest(dir string) *pb.RangeRequest { return listing(dir).GetRequestRange() }

// apply notes an event. It returns the contender that it removed, if any.
func (m *mirror) apply(k *lock, e *clientv3.Event) (gone contender, ok bool) {
	if e.Kv.ModRevision <= m.rev { // the listing knows
		return gone, false
	}
	if e.Type == mvccpb.Event_DELETE {
		return m.line.remove(string(e.Kv.Key))
	}
	c, ok := contenderOf(k.dir, k.key, e.Kv)
	if !ok {
		return gone, false
	}
	return m.line.put(c)
}

// listed takes what is there now.
func (s *Store) listed(k *lock, m *mirror, rev int64, queue []contender) {
	var wake []func()
	s.mu.Lock()
	m.synced, m.rev, m.line = true, rev, newLine(queue)
	for _, c := range k.claims {
		if c.rev > 0 && c.rev <= rev && !c.leaving && m.line.revs[c.name] != c.rev {
			wake = append(wake, s.endLocked(c)...)
			s.forgetLocked(c)
		}
	}
	wake = append(wake, s.grantedLocked(k, m)...)
	s.mu.Unlock()
	for _, f := range wake {
		f()
	}
}

// changed takes what has happened since.
func (s *Store) changed(k *lock, m *mirror, events []*clientv3.Event) {
	var wake []func()
	s.mu.Lock()
	for _, e := range events {
		gone, ok := m.apply(k, e)
		if !ok {
			continue
		}
		if c := k.claims[gone.ID]; c != nil && !gone.foreign && c.name == gone.name && c.rev == gone.rev && !c.leaving {
			wake = append(wake, s.endLocked(c)...)
			s.forgetLocked(c)
		}
	}
	wake = append(wake, s.grantedLocked(k, m)...)
	s.mu.Unlock()
	for _, f := range wake {
		f()
	}
}

// grantedLocked finds those of this process who have come to hold.
func (s *Store) grantedLocked(k *lock, m *mirror) (wake []func()) {
	now := bootclock.Coarse()
	for _, e := range m.line.queue[:holders(m.line.queue)] {
		c := k.claims[e.ID]
		if c == nil || e.foreign || c.held || c.name != e.name || c.rev != 0 && c.rev != e.rev {
			continue
		}
		c.held, c.since = true, now
		if ttl := c.claimTTL(); ttl > 0 {
			wake = append(wake, k.wakeLocked(c.ID, driver.Hint{Granted: true, Grant: driver.Grant{
				Token: e.rev, Ticket: e.rev, TTL: ttl,
			}})...)
		}
	}
	return wake
}

// claimTTL is how long a grant stands that the claim's owner has not asked
// for, counted from the last answer "waiting".
func (c *claim) claimTTL() time.Duration {
	ttl := min(driver.ClaimTTL, promise(c.ttl))
	if c.lease != nil {
		ttl = min(ttl, c.lease.end.Sub(c.sent))
	}
	return ttl
}
