package ratelimit

import (
	"container/list"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/batonhq/baton/driver/limits"
)

const (
	// lookAhead is how long before its time a turn is taken from the store. A waiter that
	// leaves blocks others for no longer than that.
	lookAhead = 100 * time.Millisecond

	// askAhead is how long before its time a turn is asked for. The difference to
	// lookAhead is for distant processes, which cannot ask at the very moment of a turn.
	askAhead = lookAhead / 2

	abreast   = 64               // concurrent requests for one key
	askWithin = 10 * time.Second // for the store's answer to each, even if its waiter leaves
)

// queues are the local queues of a Limiter: the waiting goroutines of this process, by
// key, or all in one if all limits count ForAll. A queue exists as long as it has a
// waiter or a request under way.
type queues struct {
	mu  sync.Mutex
	all map[string]*queue
}

func (qs *queues) busy() bool {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	return len(qs.all) > 0
}

// queue is a local queue, first come, first served. A turn belongs to no waiter before
// its time: then the first waiter with the same cost gets it. A waiter that leaves leaves
// its turn to later ones; if there is none, the queue gives the latest turn back to the
// store.
//
// All fields are guarded by queues.mu.
type queue struct {
	l    *Limiter
	name string // in queues.all

	waiting  list.List     // of *waiter: without a turn or a request
	promised list.List     // of *waiter: with as many turns and requests of their costs
	turns    []turn        // taken and still to come, in order
	asks     []*ask        // under way, in the order of sending
	surplus  map[int64]int // requests under way without a waiter, by cost

	// The store's last answer, updated with later requests; nil if unknown.
	standing  []standing
	told      Result
	seen      int            // the number of the answered request
	sent      int            // the number of the last request
	failed    bool           // the last request had no answer
	pause     time.Time      // until then no request is sent that costs
	pauseCost int64          // this much or more
	back      []*Reservation // turns to give back
	returning bool
	timer     *time.Timer
}

type waiter struct {
	key     string
	n       int64
	ctx     context.Context
	until   time.Time // when it stops waiting; zero: never
	turning bool      // it waits only for the turns of queues: WaitWithin
	done    chan outcome

	at       *list.Element // of waiting or promised
	promised bool
	ended    bool // done has the outcome, or the waiter has left
}

type outcome struct {
	r    Result
	err  error
	turn *turn // of an OK
}

// turn is a turn that the store has promised.
type turn struct {
	res *Reservation
	n   int64
	at  time.Time
	got time.Time // when the promise came
}

type ask struct {
	number int
	n      int64
	w      *waiter // the waiter at the time of asking
	ahead  time.Duration
}

// when is when to ask for a turn for n. If known is false, the next answer tells.
func (q *queue) when(n int64, now time.Time) (at time.Time, known bool) {
	if n >= q.pauseCost {
		at = q.pause
	}
	if q.standing == nil {
		return at, q.failed || len(q.asks) == 0
	}
	for i := range q.standing {
		s := &q.standing[i]
		cost := s.limit.cost(n)
		switch {
		case s.limit.shadow, s.limit.blocked: // the store refuses these at once
		case s.bucket():
			at = later(at, s.turn(cost, 0, now).Add(-askAhead))
		case s.left >= cost:
		case len(q.asks) > 0:
			return at, false
		default:
			at = later(at, s.more)
		}
	}
	return at, true
}

// enter adds a waiter, unless it is known to wait in vain.
func (q *queue) enter(w *waiter) (Result, bool) {
	if r, no := q.inVain(w, true); no {
		q.drop()
		return r, true
	}
	w.at = q.waiting.PushBack(w)
	q.advance()
	return Result{}, false
}

