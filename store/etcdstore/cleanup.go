package etcdstore

import (
	"context"
	"errors"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/batch"
	"github.com/batonhq/baton/internal/bootclock"
)

const (
	// mirrorAfter is how long a lock is held before a mirror watches for its loss.
	mirrorAfter = 100 * time.Millisecond

	// maxHeldMirrors bounds the mirrors for holders alone. Other holders notice a loss
	// when they renew.
	maxHeldMirrors = 1000

	// mirrorLinger is how long a mirror stays open after its last use.
	mirrorLinger = 5 * time.Second

	// unresolvedTime is how long a request whose answer was lost may still take effect:
	// the server gives a request up after 5 s and two elections.
	unresolvedTime = 10 * time.Second

	// reserveTime is how long a process does not use a name of its own that another
	// process has taken over. A try costs two round trips.
	reserveTime = 10 * time.Second

	// cleanPause is the shortest pause between two runs of clean.
	cleanPause = 10 * time.Millisecond

	// maxRemovals bounds the concurrent removals: a process that was stopped may find
	// very many claims ended, and must renew its other claims first.
	maxRemovals = 256

	// removalTime is subtracted from the TTL of a claim that is not renewed, so that its
	// name is removed within the TTL.
	removalTime = 100 * time.Millisecond
)

// effectiveTTL is the time after a renewal at which the claim ends for this process.
func effectiveTTL(ttl time.Duration) time.Duration { return ttl - min(removalTime, ttl/20) }

// cleaner removes claims that were not renewed in time and the effects of requests whose
// answers were lost, and opens and closes mirrors. It is for a live process: when a
// process dies, the server ends its leases. Guarded by Store.mu.
type cleaner struct {
	timer       *time.Timer
	at          time.Time // zero: the timer is not set
	pausedUntil time.Time // no run begins before: see pauseFactor
	running     bool
	stopped     bool

	later    map[*claim]*sweep
	ready    []*sweep // due sweeps, the next one first
	removers int      // goroutines that work on ready
}

// pauseFactor times the duration of a run is the pause after it: a run looks at every
// claim of the process under Store.mu, and takes longer than cleanPause with 100 000 of
// them.
const pauseFactor = 9

// maxPause bounds that pause, by which the end of a claim that was not renewed may be
// late. A run in which the process was stopped is no measure for the next one.
const maxPause = 2 * time.Second

// pauseAfter is the pause after a run.
func pauseAfter(run time.Duration) time.Duration {
	return min(pauseFactor*min(run, maxPause), maxPause)
}

// A sweep removes the name of an ended claim.
type sweep struct {
	claim *claim
	at    time.Time // the next attempt
	busy  bool      // it is under way, or in ready
}

func (h *cleaner) stopLocked() {
	h.stopped = true
	if h.timer != nil {
		h.timer.Stop()
	}
}

// cleanByLocked makes clean run by that time, or after its pause.
func (s *Store) cleanByLocked(at time.Time) {
	h := &s.cleaner
	if at.Before(h.pausedUntil) {
		at = h.pausedUntil
	}
	if h.stopped || h.running || !h.at.IsZero() && !at.Before(h.at) {
		return
	}
	h.at = at
	pause := max(at.Sub(bootclock.Now()), 0)
	if h.timer == nil {
		h.timer = time.AfterFunc(pause, s.clean)
	} else {
		h.timer.Reset(pause)
	}
}

// expireLocked ends a claim that was not renewed in time. A name that another process
// made, and this one has not yet taken over, stays that process's.
func (s *Store) expireLocked(c *claim) (wake []func()) {
	wake = s.endLocked(c)
	if c.nameIndex < 0 && c.lease == nil {
		s.forgetLocked(c)
	} else {
		s.sweepLocked(c)
	}
	return wake
}

// sweepLocked plans the removal of an ended claim's name.
func (s *Store) sweepLocked(c *claim) {
	if s.cleaner.later[c] != nil {
		return
	}
	w := &sweep{claim: c}
	s.cleaner.later[c] = w
	s.readyLocked(w)
}

// readyLocked has a name removed once fewer than maxRemovals are under way.
func (s *Store) readyLocked(w *sweep) {
	h := &s.cleaner
	if h.stopped {
		return
	}
	w.busy = true
	h.ready = append(h.ready, w)
	if h.removers < maxRemovals {
		h.removers++
		s.work.Go(s.removeReady)
	}
}

