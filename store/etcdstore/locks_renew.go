package etcdstore

import (
	"context"
	"errors"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	mvccpb "go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/bootclock"
)

// maxReads bounds the operations in one transaction: the server allows 128.
const maxReads = 100

// A renewal is one claim of a Renew.
type renewal struct {
	claim           *claim
	results         []int // indices of its answers: a claim may be given twice
	state           driver.State
	err             error
	decided         bool
	want            *lease
	class           int64 // of the right lease if it is held
	predecessorGone bool  // the contender before it has gone
	duplicate       bool  // the claim also has an older name
	needsQueue      bool  // the head of the queue did not suffice
}

// renewals are all claims of a Renew, each once. Guarded by Store.mu.
type renewals struct {
	class   int64
	all     []*renewal
	byClaim map[*claim]*renewal
}

// addLocked adds a claim, whose answer also goes to index i.
func (r *renewals) addLocked(c *claim, i int) {
	w := r.byClaim[c]
	if w == nil {
		w = &renewal{claim: c, class: r.class}
		r.byClaim[c] = w
		r.all = append(r.all, w)
		c.busy++
	}
	w.results = append(w.results, i)
}

// Renew implements driver.Locks.
//
// It takes one message for each class of lease and, at the same time, one transaction for
// up to a hundred claims that checks whether they still exist. If the class of a claim
// has changed, because it was granted in the queue or is renewed with another TTL, the
// same transaction puts it on the other lease.
func (s *Store) Renew(ctx context.Context, claims []driver.Claim, ttl time.Duration) []driver.Renewal {
	answers := make([]driver.Renewal, len(claims))
	sent := bootclock.Now()
	work := &renewals{class: seconds(ttl), byClaim: map[*claim]*renewal{}}
	s.adopt(ctx, claims, s.findClaims(ctx, claims, ttl, answers, work), answers, work)
	if len(work.all) == 0 {
		return answers
	}

	refreshed := map[*lease]*leaseRequest{}
	pending := work.all
	for round := 0; len(pending) > 0 && round <= attempts; round++ {
		s.pickLeases(ctx, pending, sent, ttl, refreshed)
		s.readState(ctx, pending, ttl)
		var rest []*renewal
		for _, w := range pending {
			if !w.decided {
				rest = append(rest, w)
			}
		}
		pending = rest
	}
	for l, a := range refreshed {
		err := s.awaitConfirmed(ctx, l, a)
		if err == nil {
			continue
		}
		for _, w := range work.all {
			if w.want == l && w.state != driver.Lost && w.err == nil {
				w.err = err
			}
		}
	}

	var duplicates []int
	var wake []func()
	s.mu.Lock()
	for _, w := range work.all {
		r, woken := s.renewedLocked(w, sent, ttl)
		wake = append(wake, woken...)
		if w.claim.duplicate {
			duplicates = append(duplicates, w.results...)
			continue
		}
		for _, i := range w.results {
			answers[i] = r
		}
	}
	s.mu.Unlock()
	for _, f := range wake {
		f()
	}
	for _, i := range duplicates {
		answers[i] = s.Renew(ctx, claims[i:i+1], ttl)[0]
	}
	return answers
}

// findClaims adds the claims that this process knows to work. It returns the indices of
// the others, and sets the answers about illegal ones.
func (s *Store) findClaims(ctx context.Context, claims []driver.Claim, ttl time.Duration, answers []driver.Renewal, work *renewals) (unknown []int) {
	notReady := s.ready(ctx)
	var wake []func()
	for i, cl := range claims {
		err := check.Claim(cl)
		if err == nil {
			err = check.TTL(cl.Key, ttl, traits)
		}
		if err == nil {
			err = notReady
		}
		if err != nil {
			answers[i] = driver.Renewal{Err: err}
			continue
		}
		s.mu.Lock()
		c := s.claimLocked(cl)
		switch {
		case c == nil || c.rev == 0:
			unknown = append(unknown, i)
		case c.busy == 0 && !bootclock.Now().Before(c.deadline):
			wake = append(wake, s.expireLocked(c)...)
			unknown = append(unknown, i) // another process may have renewed it
		default:
			work.addLocked(c, i)
		}
		s.mu.Unlock()
	}
	for _, f := range wake {
		f()
	}
	return unknown
}

