package etcdstore

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	mvccpb "go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
)

// A lock is this process's knowledge of one key. Guarded by Store.mu.
type lock struct {
	key, dir string
	claims   map[string]*claim    // claims that have not ended, by ID
	all      map[*claim]bool      // these, and ended ones that must still be cleaned up
	names    []*claim             // by index, the claim with this name of the process; nil: free, or see returned
	returned map[string]*claim    // claims that have come back under a name of this process
	reserved map[string]time.Time // names of this process that other processes have taken over, and until when
	watches  map[string][]*watch  // by ID
	mirror   *mirror
}

// A claim is a claim of this process. Guarded by Store.mu.
type claim struct {
	driver.Claim
	lock      *lock
	nameIndex int // in lock.names; -1: it was found on the server
	name      string
	value     string
	asked     string // the value that an acquire puts: a downgrade changes value

	rev, mod    int64     // create and mod revision; 0: not known to exist
	lease       *lease    // the lease that the name is on
	moving      bool      // an answer was lost: it may be on another lease
	on          []*lease  // the leases of this process that may have the name
	downgrading bool      // a Downgrade is under way: the old value must not be written
	movedAway   time.Time // when it was seen on another process's lease

	item           *item     // the acquire without a known outcome
	maybeDuplicate bool      // its caller left before the answer: another process may have put a name before
	duplicate      bool      // that process has; this name is given up
	unresolved     time.Time // until when a request whose answer was lost may take effect: see uncertain

	ttl       time.Duration // as asked for
	held      bool          // known to be held, until deadline
	since     time.Time     // when that became known
	sent      time.Time     // when the last request was sent that was answered with "waiting"
	deadline  time.Time     // when it ends
	keepUntil time.Time     // not removed before: another process may consider itself the holder
	releasing bool          // a Release is under way
	busy      int           // calls that are about to renew it
	ended     bool
}

// mayBeOn notes the lease of a request that puts the name.
func (c *claim) mayBeOn(l *lease) {
	c.on = slices.DeleteFunc(c.on, func(o *lease) bool { return o == l || o.dead })
	c.on = append(c.on, l)
}

// uncertain reports whether a request without an answer may still take effect. A later
// answer to the same request does not settle that: the first one may take effect after
// it.
func (c *claim) uncertain() bool { return bootclock.Now().Before(c.unresolved) }

func (s *Store) lockLocked(key string) *lock {
	k := s.keys[key]
	if k == nil {
		k = &lock{key: key, dir: s.dir(key), claims: map[string]*claim{}, all: map[*claim]bool{}}
		s.keys[key] = k
	}
	return k
}

func (s *Store) claimLocked(cl driver.Claim) *claim {
	if k := s.keys[cl.Key]; k != nil {
		return k.claims[cl.ID]
	}
	return nil
}

// endLocked ends a claim for this process. Its name stays in use until forgetLocked. The
// caller runs the result after unlocking.
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

// forgetLocked forgets a claim without a name on the server, once no unresolved request
// can put it again.
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
	if c.nameIndex >= 0 && c.nameIndex < len(k.names) && k.names[c.nameIndex] == c {
		k.names[c.nameIndex] = nil
		for len(k.names) > 0 && k.names[len(k.names)-1] == nil {
			k.names = k.names[:len(k.names)-1]
		}
	}
	s.idleLocked(k)
}

// idleLocked forgets a lock that this process no longer uses.
func (s *Store) idleLocked(k *lock) {
	if len(k.all) == 0 && len(k.watches) == 0 && len(k.reserved) == 0 && k.mirror == nil && s.keys[k.key] == k {
		delete(s.keys, k.key)
	}
}

// Claims and the names of this process. A name may exist on the server although no claim
// of this process has it: another process has taken it over, or it is a leftover. A claim
// may come back under a name that it had in this process before.

// isOwnName reports whether a name in the queue is one of this process.
func (s *Store) isOwnName(dir, name string) bool {
	rest, ok := strings.CutPrefix(name, dir+s.process)
	return ok && (rest == "" || rest[0] == '-')
}

// addLocked registers a claim, under the first free name of this process.
func (s *Store) addLocked(k *lock, cl driver.Claim) *claim {
	c := &claim{Claim: cl, lock: k, value: encode(cl)}
	c.asked = c.value
	for c.name = s.ownName(k.dir, 0); !k.freeLocked(c.nameIndex, c.name); c.name = s.ownName(k.dir, c.nameIndex) {
		c.nameIndex++
	}
	for c.nameIndex >= len(k.names) {
		k.names = append(k.names, nil)
	}
	k.names[c.nameIndex] = c
	k.claims[c.ID], k.all[c] = c, true
	return c
}

// freeLocked reports whether no claim has that name of this process.
func (k *lock) freeLocked(place int, name string) bool {
	return (place >= len(k.names) || k.names[place] == nil) && k.returned[name] == nil &&
		!bootclock.Now().Before(k.reserved[name])
}

// reserveLocked reserves a name for the process that has taken it over.
func (s *Store) reserveLocked(k *lock, name string) {
	if k.reserved == nil {
		k.reserved = map[string]time.Time{}
	}
	k.reserved[name] = bootclock.Now().Add(reserveTime)
	s.cleanByLocked(k.reserved[name])
}