func (s *Store) clean() {
	s.mu.Lock()
	h := &s.cleaner
	h.at = time.Time{}
	if h.stopped || h.running {
		s.mu.Unlock()
		return
	}
	h.running = true
	now := bootclock.Now()
	next := now.Add(time.Minute)
	soon := func(at time.Time) {
		if at.Before(next) {
			next = at
		}
	}
	var wake []func()
	mirrors := 0
	for _, k := range s.keys {
		if k.mirror != nil && !k.waitedForLocked() {
			mirrors++
		}
	}
	for _, k := range s.keys {
		for c := range k.all {
			switch {
			case c.ended:
				continue
			case !now.Before(c.deadline) && c.busy == 0:
				wake = append(wake, s.expireLocked(c)...)
				continue
			case !now.Before(c.deadline):
				soon(now.Add(cleanPause))
			default:
				soon(c.deadline)
			}
			if c.held && k.mirror == nil && k.watchedLocked(c.ID) && mirrors < maxHeldMirrors {
				if at := c.since.Add(mirrorAfter); now.Before(at) {
					soon(at)
				} else {
					mirrors++
					s.mirrorLocked(k)
				}
			}
		}
		if at, ok := s.closeIdleLocked(k, now); ok {
			soon(at)
		}
		if at, ok := s.unreserveLocked(k, now); ok {
			soon(at)
		}
	}
	for _, w := range h.later {
		switch {
		case w.busy: // remove sets its next time
		case now.Before(w.at):
			soon(w.at)
		default:
			s.readyLocked(w)
		}
	}
	h.running = false
	ended := bootclock.Now()
	h.pausedUntil = ended.Add(pauseAfter(ended.Sub(now)))
	if lead := now.Add(cleanPause); next.Before(lead) {
		next = lead
	}
	if len(s.keys) > 0 || len(h.later) > 0 {
		s.cleanByLocked(next)
	}
	s.mu.Unlock()
	for _, f := range wake {
		f()
	}
}

// removeReady removes the due names, one after the other. It does not wait for the next
// run of clean: with very many claims the pause is long.
func (s *Store) removeReady() {
	for {
		s.mu.Lock()
		h := &s.cleaner
		if h.stopped || len(h.ready) == 0 {
			h.removers--
			s.mu.Unlock()
			return
		}
		w := h.ready[0]
		h.ready[0] = nil
		h.ready = h.ready[1:]
		s.mu.Unlock()
		s.remove(w)
	}
}

// remove removes the name of an ended claim, and plans another try until the outcome is
// certain.
func (s *Store) remove(w *sweep) {
	c := w.claim
	s.mu.Lock()
	it, under, exact := c.removal(), c.item, c.exact()
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(s.ctx, 2*time.Second)
	defer cancel()
	if under != nil { // a put under way would come after the removal
		select {
		case <-under.Done():
		case <-ctx.Done():
		}
	}
	err := s.do(ctx, it)

	s.mu.Lock()
	defer s.mu.Unlock()
	now := bootclock.Now()
	w.busy = false
	twice := errors.Is(err, errTwice) // the name does not exist, which suffices
	c.removedLocked(exact, err)
	switch {
	case err != nil && !twice:
		w.at = now.Add(200 * time.Millisecond)
	case c.uncertain(): // the name may yet be put, or put again
		w.at = now.Add(time.Second)
	default:
		w.at = time.Time{}
		s.forgetLocked(c)
		if !twice && !it.resp.Succeeded { // already missing: the server may have been restored
			s.findLeftoversLocked()
		}
	}
	if !c.lock.all[c] { // also if its lease has ended
		delete(s.cleaner.later, c)
		return
	}
	s.cleanByLocked(w.at)
}

// removedLocked takes the outcome of a removal. If the removal may take effect late, and
// would also remove a claim that has come back, the claim counts as unresolved until
// then.
func (c *claim) removedLocked(exact bool, err error) {
	if !exact && errors.Is(err, driver.ErrUnknown) {
		c.unresolved = bootclock.Now().Add(unresolvedTime)
	}
}