// renewedLocked is the answer about a claim. If the claim also has an older name, it ends
// the claim under this name, and the caller asks for it again.
func (s *Store) renewedLocked(w *renewal, sent time.Time, ttl time.Duration) (r driver.Renewal, wake []func()) {
	c := w.claim
	c.busy--
	switch {
	case w.duplicate && c.held: // the older one has just gone
		w.decided = false
	case w.duplicate && !c.ended: // the older one counts
		c.duplicate = true
		wake = s.endLocked(c)
		s.sweepLocked(c)
	}
	if c.duplicate {
		return r, wake
	}
	r.State = w.state
	switch {
	case c.ended || w.state == driver.Lost:
		if w.state == driver.Lost { // already missing: the server may have been restored
			s.forgetLocked(c)
			s.findLeftoversLocked()
		}
		r.State = driver.Lost
	case w.err != nil || !w.decided:
		r.State = driver.Unknown
		if r.Err = w.err; r.Err == nil {
			r.Err = unavailable(errors.New("the lock's name changes all the time"))
		}
	case w.state == driver.Held:
		r.Grant = c.grantLocked(sent, ttl)
	default:
		r.Grant = c.waitingLocked(sent)
		c.ttl = ttl
		if c.lock.watchedLocked(c.ID) {
			s.mirrorLocked(c.lock)
		}
	}
	if !c.ended {
		s.cleanByLocked(c.deadline)
	}
	return r, wake
}

// pickLeases finds the right lease of each claim, and keeps it alive unless that was just
// done. A claim that is taken back from another process goes on a lease that lasts for as
// long as that process may consider itself the holder.
func (s *Store) pickLeases(ctx context.Context, work []*renewal, sent time.Time, ttl time.Duration, refreshed map[*lease]*leaseRequest) {
	for _, w := range work {
		class, need := int64(waiterSeconds), driver.WaiterTTL
		s.mu.Lock()
		if w.claim.held {
			class, need = w.class, effectiveTTL(ttl)
		}
		l := s.leases[class]
		usable := l != nil && l.id != 0 && !l.dead && bootclock.Now().Before(l.end)
		taken := w.claim.movedAway
		if usable && refreshed[l] == nil && l.end.Sub(sent) < need {
			refreshed[l] = s.refreshLocked(l)
		}
		s.mu.Unlock()
		var err error
		if !usable {
			l, err = s.leaseFor(ctx, class)
		}
		if err == nil && !taken.IsZero() {
			var a *leaseRequest
			if a, err = s.prolong(ctx, l, latest(sent, taken)); err == nil {
				refreshed[l] = a
			}
		}
		if err != nil {
			w.err, w.decided = err, true
			continue
		}
		w.want = l
	}
}

