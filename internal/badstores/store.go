package badstores

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/quorum"
)

// Store is a simple and slow store in memory, with one bug. Without a bug it passes the
// contract, which proves that a case fails because of the bug.
type Store struct {
	bug Bug

	together sync.Mutex // held while several are granted
	renewing sync.Map   // IDs, of LosesWhatItRenews
	ending   sync.Map   // IDs, of EndsWhatItRenews

	mu      sync.Mutex
	keys    map[string]*lock
	last    int64 // the counter of tokens and tickets
	watches map[*watch]bool
	due     []func() // called when the mutex is free
}

type lock struct {
	claims []*claim // holders in the order of their grants, then waiters in the order of arrival
	last   int64    // the counter of a store that counts per key
	broken []*claim
	left   []*claim // released
	dead   int      // expired waiters
}

type claim struct {
	driver.Claim
	held          bool
	renewed       bool // since the grant
	ticket, token int64
	ttl           time.Duration
	since, end    time.Time
	process       int           // the process that made it
	away          bool          // another process has renewed it
	transaction   chan struct{} // the transaction that depends on it, closed at its end; nil: none
}

// New returns an empty store.
func New(bug Bug) *Store {
	return &Store{bug: bug, keys: map[string]*lock{}, watches: map[*watch]bool{}}
}

// Traits implements driver.Locks.
func (s *Store) Traits() driver.Traits {
	return driver.Traits{
		Store: "broken", Fencing: true, FIFO: true, Shared: s.bug != LacksInSilence, Permits: true,
		MinTTL: time.Millisecond, MaxTTL: 24 * time.Hour,
	}
}

// Raise implements quorum.Member.
func (s *Store) Raise(_ context.Context, _ string, token int64) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.bug {
	case RaisesNothing:
	case LowersTokens:
		s.last = token
	default:
		s.last = max(s.last, token)
	}
	return s.last, nil
}

// Life implements quorum.Member.
func (s *Store) Life(context.Context) (quorum.Life, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := quorum.Life{Server: "the only one"}
	if s.bug == LivesTwice {
		l.Server = driver.NewID()
	}
	return l, nil
}

// Delete removes all that the store keeps of key.
func (s *Store) Delete(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.keys, key)
}

// enter locks the store and returns the key's state, without ended claims. leave unlocks
// it.
func (s *Store) enter(key string) *lock {
	s.mu.Lock()
	switch s.bug {
	case TrimsKeys:
		key = strings.TrimRight(key, " ")
	case FoldsCase:
		key = strings.ToLower(key)
	}
	l := s.keys[key]
	if l == nil {
		l = &lock{}
		s.keys[key] = l
	}
	if s.bug != ListsTheDead {
		s.expire(l)
	}
	return l
}

func (s *Store) leave() {
	if s.bug == ForgetsOnRelease {
		for key, l := range s.keys {
			if len(l.claims) == 0 {
				delete(s.keys, key)
			}
		}
	}
	due := s.due
	s.due = nil
	s.mu.Unlock()
	for _, wake := range due {
		wake()
	}
}

func (s *Store) next(l *lock) int64 {
	if s.bug == ForgetsOnRelease || s.bug == ForgetsOnDeletion {
		l.last++
		return l.last
	}
	s.last = max(s.last+1, time.Now().UnixMicro())
	return s.last
}

func (l *lock) find(id string) *claim {
	for _, c := range l.claims {
		if c.ID == id {
			return c
		}
	}
	return nil
}

func (l *lock) remove(c *claim) {
	l.claims = slices.DeleteFunc(l.claims, func(x *claim) bool { return x == c })
}

func (l *lock) split() (holders, waiters []*claim) {
	n := slices.IndexFunc(l.claims, func(c *claim) bool { return !c.held })
	if n < 0 {
		return l.claims, nil
	}
	return l.claims[:n], l.claims[n:]
}

func (s *Store) fits(l *lock, r driver.Claim) bool {
	holders, _ := l.split()
	used := r.Weight
	for _, h := range holders {
		if h.Capacity != r.Capacity {
			if s.bug == MixesCapacities && !h.Exclusive() && !r.Exclusive() {
				continue
			}
			return false
		}
		used += h.Weight
	}
	switch {
	case r.Capacity < driver.Whole && s.bug == OneTooMany:
		used--
	case r.Capacity < driver.Whole && s.bug == OneTooFew:
		used++
	}
	return used <= r.Capacity || len(holders) == 0
}

