package etcdstore

import (
	"context"
	"slices"
	"strings"
	"time"

	mvccpb "go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
)

// A lock is what this process knows of one key. Guarded by Store.mu.
type lock struct {
	key, dir string
	claims   map[string]*claim    // that stand, by ID
	all      map[*claim]bool      // those, and ended ones that still have to be cleaned up
	places   []*claim             // the claim that has each name of this process; nil: free, or see returned
	returned map[string]*claim    // the claims that have come back under a name of this process
	aside    map[string]time.Time // names of this process that others have taken over, until when
	watches  map[string][]*watch  // by ID
	mirror   *mirror
}

// A claim is a claim of this process. Guarded by Store.mu.
type claim struct {
	driver.Claim
	lock  *lock
	place int // index in lock.places; -1: it was found on the server
	name  string
	value string
	asked string // the value that an acquire puts: a downgrade changes value

	rev, mod int64     // create and mod revision; 0: not known to exist
	lease    *lease    // the lease that the name is on
	moving   bool      // an answer was lost: it may be on another lease
	on       []*lease  // the leases of this process that it was put on, or may have been
	changing bool      // a Downgrade is under way: do not write the name with its old value
	taken    time.Time // when it was seen on a lease that is not ours: another process has it

	item       *item     // the acquire whose answer is not known
	doubtful   bool      // its caller left before the answer: another process may have put a name before
	second     bool      // that process has, and this name is given up
	unresolved time.Time // until when a request whose answer was lost may take effect: see uncertain

	ttl      time.Duration // as asked for
	held     bool          // it is known to be held, until deadline
	since    time.Time     // when that became known
	sent     time.Time     // when the last request was sent that was answered with "waiting"
	deadline time.Time     // when it ends
	spared   time.Time     // it is not removed before, as another process may believe in it
	leaving  bool          // a Release is under way
	busy     int           // calls that are about to renew it
	ended    bool
}

// mayBeOn notes a lease that a request puts the name on.
func (c *claim) mayBeOn(l *lease) {
	c.on = slices.DeleteFunc(c.on, func(o *lease) bool { return o == l || o.dead })
	c.on = append(c.on, l)
}

// uncertain reports whether a request that got no answer may still take effect. A later
// answer to the same request does not settle that: the first one may take effect after
// it.
func (c *claim) uncertain() bool { return bootclock.Coarse().Before(c.unresolved) }

func (s *Store) lockLocked(key string) *lock {
	k := s.keys[key]
	if k == nil {
		k = &lock{key: key, dir: s.dir(key), claims: map[string]*claim{}, all: map[*claim]bool{}}
		s.keys[key] = k
	}
	return k
}

// claimLocked returns what this process knows of a claim that stands, or nil.
func (s *Store) claimLocked(cl driver.Claim) *claim {
	if k := s.keys[cl.Key]; k != nil {
		return k.claims[cl.ID]
	}
	return nil
}

// endLocked ends a claim for this process. Its name stays taken until forgetLocked. The
// caller runs what it returns after unlocking.
func (s *Store) endLocked(c *claim) (wake []func()) {
	if c.ended {
		return nil
	}
	c.ended = true
	if c.lock.claims[c.ID] == c {
		delete(c.lock.claims, c.ID)
	}
	return c.lock.wakeLocked(c.ID, driver.Hint{})
}

// forgetLocked forgets a claim that has nothing on the server, once no unresolved
// request can put its name there any more.
func (s *Store) forgetLocked(c *claim) {
	k := c.lock
	if !k.all[c] {
		return
	}
	c.ended = true
	if k.claims[c.ID] == c {
		delete(k.claims, c.ID)
	}
	if c.uncertain() {
		s.sweepLocked(c)
		return
	}
	delete(k.all, c)
	if k.returned[c.name] == c {
		delete(k.returned, c.name)
	}
	if c.place >= 0 && c.place < len(k.places) && k.places[c.place] == c {
		k.places[c.place] = nil
		for len(k.places) > 0 && k.places[len(k.places)-1] == nil {
			k.places = k.places[:len(k.places)-1]
		}
	}
	s.idleLocked(k)
}

