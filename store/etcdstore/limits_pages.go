package etcdstore

import (
	"context"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/batonhq/baton/internal/bootclock"
	"github.com/batonhq/baton/internal/rate"
)

// Limits are in folders that begin with a control character, which no lock's key has.
// Their names contain a slash, so that none is a position in a queue.
const (
	stateDir  = "\tlimits/"
	memoryDir = "\tids/"
)

func (s *Store) stateName(key string) string { return s.prefix + stateDir + key }

func (s *Store) memoryName(key, id string) string { return s.prefix + memoryDir + id + "/" + key }

// A page is the content of one name: numbers, or nothing. The numbers of a limit are the
// newest time that it has seen and its rate.State. Those of an ID are Taken.At,
// Taken.Wait and the time until which it is remembered, or a single number if there is no
// memory.
type page struct {
	numbers rate.State // never changed in place
	rev     int64      // mod revision; 0: no such name
	lease   int64
	seen    time.Time // when the numbers were known to have been written
	end     time.Time // when the lease ends, if known

	changed bool
	keep    time.Duration // if changed: how long to keep it
}

func (p *page) write(boot time.Time, keep time.Duration, numbers rate.State) {
	p.numbers, p.keep, p.seen, p.changed = numbers, keep, boot, true
}

// at is the newest time that a limit has seen, or 0.
func (p *page) at() int64 {
	if len(p.numbers) < 2 {
		return 0
	}
	return p.numbers[0]
}

// time is the present for the page: the clock's, but no earlier than the time in the
// page, which continues at half the speed. So the clock of this machine catches up with a
// time from a clock that is ahead, and time never stops.
func (p *page) time(boot time.Time) int64 {
	at := p.at()
	if at == 0 {
		return 0
	}
	return at + max(boot.Sub(p.seen), 0).Microseconds()/2
}

// state is a copy of the limit's state, for the caller to change.
func (p *page) state() rate.State {
	if len(p.numbers) < 2 {
		return nil
	}
	return slices.Clone(p.numbers[1:])
}

func (p *page) remembered(wall int64) (at, wait int64, ok bool) {
	if len(p.numbers) != 3 || p.numbers[2] <= wall {
		return 0, 0, false
	}
	return p.numbers[0], p.numbers[1], true
}

const (
	maxCached = 1 << 20 // bounds the numbers in a pageCache
	pageCost  = 20      // cost of a page besides its numbers, in numbers
)

// pageCache has the last known content of some names: the first attempt at a transaction
// relies on it.
type pageCache struct {
	pages map[string]*page
	size  int
}

func (k *pageCache) get(name string) *page {
	p := k.pages[name]
	if p != nil && p.expired() {
		k.drop(name, p)
		return nil
	}
	return p
}

// expired reports whether the page's lease has ended.
func (p *page) expired() bool { return !p.end.IsZero() && bootclock.Now().After(p.end) }

func (k *pageCache) drop(name string, p *page) {
	delete(k.pages, name)
	k.size -= pageCost + len(p.numbers)
}

func (k *pageCache) set(name string, p *page) {
	if old := k.pages[name]; old != nil {
		k.drop(name, old)
	}
	if p == nil || p.rev == 0 || len(p.numbers) == 0 {
		return
	}
	// Look at two other pages each time, so that unused names do not accumulate.
	looks := 2
	for other, old := range k.pages {
		full := k.size+pageCost+len(p.numbers) > maxCached
		if looks--; looks < 0 && !full {
			break
		}
		if full || old.expired() {
			k.drop(other, old)
		}
	}
	if k.pages == nil {
		k.pages = map[string]*page{}
	}
	k.pages[name] = p
	k.size += pageCost + len(p.numbers)
}

const (
	// minLease is the shortest lease of limits. Servers with an election timeout of more
	// than 5 s grant longer ones.
	minLease = 8

	// maxLease is the longest lease that servers grant, 285 years.
	maxLease = 9_000_000_000

	// maxLeased bounds the names on one lease, because a server removes them at once.
	maxLeased = 10_000
)

// A limitLease is a lease for new pages of this process until it is too short for them.
// It is never kept alive: it expires, and with it all pages that were not written since.
// That costs one lease for thousands of decisions, and keeps idle pages for up to four
// times as long as required. Guarded by limiter.mu.
type limitLease struct {
	id    int64
	end   time.Time
	names int

	request *leaseRequest // the request under way, if any
}

// leaseSeconds is the TTL of the lease for a page with that keep: at least twice as long,
// so that the lease serves for a while.
func leaseSeconds(keep time.Duration) int64 {
	ttl := int64(minLease)
	for ttl < 2*seconds(keep) {
		ttl *= 2
	}
	return min(ttl, maxLease)
}

// leasePage finds a lease for a page that is kept from boot on.
func (s *Store) leasePage(p *page, boot time.Time) error {
	ttl := leaseSeconds(p.keep)
	end := boot.Add(min(p.keep, time.Duration(ttl)*time.Second/2))
	l := s.limits
	for {
		l.mu.Lock()
		lease := l.leases[ttl]
		if lease == nil {
			lease = new(limitLease)
			l.leases[ttl] = lease
		}
		if lease.id != 0 && lease.names < maxLeased && !end.After(lease.end) {
			if p.lease != lease.id {
				lease.names++
			}
			p.lease, p.end = lease.id, lease.end
			l.mu.Unlock()
			return nil
		}
		if lease.request == nil {
			lease.request = &leaseRequest{done: make(chan struct{})}
			go s.grantLimits(lease, ttl)
		}
		a := lease.request
		l.mu.Unlock()
		if err := a.wait(s.ctx); err != nil {
			return err
		}
	}
}

// grantLimits asks for a new lease, for all calls that wait for it.
func (s *Store) grantLimits(lease *limitLease, ttl int64) {
	ctx, cancel := context.WithTimeout(s.ctx, requestTime)
	defer cancel()
	sent := bootclock.Now()
	resp, err := s.leaser.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: ttl})
	l := s.limits
	l.mu.Lock()
	defer l.mu.Unlock()
	a := lease.request
	lease.request = nil
	if err != nil {
		a.err = unavailable(rpctypes.Error(err)) // at worst there is an unused lease
	} else {
		lease.id, lease.names = resp.ID, 0
		lease.end = sent.Add(time.Duration(resp.TTL) * time.Second)
	}
	close(a.done)
}

func (s *Store) forgetLeases(a *proposal) {
	s.limits.mu.Lock()
	defer s.limits.mu.Unlock()
	for _, lease := range s.limits.leases {
		for _, p := range a.pages {
			if p.changed && p.lease == lease.id {
				lease.id = 0
			}
		}
	}
}