// readState reads the state of each claim, and moves claims to their right lease. Claims
// that need another look stay undecided.
func (s *Store) readState(ctx context.Context, work []*renewal, ttl time.Duration) {
	after := hedgeAfter(ttl)
	waiting := map[string]int{}
	s.mu.Lock()
	for _, w := range work {
		if !w.claim.held {
			waiting[w.claim.lock.dir]++
			after = min(after, driver.WaiterTTL/4)
		}
	}
	s.mu.Unlock()
	q := newQuestions(waiting)
	send := func() {
		if len(q.all) == 0 {
			return
		}
		resp, _, err := s.txn(ctx, after, q.txn)
		if err != nil {
			err = failure(ctx, err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.takeStatesLocked(q.all, resp, err)
		q = newQuestions(waiting)
	}
	for _, w := range work {
		if w.decided {
			continue
		}
		s.mu.Lock()
		s.askStateLocked(q, w)
		s.mu.Unlock()
		if len(q.txn.Success) >= maxReads { // a claim adds three at most
			send()
		}
	}
	send()
}

// questions are the questions of one transaction.
type questions struct {
	txn      *pb.TxnRequest
	all      []question
	listings map[string]int // by the folder of a key, the index of the answer with the whole queue
	waiting  map[string]int // by the folder of a key, the number of waiting claims
}

// A question is about one claim. It has the indices of the answers; -1: none.
type question struct {
	w         *renewal
	move, own int   // own is the claim's name
	before    int   // the name that was made at rev
	rev       int64 // see before
	head      int   // the oldest name of the queue; or the whole queue, which then includes own
}

func newQuestions(waiting map[string]int) *questions {
	return &questions{txn: &pb.TxnRequest{}, listings: map[string]int{}, waiting: waiting}
}

func (q *questions) ask(o *pb.RequestOp) (at int) {
	q.txn.Success = append(q.txn.Success, o)
	return len(q.txn.Success) - 1
}

// askStateLocked asks about a claim, unless the next round must pick its lease again.
func (s *Store) askStateLocked(qs *questions, w *renewal) {
	c := w.claim
	switch {
	case c.held && w.want.seconds != w.class:
		// Another renewal has found meanwhile that the claim is held. On the waiters'
		// lease it would end before that renewal's caller stops relying on it.
		return
	case s.leases[w.want.seconds] != w.want:
		// Another lease has replaced this one meanwhile, and another renewal may have
		// moved the name there already. This lease ends before that renewal's caller
		// stops relying on the claim.
		return
	case c.downgrading && (c.lease != w.want || c.moving):
		w.err, w.decided = unavailable(errors.New("it is being downgraded")), true
		return
	}
	q := question{w: w, move: -1, own: -1, before: -1, head: -1}
	var before contender
	follows := false
	if !c.held && c.Exclusive() && !w.predecessorGone {
		before, follows = c.lock.beforeLocked(c)
		c.maybeDuplicate = c.maybeDuplicate || follows && !before.foreign && before.ID == c.ID
	}
	if c.lease != w.want || c.moving {
		c.mayBeOn(w.want)
		q.move = qs.ask(nested(&pb.TxnRequest{
			Compare: only(createRev(c.name, c.rev), modRev(c.name, c.mod)),
			Success: ops(put(c.name, c.value, w.want.id)),
			Failure: ops(get(c.name)),
		}))
	}
	switch dir := c.lock.dir; {
	case c.held && q.move >= 0: // the answer to the move suffices
	case c.held:
		q.own = qs.ask(get(c.name))
	case follows && !c.maybeDuplicate: // one name to read, at any length of the queue
		q.own, q.before, q.rev = qs.ask(get(c.name)), qs.ask(get(before.name)), before.rev
	case c.Exclusive() && !w.needsQueue && !c.maybeDuplicate && qs.waiting[dir] == 1:
		q.own, q.head = qs.ask(get(c.name)), qs.ask(oldest(dir))
	default: // in the whole queue, which all claims of the key share
		at, ok := qs.listings[dir]
		if !ok {
			at = qs.ask(listing(dir))
			qs.listings[dir] = at
		}
		q.own, q.head = at, at
	}
	qs.all = append(qs.all, q)
}

// takeStatesLocked takes the answers to questions, or the error of the transaction.
func (s *Store) takeStatesLocked(all []question, resp *pb.TxnResponse, err error) {
	queues := map[int][]contender{}
	for _, q := range all {
		if err != nil {
			s.notReadLocked(q, err)
			continue
		}
		if q.move >= 0 && !s.takeMoveLocked(q.w, answerOf(resp.Responses[q.move]), resp.Header.Revision) {
			continue
		}
		if q.own < 0 || !s.takeReadLocked(q.w, rangeOf(resp.Responses[q.own])) {
			continue
		}
		switch {
		case q.before >= 0:
			q.w.takePredecessorLocked(rangeOf(resp.Responses[q.before]), q.rev)
		case q.head >= 0:
			queue, ok := queues[q.head]
			if !ok {
				k := q.w.claim.lock
				queue = contenders(k.dir, k.key, rangeOf(resp.Responses[q.head]).Kvs)
				queues[q.head] = queue
			}
			q.w.takeQueueLocked(queue, q.head == q.own)
		}
	}
}

// notReadLocked decides about a claim whose question failed. A move may have taken
// effect.
func (s *Store) notReadLocked(q question, err error) {
	c := q.w.claim
	if q.move >= 0 && errors.Is(err, driver.ErrUnknown) {
		if c.nameIndex < 0 || c.lease == nil || !c.movedAway.IsZero() { // taken over, perhaps not yet
			c.unresolved = bootclock.Now().Add(unresolvedTime)
		}
		c.moving = true
		if c.lease == nil {
			c.lease = q.w.want
		}
	}
	if leaseGone(err) && !q.w.want.dead { // the next round uses another
		s.refreshLocked(q.w.want)
	}
	q.w.err, q.w.decided = err, true
}

// takeMoveLocked takes the answer to a move. It reports whether the claim is now on its
// right lease.
func (s *Store) takeMoveLocked(w *renewal, answer *pb.TxnResponse, rev int64) bool {
	c := w.claim
	if answer.Succeeded {
		// The answer to a later move may have come first.
		c.mod, c.lease, c.moving = max(c.mod, rev), w.want, false
		if !c.movedAway.IsZero() {
			// The other process may have renewed it until now, and relies on it for a
			// TTL.
			c.movedAway, c.keepUntil = time.Time{}, bootclock.Now().Add(time.Duration(w.class)*time.Second)
			s.refreshLocked(w.want)
		}
		w.takeHeldLocked()
		return true
	}
	kvs := rangeOf(answer.Responses[0]).Kvs
	if len(kvs) == 0 || kvs[0].CreateRevision != c.rev {
		w.state, w.decided = driver.Lost, true
		return false
	}
	if kvs[0].ModRevision < c.mod {
		return false // the answer to a later move came first
	}
	c.seenLocked(kvs[0])
	switch l := kvs[0].Lease; {
	case l == w.want.id && c.movedAway.IsZero(): // another renewal was faster
		c.lease, c.moving = w.want, false
		w.takeHeldLocked()
		return true
	case l != w.want.id && (c.lease == nil || l != c.lease.id):
		c.movedAway = bootclock.Now()
	}
	c.moving = true // an earlier move, or another process, has moved it
	return false
}

// takeReadLocked takes the reading of a claim on its right lease. It reports whether the
// claim waits, or has just been granted.
func (s *Store) takeReadLocked(w *renewal, answer *pb.RangeResponse) bool {
	c := w.claim
	var own *mvccpb.KeyValue
	for _, kv := range answer.Kvs {
		if kv.CreateRevision == c.rev && string(kv.Key) == c.name {
			own = kv
		}
	}
	switch {
	case own == nil:
		w.state, w.decided = driver.Lost, true
	case own.ModRevision > c.mod && own.Lease != c.lease.id: // another process has moved it
		c.seenLocked(own)
		c.moving, c.movedAway = true, bootclock.Now()
	case c.held:
		c.seenLocked(own)
		w.takeHeldLocked()
	default:
		return true
	}
	return false
}

// takePredecessorLocked takes the reading of the contender before an exclusive claim: the
// claim waits while that exists.
func (w *renewal) takePredecessorLocked(answer *pb.RangeResponse, rev int64) {
	if len(answer.Kvs) > 0 && answer.Kvs[0].CreateRevision == rev {
		w.state, w.decided = driver.Waiting, true
	} else {
		w.predecessorGone = true
	}
}

// takeQueueLocked takes the head of the queue, or all of it: a claim waits unless it is
// among the holders. It notes an older name of the claim.
func (w *renewal) takeQueueLocked(queue []contender, all bool) {
	c := w.claim
	if len(queue) == 0 {
		w.needsQueue = true // the oldest name below the folder belongs to another key
		return
	}
	n := holders(queue)
	older := queue[:n]
	if c.maybeDuplicate {
		older = queue
	}
	if i := find(older, c.ID); i >= 0 && older[i].rev < c.rev {
		c.maybeDuplicate, w.duplicate, w.decided = true, true, true
		return
	}
	if all { // a later repetition finds this one
		c.maybeDuplicate = false
	}
	if byAge(queue[n-1], contender{rev: c.rev, name: c.name}) < 0 {
		w.state, w.decided = driver.Waiting, true
		return
	}
	c.held, c.since = true, bootclock.Now()
	w.takeHeldLocked()
}

// takeHeldLocked decides about a held claim. One that was just granted is on the waiters'
// lease; the next round moves it.
func (w *renewal) takeHeldLocked() {
	if w.claim.held && w.want.seconds == w.class {
		w.state, w.decided = driver.Held, true
	}
}