// inVain reports whether a waiter waits in vain, and returns its refusal. A waiter with a
// deadline does if even the very next turn comes too late: earlier waiters may leave. For
// a waiter with turning all earlier waiters count, as in the limit's queue.
func (q *queue) inVain(w *waiter, entering bool) (Result, bool) {
	now := time.Now()
	patience := longestTurn
	if !w.until.IsZero() {
		patience = max(w.until.Sub(now), 0)
	}
	r := q.told
	r.OK, r.Key, r.Cost, r.Wait, r.RetryAfter = false, w.key, w.n, 0, 0
	if q.standing == nil {
		r.RetryAfter = q.pause.Sub(now)
		return r, w.n >= q.pauseCost && r.RetryAfter > 0 && (r.RetryAfter > patience || w.turning)
	}
	r.limits = append([]LimitResult(nil), q.told.Limits()...)
	no := false
	for i := range q.standing {
		s, x := &q.standing[i], &r.limits[i]
		if x.Shadow {
			continue
		}
		cost, ahead := s.limit.cost(w.n), int64(0)
		if w.turning && entering {
			for e := q.waiting.Front(); e != nil; e = e.Next() {
				ahead += s.limit.cost(e.Value.(*waiter).n)
			}
		}
		wait, late := s.turn(cost, ahead, now).Sub(now), false
		switch {
		case s.queue():
			over := s.over(cost, ahead, now)
			late = wait > patience || w.turning && entering && over > 0
			wait = max(wait-patience, over)
		case w.turning && entering:
			late = wait > 0
		default:
			late = wait > patience
		}
		x.OK, x.RetryAfter, x.Wait = wait <= 0, max(wait, 0), 0
		r.RetryAfter = max(r.RetryAfter, x.RetryAfter)
		no = no || late
	}
	r.tell()
	return r, no
}

// advance delivers turns that have come, and asks for turns that come soon.
func (q *queue) advance() {
	now := time.Now()
	for len(q.turns) > 0 && !q.turns[0].at.After(now) {
		t := q.turns[0]
		q.turns = q.turns[1:]
		q.deliver(t, now)
	}
	var wake time.Time
	if len(q.turns) > 0 {
		wake = q.turns[0].at
	}
	for e := q.waiting.Front(); e != nil; e = q.waiting.Front() {
		w := e.Value.(*waiter)
		if q.surplus[w.n] > 0 {
			q.surplus[w.n]--
			q.promise(w)
			continue
		}
		at, known := q.when(w.n, now)
		if !known || q.returning || len(q.asks) >= abreast {
			break // the next answer continues here
		}
		if at.After(now) {
			if wake.IsZero() || at.Before(wake) {
				wake = at
			}
			break
		}
		q.ask(w, now)
	}
	switch {
	case q.timer != nil:
		q.timer.Stop()
		if !wake.IsZero() {
			q.timer.Reset(wake.Sub(now))
		}
	case !wake.IsZero():
		q.timer = time.AfterFunc(wake.Sub(now), q.woken)
	}
	q.drop()
}

func (q *queue) woken() {
	q.l.queues.mu.Lock()
	defer q.l.queues.mu.Unlock()
	q.advance()
}

// drop forgets an empty queue.
func (q *queue) drop() {
	if q.waiting.Len()+q.promised.Len()+len(q.turns)+len(q.asks) == 0 && !q.returning && q.l.queues.all[q.name] == q {
		delete(q.l.queues.all, q.name)
	}
}

func (q *queue) promise(w *waiter) {
	q.waiting.Remove(w.at)
	w.at, w.promised = q.promised.PushBack(w), true
}

// unpromise moves a waiter back to the front of waiting.
func (q *queue) unpromise(w *waiter) {
	q.promised.Remove(w.at)
	w.at, w.promised = q.waiting.PushFront(w), false
}

// first is the first waiter of a list that wants n.
func first(of *list.List, n int64) *waiter {
	for e := of.Front(); e != nil; e = e.Next() {
		if w := e.Value.(*waiter); w.n == n {
			return w
		}
	}
	return nil
}

// last is the last waiter that was promised n.
func (q *queue) last(n int64) *waiter {
	for e := q.promised.Back(); e != nil; e = e.Prev() {
		if w := e.Value.(*waiter); w.n == n {
			return w
		}
	}
	return nil
}

func (q *queue) end(w *waiter, o outcome) {
	if w.promised {
		q.promised.Remove(w.at)
	} else {
		q.waiting.Remove(w.at)
	}
	w.ended = true
	w.done <- o
}

// deliver gives a turn that has come to the first waiter with the same cost.
func (q *queue) deliver(t turn, now time.Time) {
	w := first(&q.promised, t.n)
	if w == nil {
		q.giveBack(t)
		return
	}
	r := q.present(t, now)
	r.Key = w.key
	q.end(w, outcome{r: r, turn: &t})
}

