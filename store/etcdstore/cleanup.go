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

	// maxHeldMirrors bounds the mirrors that are for holders alone. Further holders
	// learn of a loss when they renew.
	maxHeldMirrors = 1000

	// mirrorLinger is how long a mirror stays open after its last use.
	mirrorLinger = 5 * time.Second

	// lateEffect is how long a request whose answer was lost may still take
	// effect: the server gives one up after 5 s and two elections.
	lateEffect = 10 * time.Second

	// setAside is how long a process does not ask for a name of its own that another
	// process has taken over. To ask for it costs two round trips.
	setAside = 10 * time.Second

	// tidyPause is the least pause between two runs of keepHouse.
	tidyPause = 10 * time.Millisecond

	// maxRemovals bounds the names that are being removed at a time: a process that stood
	// still may find very many claims ended, and has to renew the others first.
	maxRemovals = 256

	// prompt is how much earlier than asked for a claim ends that was not renewed, so
	// that the time that it takes to remove its name does not add to the TTL.
	prompt = 100 * time.Millisecond
)

// promise is how long a claim with that TTL stands.
func promise(ttl time.Duration) time.Duration { return ttl - min(prompt, ttl/20) }

// housekeeping removes what was not renewed in time and what lost answers may have
// left, and opens and closes mirrors when that is due. It does not help a process that
// died: there the server ends its leases. Guarded by Store.mu.
type housekeeping struct {
	timer   *time.Timer
	at      time.Time // when the timer fires; zero: it is not set
	rest    time.Time // no run begins before: see idle
	running bool
	stopped bool

	later    map[*claim]*sweep
	ready    []*sweep // those that are due, the first comes next
	removers int      // goroutines that work on ready
}

// idle is how many times as long as a run took the housekeeping then pauses: a run looks
// at every claim of the process under Store.mu, and with 100 000 of them takes longer
// than tidyPause.
const idle = 9

// maxRest bounds that pause. A claim that was not renewed may end that much later. A run
// in which the process stood still says nothing about how long the next one takes.
const maxRest = 2 * time.Second

// restAfter is the pause after a run that took so long.
func restAfter(run time.Duration) time.Duration { return min(idle*min(run, maxRest), maxRest) }

// A sweep removes the name of an ended claim.
type sweep struct {
	claim *claim
	at    time.Time // the next attempt
	busy  bool      // it is under way, or in ready
}

func (h *housekeeping) stopLocked() {
	h.stopped = true
	if h.timer != nil {
		h.timer.Stop()
	}
}

// dueLocked makes keepHouse run at that time or before, or when it has rested.
func (s *Store) dueLocked(at time.Time) {
	h := &s.house
	if at.Before(h.rest) {
		at = h.rest
	}
	if h.stopped || h.running || !h.at.IsZero() && !at.Before(h.at) {
		return
	}
	h.at = at
	pause := max(at.Sub(bootclock.Coarse()), 0)
	if h.timer == nil {
		h.timer = time.AfterFunc(pause, s.keepHouse)
	} else {
		h.timer.Reset(pause)
	}
}

// expireLocked ends a claim that was not renewed in time. It leaves a name that another
// process made, and this one has not yet taken over, to that process.
func (s *Store) expireLocked(c *claim) (wake []func()) {
	wake = s.endLocked(c)
	if c.place < 0 && c.lease == nil {
		s.forgetLocked(c)
	} else {
		s.sweepLocked(c)
	}
	return wake
}

// sweepLocked has the name of an ended claim removed.
func (s *Store) sweepLocked(c *claim) {
	if s.house.later[c] != nil {
		return
	}
	w := &sweep{claim: c}
	s.house.later[c] = w
	s.readyLocked(w)
}

// readyLocked has a name removed as soon as fewer than maxRemovals are being removed.
func (s *Store) readyLocked(w *sweep) {
	h := &s.house
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

func (s *Store) keepHouse() {
	s.mu.Lock()
	h := &s.house
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
				soon(now.Add(tidyPause))
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
		if at, ok := s.lingerLocked(k, now); ok {
			soon(at)
		}
		if at, ok := s.unsetLocked(k, now); ok {
			soon(at)
		}
	}
	for _, w := range h.later {
		switch {
		case w.busy: // remove sets when it is due again
		case now.Before(w.at):
			soon(w.at)
		default:
			s.readyLocked(w)
		}
	}
	h.running = false
	ended := bootclock.Now()
	h.rest = ended.Add(restAfter(ended.Sub(now)))
	if lead := now.Add(tidyPause); next.Before(lead) {
		next = lead
	}
	if len(s.keys) > 0 || len(h.later) > 0 {
		s.dueLocked(next)
	}
	s.mu.Unlock()
	for _, f := range wake {
		f()
	}
}