// idleLocked forgets a lock that this process no longer uses.
func (s *Store) idleLocked(k *lock) {
	if len(k.all) == 0 && len(k.watches) == 0 && len(k.aside) == 0 && k.mirror == nil && s.keys[k.key] == k {
		delete(s.keys, k.key)
	}
}

// Which claim has which of this process's names. A name may stand on the server though no
// claim of this process has it: another process has taken it over, or it is a leftover. And
// a claim may come back under a name that it had here before.

// isPlace reports whether a name in the queue is one of this process.
func (s *Store) isPlace(dir, name string) bool {
	rest, ok := strings.CutPrefix(name, dir+s.process)
	return ok && (rest == "" || rest[0] == '-')
}

// addLocked registers a claim, under the first free name of this process.
func (s *Store) addLocked(k *lock, cl driver.Claim) *claim {
	c := &claim{Claim: cl, lock: k, value: encode(cl)}
	c.asked = c.value
	for c.name = s.place(k.dir, 0); !k.freeLocked(c.place, c.name); c.name = s.place(k.dir, c.place) {
		c.place++
	}
	for c.place >= len(k.places) {
		k.places = append(k.places, nil)
	}
	k.places[c.place] = c
	k.claims[c.ID], k.all[c] = c, true
	return c
}

// freeLocked reports whether no claim has that name of this process.
func (k *lock) freeLocked(place int, name string) bool {
	return (place >= len(k.places) || k.places[place] == nil) && k.returned[name] == nil &&
		!bootclock.Coarse().Before(k.aside[name])
}

// setAsideLocked keeps a name for another process, which has taken it over.
func (s *Store) setAsideLocked(k *lock, name string) {
	if k.aside == nil {
		k.aside = map[string]time.Time{}
	}
	k.aside[name] = bootclock.Coarse().Add(setAside)
	s.dueLocked(k.aside[name])
}

// setAllAsideLocked does that for all names in the queue of which it is true.
func (s *Store) setAllAsideLocked(k *lock, queue []contender) {
	own := map[string]bool{}
	for c := range k.all {
		own[c.name] = true
	}
	for _, e := range queue {
		if s.isPlace(k.dir, e.name) && !own[e.name] && s.leaseLocked(e.lease) == nil {
			s.setAsideLocked(k, e.name)
		}
	}
}

// unsetLocked gives up what was set aside long enough ago. It says when to look again.
func (s *Store) unsetLocked(k *lock, now time.Time) (at time.Time, ok bool) {
	for name, until := range k.aside {
		switch {
		case !now.Before(until):
			delete(k.aside, name)
		case !ok || until.Before(at):
			at, ok = until, true
		}
	}
	s.idleLocked(k)
	return at, ok
}

// occupiedLocked gives up a name that is not free. A leftover of ours that has it is
// removed, as it was read: a claim that comes back meanwhile has its name written again.
// What another process has taken over is left alone.
func (s *Store) occupiedLocked(c *claim, kv *mvccpb.KeyValue) {
	k := c.lock
	for o := range k.all {
		if o != c && o.name == c.name && o.rev == kv.CreateRevision {
			s.forgetLocked(c) // o is no leftover: it has come back while this one was asked for
			return
		}
	}
	l := s.leaseLocked(kv.Lease)
	if l == nil {
		s.setAsideLocked(k, c.name)
		s.forgetLocked(c)
		return
	}
	leftover := &claim{
		lock: k, place: c.place, name: c.name, value: string(kv.Value), ended: true,
		rev: kv.CreateRevision, mod: kv.ModRevision, lease: l, on: []*lease{l},
	}
	k.all[leftover] = true
	if c.place >= 0 && c.place < len(k.places) {
		k.places[c.place] = leftover
	}
	s.forgetLocked(c)
	s.keys[k.key] = k
	s.sweepLocked(leftover)
}

// overtaken looks which other names of this process another one has taken over, if it has
// taken the claim's.
func (s *Store) overtaken(ctx context.Context, c *claim) error {
	s.mu.Lock()
	_, aside := c.lock.aside[c.name]
	s.mu.Unlock()
	if !aside {
		return errAgain
	}
	queue, err := s.list(ctx, c.lock)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setAllAsideLocked(s.lockLocked(c.Key), queue)
	return errAgain
}