// present is the decision at the time of its turn: its queue is then the waiters here.
func (q *queue) present(t turn, now time.Time) Result {
	r, age := t.res.Result, now.Sub(t.got)
	r.Wait, r.ResetAfter = 0, max(r.ResetAfter-age, 0)
	r.limits = append([]LimitResult(nil), r.Limits()...)
	for i := range r.limits {
		x := &r.limits[i]
		x.Wait, x.NextAfter, x.ResetAfter = 0, max(x.NextAfter-age, 0), max(x.ResetAfter-age, 0)
		if limit := t.res.limits[i]; limit.queues() {
			for e := q.waiting.Front(); e != nil && x.Remaining > 0; e = e.Next() {
				x.Remaining = max(x.Remaining-limit.cost(e.Value.(*waiter).n), 0)
			}
			x.Near = !r.By.Fallback() && limit.near(x.Limit, x.Remaining)
		}
	}
	r.tell()
	return r
}

// leave removes a waiter whose context has ended, or that waits in vain.
func (q *queue) leave(w *waiter) (Result, error) {
	mu := &q.l.queues.mu
	mu.Lock()
	defer mu.Unlock()
	q.advance() // its turn may have just come
	err := w.ctx.Err()
	if !w.ended {
		var r Result
		if err == nil {
			r, _ = q.inVain(w, false)
			r.RetryAfter = max(r.RetryAfter, time.Microsecond)
		}
		if w.ended = true; w.promised {
			q.promised.Remove(w.at)
			q.cover(w.n)
		} else {
			q.waiting.Remove(w.at)
		}
		q.advance()
		if err == nil {
			return r, &RefusedError{r}
		}
		return Result{}, wrap("wait for", w.key, context.Cause(w.ctx))
	}
	o := <-w.done
	if o.turn == nil || err == nil || err == context.DeadlineExceeded {
		return o.r, o.err
	}
	q.hold(*o.turn)
	q.cover(w.n)
	q.advance()
	return Result{}, wrap("wait for", w.key, context.Cause(w.ctx))
}

// cover gives a turn or request of n, whose waiter has left, to the next waiter. If there
// is none, the latest turn goes back to the store.
func (q *queue) cover(n int64) {
	if w := first(&q.waiting, n); w != nil {
		q.promise(w)
		return
	}
	underWay := -q.surplus[n]
	for _, a := range q.asks {
		if a.n == n {
			underWay++
		}
	}
	if underWay <= 0 { // requests under way get later turns
		q.giveLatest(n)
		return
	}
	if q.surplus == nil {
		q.surplus = make(map[int64]int)
	}
	q.surplus[n]++
}

// giveLatest gives back the latest turn of n.
func (q *queue) giveLatest(n int64) {
	for i := len(q.turns) - 1; i >= 0; i-- {
		if t := q.turns[i]; t.n == n {
			q.turns = append(q.turns[:i], q.turns[i+1:]...)
			q.giveBack(t)
			return
		}
	}
}

// hold inserts a turn in the order of time.
func (q *queue) hold(t turn) {
	i := len(q.turns)
	for i > 0 && q.turns[i-1].at.After(t.at) {
		i--
	}
	q.turns = append(q.turns, turn{})
	copy(q.turns[i+1:], q.turns[i:])
	q.turns[i] = t
}

// giveBack returns a turn without a waiter. Until then the queue sends no request: the
// store does not take back a turn before a later promise.
func (q *queue) giveBack(t turn) {
	q.back = append(q.back, t.res)
	if !q.returning {
		q.returning = true
		go q.giveAllBack()
	}
}

func (q *queue) giveAllBack() {
	mu := &q.l.queues.mu
	mu.Lock()
	defer mu.Unlock()
	for len(q.back) > 0 {
		res := q.back[0]
		q.back = q.back[1:]
		mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		err := res.Cancel(ctx)
		cancel()
		mu.Lock()
		if err != nil { // it counts as consumed
			q.back = nil
		}
	}
	q.returning, q.standing, q.pause = false, nil, time.Time{} // the store's state has changed
	q.advance()
}

func (q *queue) ask(w *waiter, now time.Time) {
	q.promise(w)
	q.sent++
	a := &ask{number: q.sent, n: w.n, w: w, ahead: lookAhead}
	if !w.until.IsZero() {
		a.ahead = min(a.ahead, max(w.until.Sub(now), 0))
	}
	q.asks = append(q.asks, a)
	for i := range q.standing {
		q.standing[i].take(a.n, now)
	}
	go func() {
		within := max(askWithin, q.l.fall.after+time.Second) // the policy for a store that fails comes first
		ctx, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), within)
		defer cancel()
		sent := time.Now()
		res, err := q.l.reserve(ctx, w.key, a.n, a.ahead, max(a.ahead, 1))
		if err != nil && ctx.Err() != nil { // ctx is not the waiter's
			err = fmt.Errorf("ratelimit: wait for %q: the store has not answered within %v: %w", w.key, within, ErrUnknown)
		}
		q.l.queues.mu.Lock()
		defer q.l.queues.mu.Unlock()
		q.answer(a, res, err, sent)
		q.advance()
	}()
}