// removeReady removes the names that are due, one after the other. It does not wait for
// the housekeeping in between: with very many claims that rests for long.
func (s *Store) removeReady() {
	for {
		s.mu.Lock()
		h := &s.house
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

// remove removes the name of an ended claim, and tries again later until the outcome is
// certain.
func (s *Store) remove(w *sweep) {
	c := w.claim
	s.mu.Lock()
	it, under, exact := c.removal(), c.item, c.exact()
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(s.ctx, 2*time.Second)
	defer cancel()
	if under != nil { // a put that is still under way would come after the removal
		select {
		case <-under.Done():
		case <-ctx.Done():
		}
	}
	err := s.do(ctx, it)

	s.mu.Lock()
	defer s.mu.Unlock()
	now := bootclock.Coarse()
	w.busy = false
	twice := errors.Is(err, errTwice) // it is not there, and that is enough
	c.removedLocked(exact, err)
	switch {
	case err != nil && !twice:
		w.at = now.Add(200 * time.Millisecond)
	case c.uncertain(): // it may yet be put, or put again
		w.at = now.Add(time.Second)
	default:
		w.at = time.Time{}
		s.forgetLocked(c)
		if !twice && !it.resp.Succeeded { // if the process has not removed it, what else has the name?
			s.seekStraysLocked()
		}
	}
	if !c.lock.all[c] { // also if its lease has ended
		delete(s.house.later, c)
		return
	}
	s.dueLocked(w.at)
}

// removedLocked takes the outcome of a removal. One that may come late, and would not
// spare a claim that has come back, keeps it from coming back meanwhile.
func (c *claim) removedLocked(exact bool, err error) {
	if !exact && errors.Is(err, driver.ErrUnknown) {
		c.unresolved = bootclock.Coarse().Add(lateEffect)
	}
}

// release is the request that removes a claim's name, even if another process has taken
// it over, and on any lease: a renewal that is under way may be about to move it to
// another one. It also removes a name that an unresolved put made again after a
// removal.
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

// exact reports whether this process knows what it would remove. Then a removal that comes
// late does no harm to a claim that has come back, as taking it back has written the name.
func (c *claim) exact() bool {
	return c.rev != 0 && c.lease != nil && !c.moving && !c.uncertain()
}

// removal is release, unless another process has taken the claim over: then the name is on
// none of the leases that this process has put it on. A name that was renamed elsewhere is
// left to seekStraysLocked.
func (c *claim) removal() *item {
	it := c.release()
	if c.exact() {
		it.txn.Compare = append(it.txn.Compare, modRev(c.name, c.mod), onLease(c.name, c.lease.id))
		return it
	}
	// No condition is true if one of several is: so it is a removal for each.
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

// late waits for the outcome of an acquire that its caller did not wait for. The
// outcome is known in the end, or the request has no effect any more after lateEffect:
// so nothing is repeated blindly as sqlstore.Abandoned does.
func (s *Store) late(c *claim, it *item) {
	<-it.Done()
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.item != it {
		return
	}
	c.item = nil
	if errors.Is(it.err, driver.ErrUnknown) { // it may have been given up on its way
		c.unresolvedLocked(it)
		return
	}
	if it.left {
		c.unresolved = it.unresolved // not this one's any more, but perhaps an earlier one's
	}
	if it.resp != nil { // else it certainly failed, or was not sent
		s.answeredLocked(c, it)
	}
}

// unresolvedLocked notes that the request for the claim may still take effect. When this
// process no longer looks for that, the leases that the request names have ended.
func (c *claim) unresolvedLocked(it *item) {
	c.unresolved = bootclock.Coarse().Add(lateEffect)
	for _, l := range it.on {
		l.unresolved = true
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