// release is the request that removes a claim's name, on any lease, even if another
// process has taken it over: a renewal under way may be about to move it. It also removes
// a name that an unresolved put made again after a removal.
func (c *claim) release() *item {
	it := &item{Item: batch.NewItem(), dir: c.lock.dir, name: c.name, ttl: c.ttl, txn: &pb.TxnRequest{Success: ops(remove(c.name))}}
	switch {
	case c.rev == 0:
		it.txn.Compare = only(hasValue(c.name, c.asked))
	case c.uncertain() && c.asked != "":
		it.txn.Failure = ops(nested(&pb.TxnRequest{
			Compare: only(hasValue(c.name, c.asked), createdAfter(c.name, c.rev)),
			Success: ops(remove(c.name)),
		}))
		fallthrough
	default:
		it.txn.Compare = only(createRev(c.name, c.rev))
	}
	return it
}

// exact reports whether this process knows which name it would remove. Then a late
// removal does not affect a claim that has come back: taking it back has written the
// name.
func (c *claim) exact() bool {
	return c.rev != 0 && c.lease != nil && !c.moving && !c.uncertain()
}

// removal is release on the condition that no other process has taken the claim over: its
// name would be on a lease of that process. If another process renamed it,
// findLeftoversLocked removes the name.
func (c *claim) removal() *item {
	it := c.release()
	if c.exact() {
		it.txn.Compare = append(it.txn.Compare, modRev(c.name, c.mod), onLease(c.name, c.lease.id))
		return it
	}
	// etcd has no "or", so each lease needs a conditional removal.
	all := []*pb.TxnRequest{it.txn}
	if len(it.txn.Failure) > 0 {
		all = append(all, it.txn.Failure[0].GetRequestTxn())
	}
	it.txn = &pb.TxnRequest{}
	for _, l := range c.on {
		for _, r := range all {
			it.txn.Success = append(it.txn.Success, nested(&pb.TxnRequest{
				Compare: append(slices.Clone(r.Compare), onLease(c.name, l.id)),
				Success: r.Success,
			}))
		}
	}
	return it
}

// resolve waits for the outcome of an acquire whose caller has left. Either an answer
// comes, or the request has no effect after unresolvedTime. So the store need not repeat
// releases as sqlstore.Abandoned does.
func (s *Store) resolve(c *claim, it *item) {
	<-it.Done()
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.item != it {
		return
	}
	c.item = nil
	if errors.Is(it.err, driver.ErrUnknown) { // the client may have given it up after sending
		c.unresolvedLocked(it)
		return
	}
	if it.abandoned {
		c.unresolved = it.unresolved // this request is resolved, perhaps not an earlier one
	}
	if it.resp != nil { // else it certainly failed, or was not sent
		s.answeredLocked(c, it)
	}
}

// unresolvedLocked notes that the request for the claim may still take effect. The leases
// in the request are replaced, so that they end before this process stops looking.
func (c *claim) unresolvedLocked(it *item) {
	c.unresolved = bootclock.Now().Add(unresolvedTime)
	for _, l := range it.on {
		l.unresolved = true
	}
}

// leftoverPause is the pause before a failed search for leftovers is repeated.
const leftoverPause = 200 * time.Millisecond

// findLeftoversLocked searches all leases for leftovers, in the background, until it
// succeeds.
func (s *Store) findLeftoversLocked() {
	s.leftoverRounds++
	if s.closed || s.findingLeftovers {
		return
	}
	s.findingLeftovers = true
	s.work.Go(func() {
		for {
			s.mu.Lock()
			strayRounds := s.leftoverRounds
			var leases []int64
			for l := range s.leasesLocked() {
				if l.id != 0 && !l.dead {
					leases = append(leases, l.id)
				}
			}
			s.mu.Unlock()
			looked := true
			for _, id := range leases {
				looked = s.removeLeftovers(id) && looked
			}
			s.mu.Lock()
			if looked && strayRounds == s.leftoverRounds {
				s.findingLeftovers = false
				s.mu.Unlock()
				return
			}
			s.mu.Unlock()
			t := time.NewTimer(leftoverPause)
			select {
			case <-t.C:
			case <-s.ctx.Done():
				t.Stop()
				return
			}
		}
	})
}

// removeLeftovers removes the names on a lease of this process that belong to no claim.
// It returns false if it must be repeated.
func (s *Store) removeLeftovers(lease int64) (done bool) {
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
	// since then is gone, or has another revision if it comes again. A claim that has not
	// ended is renewed, and lost if the name is not its own.
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
		if err := s.removeLeftover(ctx, name, lease); err != nil {
			return !passing(err)
		}
	}
	return true
}

func (s *Store) removeLeftover(ctx context.Context, name string, lease int64) error {
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
			// The leftover may have come back under a name that another claim uses now,
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
