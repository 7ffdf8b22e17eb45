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

type watch struct{ wake func(driver.Hint) }

// Watch implements driver.Watcher.
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

func (k *lock) waitedForLocked() bool {
	for _, c := range k.claims {
		if !c.held {
			return true
		}
	}
	return false
}

// A mirror is the queue of one key according to the server's events. It shows a grant or
// a loss without a request. It may lag or miss events, so every waiter polls as well.
// Guarded by Store.mu.
type mirror struct {
	stop    context.CancelFunc
	restart context.CancelFunc // ends the watch, so that another one begins
	idle    time.Time          // since when it has been unused; zero: it is in use
	synced  bool
	rev     int64 // of the listing
	index   queueIndex
}

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
	s.cleanByLocked(bootclock.Now().Add(mirrorLinger))
}

// lastLocked returns the youngest known contender except but. ok is false if the mirror
// does not know the queue, or if a name in it is not a lock.
func (k *lock) lastLocked(but string) (last contender, ok bool) {
	if k.mirror == nil || !k.mirror.synced {
		return last, false
	}
	return k.mirror.index.last(but)
}

// beforeLocked returns the contender right before a claim, if the mirror knows it.
func (k *lock) beforeLocked(c *claim) (before contender, ok bool) {
	if k.mirror == nil || !k.mirror.synced {
		return before, false
	}
	return k.mirror.index.before(c.rev, c.name)
}

// closeIdleLocked closes the mirror of a lock that was unused for a while, or returns
// when to look again.
func (s *Store) closeIdleLocked(k *lock, now time.Time) (at time.Time, ok bool) {
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

// follow starts a watch and then lists the queue. It returns when the watch ends: after a
// compaction, the loss of a leader or a connection. again says to begin again. A watch
// from a past revision would save the listing, but the server serves it with delays.
func (s *Store) follow(ctx context.Context, k *lock, m *mirror) (again bool) {
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	m.restart = cancel
	s.mu.Unlock()
	events := s.client.Watcher.Watch(watching, k.dir, clientv3.WithRange(dirEnd(k.dir)), clientv3.WithCreatedNotify())
	for resp := range events {
		switch {
		case resp.Err() != nil:
			return s.pause(ctx)
		case resp.Created:
			list, err := s.kv.Range(watching, rangeRequest(k.dir))
			if err != nil {
				return s.pause(ctx)
			}
			s.listed(k, m, list.Header.Revision, contenders(k.dir, k.key, list.Kvs))
		default:
			s.changed(k, m, resp.Events)
		}
	}
	return s.pause(ctx)
}

// pause waits briefly, so that a server in trouble is not asked without a break.
func (s *Store) pause(ctx context.Context) (again bool) {
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

// apply applies an event. It returns the contender that it removed, if any.
func (m *mirror) apply(k *lock, e *clientv3.Event) (gone contender, ok bool) {
	if e.Kv.ModRevision <= m.rev { // the listing has it already
		return gone, false
	}
	if e.Type == mvccpb.Event_DELETE {
		return m.index.remove(string(e.Kv.Key))
	}
	c, ok := contenderOf(k.dir, k.key, e.Kv)
	if !ok {
		return gone, false
	}
	return m.index.put(c)
}

func (s *Store) listed(k *lock, m *mirror, rev int64, queue []contender) {
	var wake []func()
	s.mu.Lock()
	m.synced, m.rev, m.index = true, rev, newQueueIndex(queue)
	for _, c := range k.claims {
		if c.rev > 0 && c.rev <= rev && !c.releasing && m.index.revs[c.name] != c.rev {
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

func (s *Store) changed(k *lock, m *mirror, events []*clientv3.Event) {
	var wake []func()
	s.mu.Lock()
	for _, e := range events {
		gone, ok := m.apply(k, e)
		if !ok {
			continue
		}
		if c := k.claims[gone.ID]; c != nil && !gone.foreign && c.name == gone.name && c.rev == gone.rev && !c.releasing {
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

// grantedLocked finds the claims of this process that were granted the lock.
func (s *Store) grantedLocked(k *lock, m *mirror) (wake []func()) {
	now := bootclock.Now()
	for _, e := range m.index.queue[:holders(m.index.queue)] {
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

// claimTTL is how long an unasked grant lasts, counted from when the last request was
// sent that was answered with "waiting".
func (c *claim) claimTTL() time.Duration {
	ttl := min(driver.ClaimTTL, effectiveTTL(c.ttl))
	if c.lease != nil {
		ttl = min(ttl, c.lease.end.Sub(c.sent))
	}
	return ttl
}

// restartWatchLocked ends the watch; another one lists the queue again.
func (m *mirror) restartWatchLocked() {
	m.synced, m.idle = false, time.Time{}
	if m.restart != nil {
		m.restart()
	}
}