// expire removes ended claims.
func (s *Store) expire(l *lock) {
	now := time.Now()
	shared := false
	for _, c := range l.claims {
		shared = shared || s.bug == SharesOneExpiry && c.held && c.Shared() && c.end.After(now)
	}
	l.claims = slices.DeleteFunc(l.claims, func(c *claim) bool {
		switch {
		case c.held && s.bug == NeverExpires, !c.held && s.bug == WaitersNeverDie, c.held && c.Shared() && shared:
			return false
		case c.transaction != nil:
			return false
		case s.bug == RenewsTheDead && c.held: // it is gone when another process asks
			return false
		}
		if !c.held && !c.end.After(now) {
			l.dead++
		}
		return !c.end.After(now)
	})
}

// settle grants to those who fit now.
func (s *Store) settle(l *lock) {
	switch s.bug {
	case WaitsForRelease:
	case Barges, BargesAfterExpiry: // the waiter looks for itself later
	default:
		s.advance(l)
	}
}

// advance grants what fits, from the head of the queue.
func (s *Store) advance(l *lock) {
	for {
		_, waiters := l.split()
		if len(waiters) == 0 {
			return
		}
		next := waiters[0]
		switch s.bug {
		case LastInFirstOut:
			next = waiters[len(waiters)-1]
		case ReadersOvertake, SmallOvertakeBig:
			for _, w := range waiters {
				if s.fits(l, w.Claim) && (s.bug == SmallOvertakeBig || w.Shared()) {
					next = w
					break
				}
			}
		}
		if !s.fits(l, next.Claim) {
			return
		}
		ttl := min(next.ttl, driver.ClaimTTL)
		switch s.bug {
		case ClaimsForTTL:
			ttl = next.ttl
		case ClaimsForClaimTTL:
			ttl = driver.ClaimTTL
		}
		s.hold(l, next, ttl)
		g := s.answer(l, next)
		if s.bug == HintsAnotherToken {
			g.Token++
		}
		s.hint(next, driver.Hint{Granted: true, Grant: g})
	}
}

func (s *Store) hold(l *lock, c *claim, ttl time.Duration) {
	l.remove(c)
	holders, _ := l.split()
	l.claims = slices.Insert(l.claims, len(holders), c)
	c.held = true
	c.token = s.next(l)
	c.ticket = c.token
	c.since = time.Now()
	c.end = c.since.Add(ttl)
	if s.bug == ExpiresEarly {
		c.end = c.since.Add(ttl / 2)
	}
	c.ttl = ttl
}

func (s *Store) answer(l *lock, c *claim) driver.Grant {
	if !c.held {
		again := driver.RefreshEvery
		for _, h := range l.claims {
			if h.held {
				again = min(again, max(time.Until(h.end), 0)+time.Millisecond)
			}
		}
		return driver.Grant{Waiting: true, Ticket: c.ticket, TTL: time.Until(c.end), Again: again}
	}
	ttl := time.Until(c.end)
	if s.bug == ExpiresEarly {
		ttl = c.ttl
	}
	return driver.Grant{Token: c.token, Ticket: c.ticket, TTL: ttl}
}

func (s *Store) confirm(c *claim, ttl time.Duration) {
	switch {
	case !c.held && s.bug == ForgetsWaiters: // it lives from when it joined
	case !c.held:
		c.ttl = ttl
		c.end = time.Now().Add(driver.WaiterTTL)
	case s.bug == ClaimsForGood && c.end.Sub(c.since) == driver.ClaimTTL:
	default:
		c.end = time.Now().Add(ttl)
	}
}