func (q *queue) answer(a *ask, res *Reservation, err error, sent time.Time) {
	for i, other := range q.asks {
		if other == a {
			q.asks = append(q.asks[:i], q.asks[i+1:]...)
			break
		}
	}
	if err == nil && a.number > q.seen {
		q.seen = a.number
		q.know(res, a.n, a.ahead, sent)
	}
	if err == nil && res.Result.OK {
		now := time.Now()
		q.hold(turn{res: res, n: a.n, at: now.Add(res.Result.Wait), got: now})
		if q.surplus[a.n] > 0 {
			q.surplus[a.n]--
			q.giveLatest(a.n)
		}
		return
	}
	if q.failed = err != nil; q.failed {
		q.standing, q.pause = nil, time.Time{}
	}
	w := a.w
	switch {
	case q.surplus[a.n] > 0: // without a waiter
		q.surplus[a.n]--
	case err != nil || res.Result.RetryAfter == Never || a.ahead < lookAhead && !w.ended && w.promised:
		if w.ended || !w.promised {
			w = first(&q.promised, a.n)
		}
		if err != nil {
			q.end(w, outcome{err: err})
		} else {
			r, _ := q.inVain(w, false)
			if res.Result.RetryAfter == Never || r.RetryAfter <= 0 {
				r = res.Result
			}
			q.end(w, outcome{r: r, err: &RefusedError{r}})
		}
	default:
		q.unpromise(q.last(a.n))
	}
	if err == nil {
		q.refuse(res)
	}
}

// refuse ends the wait of waiters for which a refusal means that they wait in vain.
func (q *queue) refuse(res *Reservation) {
	other := refusedByOther(res)
	var next *list.Element
	for e := q.waiting.Front(); e != nil; e = next {
		next = e.Next()
		w := e.Value.(*waiter)
		if w.until.IsZero() {
			continue
		}
		r, no := q.inVain(w, false)
		if no || other && w.turning {
			q.end(w, outcome{r: r, err: &RefusedError{r}})
		}
	}
}

// refusedByOther reports whether another limit than a queue has refused. A waiter with
// turning does not wait for that.
func refusedByOther(res *Reservation) bool {
	for i, x := range res.Result.Limits() {
		if !x.OK && !x.Shadow && (res.limits[i].rule.Algorithm != limits.LeakyBucket || x.RetryAfter == Never) {
			return true
		}
	}
	return res.Result.By.Fallback()
}

// know keeps the store's answer about n, for a turn within ahead. Times count from the
// sending of the request, so they are early rather than late: the answer to an early
// request tells how long to wait.
func (q *queue) know(res *Reservation, n int64, ahead time.Duration, sent time.Time) {
	r := res.Result
	q.told, q.standing, q.failed, q.pause, q.pauseCost = r, nil, false, time.Time{}, n
	if !q.l.asked(r.Key, res.limits) {
		return // the limits changed meanwhile: the waiters ask again
	}
	if r.By.Fallback() {
		if !r.OK && r.RetryAfter != Never {
			q.pause = time.Now().Add(r.RetryAfter)
		}
		return
	}
	q.standing = make([]standing, len(res.limits))
	for i, x := range r.Limits() {
		s := &q.standing[i]
		*s = standing{limit: res.limits[i], full: sent.Add(x.ResetAfter), left: x.Remaining, more: sent.Add(x.NextAfter)}
		if !x.OK && !x.Shadow && x.RetryAfter != Never {
			pause := sent.Add(x.RetryAfter)
			switch {
			case s.queue():
				pause = pause.Add(ahead - askAhead)
			case s.bucket():
				pause = pause.Add(-askAhead)
			}
			q.pause = later(q.pause, pause)
		}
	}
	for _, a := range q.asks {
		if a.number > q.seen {
			for i := range q.standing {
				q.standing[i].take(a.n, sent)
			}
		}
	}
}