// reserveAllLocked reserves all such names in the queue.
func (s *Store) reserveAllLocked(k *lock, queue []contender) {
	own := map[string]bool{}
	for c := range k.all {
		own[c.name] = true
	}
	for _, e := range queue {
		if s.isOwnName(k.dir, e.name) && !own[e.name] && s.leaseLocked(e.lease) == nil {
			s.reserveLocked(k, e.name)
		}
	}
}

// unreserveLocked frees names that were reserved for long enough. It returns when to look
// again.
func (s *Store) unreserveLocked(k *lock, now time.Time) (at time.Time, ok bool) {
	for name, until := range k.reserved {
		switch {
		case !now.Before(until):
			delete(k.reserved, name)
		case !ok || until.Before(at):
			at, ok = until, true
		}
	}
	s.idleLocked(k)
	return at, ok
}

// occupiedLocked gives up a name that is not free. If a leftover of this process has it,
// that is removed, as it was read: a claim that comes back meanwhile has its name written
// again. A name that another process has taken over is not touched.
func (s *Store) occupiedLocked(c *claim, kv *mvccpb.KeyValue) {
	k := c.lock
	for o := range k.all {
		if o != c && o.name == c.name && o.rev == kv.CreateRevision {
			s.forgetLocked(c) // o is no leftover: it came back meanwhile
			return
		}
	}
	l := s.leaseLocked(kv.Lease)
	if l == nil {
		s.reserveLocked(k, c.name)
		s.forgetLocked(c)
		return
	}
	leftover := &claim{
		lock: k, nameIndex: c.nameIndex, name: c.name, value: string(kv.Value), ended: true,
		rev: kv.CreateRevision, mod: kv.ModRevision, lease: l, on: []*lease{l},
	}
	k.all[leftover] = true
	if c.nameIndex >= 0 && c.nameIndex < len(k.names) {
		k.names[c.nameIndex] = leftover
	}
	s.forgetLocked(c)
	s.keys[k.key] = k
	s.sweepLocked(leftover)
}

// overtaken looks which other names of this process were taken over by the process that
// has taken the claim's.
func (s *Store) overtaken(ctx context.Context, c *claim) error {
	s.mu.Lock()
	_, aside := c.lock.reserved[c.name]
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
	s.reserveAllLocked(s.lockLocked(c.Key), queue)
	return errAgain
}

// errTakenOver says that this process looks for its own unresolved request under a name
// that another process has taken over.
var errTakenOver = errors.New("another process has the claim, which this one had asked for without an answer")

// adopt finds claims that this process did not make, or whose outcome is unknown: a lease
// that was detached elsewhere, an acquire without an answer.
func (s *Store) adopt(ctx context.Context, claims []driver.Claim, unknown []int, answers []driver.Renewal, work *renewals) {
	for len(unknown) > 0 {
		part := unknown[:min(len(unknown), maxReads)]
		unknown = unknown[len(part):]
		txn := &pb.TxnRequest{}
		listings := map[string]int{}
		for _, i := range part {
			key := claims[i].Key
			if _, ok := listings[key]; !ok {
				listings[key] = len(txn.Success)
				txn.Success = append(txn.Success, listing(s.dir(key)))
			}
		}
		resp, _, err := s.txn(ctx, driver.WaiterTTL/4, txn)
		if err != nil {
			err = readFailure(ctx, err)
			for _, i := range part {
				answers[i].Err = err
			}
			continue
		}
		queues := map[string][]contender{}
		for key, at := range listings {
			queues[key] = contenders(s.dir(key), key, rangeOf(resp.Responses[at]).Kvs)
		}
		for _, i := range part {
			s.mu.Lock()
			c, r := s.adoptLocked(claims[i], queues[claims[i].Key])
			if c != nil {
				work.addLocked(c, i)
			} else {
				answers[i] = r
			}
			s.mu.Unlock()
		}
	}
}

// adoptLocked finds a claim in its queue. It returns the claim, or the reason why there
// is none.
func (s *Store) adoptLocked(cl driver.Claim, queue []contender) (c *claim, r driver.Renewal) {
	at := find(queue, cl.ID)
	if at < 0 {
		return nil, driver.Renewal{State: driver.Lost}
	}
	e := queue[at]
	switch removing, ours := s.removingLocked(cl, e); {
	case removing && ours:
		return nil, driver.Renewal{State: driver.Lost}
	case removing: // on a lease of this process it would be removed
		return nil, driver.Renewal{Err: unavailable(errTakenOver)}
	}
	k := s.lockLocked(cl.Key)
	c = k.claims[cl.ID]
	if c != nil && c.rev == 0 && c.name != e.name {
		// Another process has put the name. This process's request may yet take effect,
		// under its own name.
		s.endLocked(c)
		if c.item == nil {
			s.forgetLocked(c)
		} else {
			s.sweepLocked(c)
		}
		c = nil
	}
	if c == nil {
		c = &claim{lock: k, nameIndex: -1}
		k.claims[cl.ID], k.all[c] = c, true
		if s.isOwnName(k.dir, e.name) {
			if k.returned == nil {
				k.returned = map[string]*claim{}
			}
			k.returned[e.name] = c
		}
	}
	if c.rev == 0 {
		c.Claim, c.name, c.value = e.Claim, e.name, e.value
		c.rev, c.mod, c.lease, c.moving = e.rev, e.mod, nil, true
		c.deadline = bootclock.Now().Add(driver.WaiterTTL) // until it is renewed
	}
	if at < holders(queue) && !c.held {
		c.held, c.since = true, bootclock.Now()
	}
	return c, r
}