func (s *Store) acquire(ctx context.Context, r driver.Request, process int) (g driver.Grant, err error) {
	if err := s.check(ctx, r); err != nil {
		return driver.Grant{}, err
	}
	l := s.enter(r.Key)
	defer s.leave()
	s.settle(l)
	defer func() {
		if s.bug == AcquiresInSecret && ctx.Err() != nil {
			g, err = driver.Grant{}, ctx.Err()
		}
	}()
	if s.bug == RenewsTheDead {
		l.claims = slices.DeleteFunc(l.claims, func(c *claim) bool { return c.ID != r.ID && !c.end.After(time.Now()) })
		s.advance(l)
	}
	holders, waiters := l.split()
	c := l.find(r.ID)
	switch {
	case c == nil && r.Retry && s.bug == RefusesRetries:
		return driver.Grant{}, driver.ErrLost
	case c == nil:
	case s.bug == BoundsRepeats && !c.held && r.MaxWaiting > 0:
	case s.bug == LocksItselfOut, s.bug == TakesSecondPlace && !c.held, s.bug == CountsTwice && c.held && c.Shared():
	case c.process != process && s.overlooks(c):
	default:
		s.asks(c, r.Owner)
		if c.process == process || s.bug != EndsWithFirst {
			s.confirm(c, r.TTL)
		}
		g := s.answer(l, c)
		if s.bug == RepeatsLower && c.held {
			g.Token--
		}
		return g, nil
	}
	if old := s.revived(l, r, process); c == nil && old != nil {
		return s.answer(l, old), nil
	}
	if c == nil && r.Retry && s.bug == FindsThenQueues {
		s.mu.Unlock()
		time.Sleep(time.Microsecond)
		s.mu.Lock()
		holders, waiters = l.split()
	}
	for _, h := range holders {
		if !h.Exclusive() && !r.Exclusive() && h.Capacity != r.Capacity && s.bug != MixesCapacities {
			return driver.Grant{}, &driver.CapacityError{Key: r.Key, InUse: h.Capacity, Asked: r.Capacity}
		}
	}
	c = &claim{Claim: r.Claim, ttl: r.TTL, since: time.Now(), process: process}
	first := len(waiters) == 0
	switch s.bug {
	case Barges, SmallOvertakeBig:
		first = true
	case ReadersOvertake:
		first = first || r.Shared()
	case BargesAfterExpiry:
		first = first || len(holders) == 0
	}
	if err := s.full(l, r); err != nil && s.bug == BoundsTheFree && r.Queue {
		return driver.Grant{}, err
	}
	if first && s.fits(l, r.Claim) {
		if s.bug == ChecksThenActs {
			s.mu.Unlock()
			time.Sleep(time.Microsecond)
			s.mu.Lock()
		}
		s.hold(l, c, r.TTL)
		return s.answer(l, c), nil
	}
	if !r.Queue {
		err := s.heldError(r.Key, l)
		s.sweep(l, process)
		return driver.Grant{}, err
	}
	full := s.full(l, r)
	if full != nil && s.bug != RefusesAndQueues {
		return driver.Grant{}, full
	}
	if s.bug == LooksThenWaits {
		s.mu.Unlock()
		time.Sleep(time.Microsecond)
		s.mu.Lock()
	}
	c.ticket = s.next(l)
	c.end = time.Now().Add(driver.WaiterTTL)
	l.claims = append(l.claims, c)
	return s.answer(l, c), full
}

func (s *Store) check(ctx context.Context, r driver.Request) error {
	if s.bug == TakesZeroWeight && r.Weight == 0 {
		r.Weight = 1
	}
	if s.bug == LacksInSilence && r.Shared() {
		r.Weight = driver.Whole
	}
	err := check.Request(r, s.Traits())
	if _, ok := errors.AsType[*driver.KeyError](err); err != nil && !(ok && s.bug == TakesAnyKey) {
		return err
	}
	if s.bug == AcquiresInSecret {
		return nil
	}
	return ctx.Err()
}

// Renew implements driver.Locks.
func (s *Store) Renew(ctx context.Context, claims []driver.Claim, ttl time.Duration) []driver.Renewal {
	answers := make([]driver.Renewal, len(claims))
	for _, c := range claims {
		if err := check.Claim(c); err != nil && s.bug == BatchRefused {
			for i := range answers {
				answers[i].Err = err
			}
			return answers
		}
	}
	for i, c := range claims {
		if s.bug == LosesWhatItRenews {
			s.renewing.Store(c.ID, true)
			time.Sleep(time.Millisecond) // in fake time: a release comes meanwhile
			s.renewing.Delete(c.ID)
		}
		if s.bug == EndsWhatItRenews {
			time.Sleep(time.Millisecond)
		}
		if s.bug == RenewsOneAtATime {
			if _, other := s.renewing.LoadOrStore(c.ID, true); other {
				answers[i].State = driver.Lost
				continue
			}
			time.Sleep(time.Millisecond) // in fake time: others come meanwhile
			s.renewing.Delete(c.ID)
		}
		answers[i] = s.renew(ctx, c, ttl, i)
		if s.bug == BatchStops && answers[i].State == driver.Lost || s.bug == BatchOfHundred && i == 99 {
			for j := range answers[i+1:] {
				answers[i+1+j] = driver.Renewal{Err: driver.ErrUnavailable}
			}
			break
		}
	}
	return answers
}

