package etcdstore

import (
	"context"
	"strings"
	"time"

	mvccpb "go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
)

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