func (s *Store) renew(ctx context.Context, r driver.Claim, ttl time.Duration, number int) driver.Renewal {
	if s.bug == RoundsTTL {
		ttl = max(ttl, time.Millisecond)
	}
	if err := errors.Join(check.Claim(r), check.TTL(r.Key, ttl, s.Traits()), ctx.Err()); err != nil {
		return driver.Renewal{Err: err}
	}
	l := s.enter(r.Key)
	defer s.leave()
	if s.bug != WaitsForRelease {
		s.advance(l)
	}
	c := l.find(r.ID)
	if c != nil && !c.held && s.bug == RenewsFromMemory {
		s.mu.Unlock()
		time.Sleep(time.Millisecond) // in fake time: it is granted meanwhile
		s.mu.Lock()
		if c = l.find(r.ID); c != nil {
			c.held = false
		}
	}
	if c != nil && c.held && r.Ticket != 0 && r.Ticket != c.ticket && s.bug == RenewsByTicket && c.renewed {
		c = nil
	}
	if _, ending := s.ending.Load(r.ID); ending && c != nil {
		l.remove(c)
		c = nil
	}
	switch {
	case c == nil && s.bug == RenewsForAnyone && len(l.claims) > 0:
		c = l.claims[0]
	case c == nil && s.bug == RevivesDeleted && len(l.claims) == 0 && r.Ticket > 0:
		c = &claim{Claim: r}
		s.hold(l, c, ttl)
	case c == nil && s.bug == BreakCanBeUndone:
		if i := slices.IndexFunc(l.broken, func(c *claim) bool { return c.ID == r.ID }); i >= 0 && len(l.claims) == 0 {
			c = l.broken[i]
			l.claims = append(l.claims, c)
		}
	}
	if c == nil {
		return driver.Renewal{State: driver.Lost}
	}
	s.asks(c, r.Owner)
	if s.bug != RenewsForShow && (s.bug != BatchFirstOnly || number == 0) {
		s.confirm(c, ttl)
	}
	if s.bug == TokenPerRenewal && c.held {
		c.token = s.next(l)
	}
	g := s.answer(l, c)
	if !c.held {
		return driver.Renewal{State: driver.Waiting, Grant: g}
	}
	c.renewed = true
	if s.bug == RenewsForShow {
		g.TTL = ttl
	}
	return driver.Renewal{State: driver.Held, Grant: g}
}

// Release implements driver.Locks.
func (s *Store) Release(ctx context.Context, r driver.Claim) error {
	if err := check.Claim(r); err != nil {
		return err
	}
	if ctx.Err() != nil && s.bug == ReleasesForShow {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if _, ok := s.renewing.Load(r.ID); ok {
		return driver.ErrLost
	}
	if s.bug == EndsWhatItRenews {
		s.ending.Store(r.ID, true)
		time.Sleep(2 * time.Millisecond) // in fake time: a renewal comes meanwhile
	}
	l, err := s.enterTo(ctx, ReleasesTooSoon, r.Key, r.ID)
	defer s.leave()
	if err != nil {
		return err
	}
	c := l.find(r.ID)
	switch {
	case c == nil && s.bug == ReleasesForAnyone && len(l.claims) > 0:
		c = l.claims[0]
	case c == nil && s.bug == CountsReturns && len(l.claims) > 0:
		l.remove(l.claims[len(l.claims)-1])
	case s.bug == IgnoresTheKey:
		for _, other := range s.keys {
			if c := other.find(r.ID); c != nil {
				other.remove(c)
			}
		}
	case c != nil && r.Ticket == 0 && s.bug == CleansUpByTicket:
		return nil
	case c != nil && c.held && c.ticket != r.Ticket && s.bug == LosesGrantedPlace:
		return nil
	}
	if c == nil {
		return driver.ErrLost
	}
	l.remove(c)
	if s.bug == RevivesForOthers {
		l.left = append(l.left, c)
	}
	if !c.held && s.bug == HeadTakesQueue {
		l.claims, _ = l.split()
	}
	if s.bug != Barges {
		s.advance(l)
	}
	if s.bug == GivesUpSilently && c.ticket != r.Ticket {
		s.due = nil
	}
	return nil
}

// Downgrade implements driver.Downgrader.
func (s *Store) Downgrade(ctx context.Context, r driver.Claim, ttl time.Duration) (driver.Grant, error) {
	if err := errors.Join(check.Claim(r), check.TTL(r.Key, ttl, s.Traits()), ctx.Err()); err != nil {
		return driver.Grant{}, err
	}
	l, err := s.enterTo(ctx, DowngradesTooSoon, r.Key, r.ID)
	defer s.leave()
	if err != nil {
		return driver.Grant{}, err
	}
	s.settle(l)
	c := l.find(r.ID)
	if c == nil || c.Capacity != driver.Whole || !c.held && s.bug != DowngradesWaiters {
		return driver.Grant{}, driver.ErrLost
	}
	c.Weight = 1
	s.confirm(c, ttl)
	switch s.bug {
	case DowngradeGap:
		l.remove(c)
		s.advance(l)
		l.claims = append([]*claim{c}, l.claims...)
	case DowngradeToken:
		c.token = s.next(l)
	}
	if s.bug != DowngradeAlone {
		s.advance(l)
	}
	return s.answer(l, c), nil
}
