package page

import (
	"cmp"
	"context"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
)

const (
	// soonest is the shortest time between two reads of a list, or two inspections.
	soonest = 500 * time.Millisecond

	// listShare: lists are read for at most one part in so many of the time.
	listShare = 10

	// maxRows is the largest number of rows in a list. maxInspected is the largest number
	// of locks that are inspected together, of all screens.
	maxRows, maxInspected = 50_000, 500

	// inspectors is how many locks are inspected in parallel.
	inspectors = 8

	// between is the shortest time between two inspections after events.
	between = 50 * time.Millisecond

	// linger is how long a list without viewers is kept: a browser that scrolls leaves,
	// and comes back at once.
	linger = 3 * time.Second
)

// A source reads all rows of a kind that begin with a prefix.
type source struct {
	read func(ctx context.Context, prefix string) iter.Seq2[*row, error]
}

// A poller reads the store for all viewers together, while there are any. Its durations
// are times on the clock of the page, which begins at start.
type poller struct {
	start   time.Time // when the clock of the page began
	locks   *baton.Locker
	sources map[string]source

	mu        sync.Mutex
	viewers   map[*viewer]struct{}
	lists     map[listID]*list
	seen      map[string]*row // locks on screens, as last inspected; also free ones
	failed    error           // the error of the last inspections
	rest      time.Duration   // no list is read earlier
	inspectAt time.Duration   // when the locks on screens are due
	urgentAt  time.Duration   // when locks with events may be inspected
	stop      context.CancelFunc
	ended     sync.WaitGroup

	listSoon, inspectSoon chan struct{} // of capacity 1

	watched atomic.Bool
	toldMu  sync.Mutex                 // locked after mu, if both are
	told    map[string]struct{}        // locks with events
	wakes   map[chan struct{}]struct{} // of the viewers
}

type listID struct{ kind, prefix string }

// A list is the content of the store of one kind below a prefix. poller.mu guards it.
type list struct {
	listID
	ctx     context.Context
	cancel  context.CancelFunc
	viewers int
	left    time.Duration // when the last viewer went
	due     time.Duration

	rows   map[string]*row // nil until the first read
	more   bool            // the store has more than maxRows
	at     time.Duration   // when the last read began
	took   time.Duration
	err    error
	sorted map[string][]*row // by order: the present rows, sorted

	reading bool
	soFar   atomic.Int64
	fresh   map[string]*row // inspected since the present read began; nil for a free lock
}

// A viewer is a browser that shows a part of a list.
type viewer struct {
	list listID        // without a kind: no list
	keys []string      // the locks on its screen; guarded by poller.mu
	wake chan struct{} // of capacity 1
}

func newPoller(cfg Config) *poller {
	p := &poller{
		start: time.Now(), locks: cfg.Locks,
		viewers: map[*viewer]struct{}{}, lists: map[listID]*list{}, seen: map[string]*row{}, told: map[string]struct{}{}, wakes: map[chan struct{}]struct{}{},
		listSoon: make(chan struct{}, 1), inspectSoon: make(chan struct{}, 1),
	}
	p.sources = map[string]source{kindLocks: {func(ctx context.Context, prefix string) iter.Seq2[*row, error] {
		return rowsOf(p.now, cfg.Locks.List(ctx, prefix), lockRow)
	}}}
	if cfg.Limits != nil {
		p.sources[kindLimits] = source{func(ctx context.Context, prefix string) iter.Seq2[*row, error] {
			return rowsOf(p.now, cfg.Limits.ListStates(ctx, prefix, ""), limitRow)
		}}
	}
	if cfg.Once != nil {
		p.sources[kindOnce] = source{func(ctx context.Context, prefix string) iter.Seq2[*row, error] {
			return rowsOf(p.now, cfg.Once.List(ctx, prefix), recordRow)
		}}
	}
	cfg.Recent.follow(p)
	return p
}

// rowsOf makes rows of a store's list. The times of a row count from its arrival, so they
// may be late by the delay of the answer.
func rowsOf[T any](now func() time.Duration, all iter.Seq2[T, error], of func(T, time.Duration) *row) iter.Seq2[*row, error] {
	return func(yield func(*row, error) bool) {
		for one, err := range all {
			if err != nil {
				yield(nil, err)
				return
			}
			if !yield(of(one, now()), nil) {
				return
			}
		}
	}
}

func (p *poller) now() time.Duration { return time.Since(p.start) }

// join adds a viewer. The poller wakes it when there may be news.
func (p *poller) join(v *viewer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if v.list.kind != "" {
		l := p.lists[v.list]
		if l == nil {
			l = &list{listID: v.list}
			l.ctx, l.cancel = context.WithCancel(context.Background())
			p.lists[v.list] = l
		}
		l.viewers++
		signal(p.listSoon)
	}
	p.viewers[v] = struct{}{}
	p.toldMu.Lock()
	p.wakes[v.wake] = struct{}{}
	p.toldMu.Unlock()
	p.watched.Store(true)
	if p.stop == nil {
		ctx, stop := context.WithCancel(context.Background())
		p.stop = stop
		p.ended.Add(2)
		go func() { defer p.ended.Done(); p.keepReading(ctx) }()
		go func() { defer p.ended.Done(); p.keepInspecting(ctx) }()
	}
}

// leave removes a viewer. Some time after the last one the poller stops.
func (p *poller) leave(v *viewer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.viewers, v)
	p.toldMu.Lock()
	delete(p.wakes, v.wake)
	p.toldMu.Unlock()
	if l := p.lists[v.list]; l != nil {
		if l.viewers--; l.viewers == 0 {
			l.left = p.now()
		}
	}
	time.AfterFunc(linger, p.sweep)
}

// sweep drops the lists without viewers, and then stops the poller.
func (p *poller) sweep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, l := range p.lists {
		if l.viewers == 0 && p.now()-l.left >= linger {
			l.cancel()
			delete(p.lists, id)
		}
	}
	if len(p.viewers) == 0 && len(p.lists) == 0 {
		p.halt()
	}
}

func (p *poller) halt() {
	p.watched.Store(false)
	if p.stop != nil {
		p.stop()
		p.stop = nil
	}
	clear(p.seen)
	p.failed = nil
}

func (p *poller) close() {
	p.mu.Lock()
	for id, l := range p.lists {
		l.cancel()
		delete(p.lists, id)
	}
	p.halt()
	p.mu.Unlock()
	p.ended.Wait()
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// wakeAll wakes all viewers. It does not block.
func (p *poller) wakeAll() {
	if !p.watched.Load() {
		return
	}
	p.toldMu.Lock()
	defer p.toldMu.Unlock()
	for wake := range p.wakes {
		signal(wake)
	}
}

// wait waits for d, soon or the end of ctx. It returns false if ctx ended.
func wait(ctx context.Context, soon <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-soon:
	case <-t.C:
	}
	return true
}

// keepReading reads the lists with viewers, one at a time.
func (p *poller) keepReading(ctx context.Context) {
	for ctx.Err() == nil {
		if l, pause := p.dueList(); l != nil {
			p.readList(l)
		} else if !wait(ctx, p.listSoon, pause) {
			return
		}
	}
}

// dueList returns a list to read now, or nil and how long no list is due.
func (p *poller) dueList() (due *list, pause time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.lists {
		if l.viewers > 0 && (due == nil || l.due < due.due) {
			due = l
		}
	}
	if due == nil {
		return nil, time.Minute // join signals listSoon
	}
	if at := max(p.rest, due.due); at > p.now() {
		return nil, at - p.now()
	}
	due.reading = true
	due.soFar.Store(0)
	due.fresh = map[string]*row{}
	return due, 0
}

func (p *poller) readList(l *list) {
	began := p.now()
	rows, more := make(map[string]*row), false
	var failed error
	for r, err := range p.sources[l.kind].read(l.ctx, l.prefix) {
		if err != nil {
			failed = err
			break
		}
		if len(rows) == maxRows {
			more = true
			break
		}
		rows[r.key] = r
		l.soFar.Add(1)
	}
	took := p.now() - began

	p.mu.Lock()
	defer p.mu.Unlock()
	p.rest = began + listShare*took
	l.due = max(p.rest, began+soonest)
	l.reading, l.err = false, failed
	if failed == nil {
		for key, r := range l.fresh {
			if r == nil {
				delete(rows, key)
			} else {
				rows[key] = r
			}
		}
		for key, r := range rows {
			if before := l.rows[key]; before != nil && before != r {
				rows[key] = steady(r, before)
			}
		}
		l.rows, l.more, l.at, l.took, l.sorted = rows, more, began, took, nil
	}
	l.fresh = nil
	p.wakeAll()
}

// touch notes an event of a lock. It does not block.
func (p *poller) touch(key string) {
	if !p.watched.Load() {
		return
	}
	p.toldMu.Lock()
	if len(p.told) < maxInspected {
		p.told[key] = struct{}{}
	}
	p.toldMu.Unlock()
	signal(p.inspectSoon)
}

// keepInspecting inspects the locks on screens, and those with events.
func (p *poller) keepInspecting(ctx context.Context) {
	for ctx.Err() == nil {
		if keys, all, pause := p.dueLocks(); len(keys) > 0 {
			p.inspect(ctx, keys, all)
		} else if !wait(ctx, p.inspectSoon, pause) {
			return
		}
	}
}

// dueLocks returns the locks to inspect now, or how long none is due. all says that those
// on screens are among them.
func (p *poller) dueLocks() (keys []string, all bool, pause time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	due := map[string]struct{}{}
	if now >= p.urgentAt {
		p.toldMu.Lock()
		for key := range p.told {
			if p.shows(key) {
				due[key] = struct{}{}
			}
		}
		clear(p.told)
		p.toldMu.Unlock()
	}
	if all = now >= p.inspectAt; all {
		onScreen := map[string]struct{}{}
		for v := range p.viewers {
			for _, key := range v.keys {
				if len(onScreen) < maxInspected {
					onScreen[key], due[key] = struct{}{}, struct{}{}
				}
			}
		}
		for key := range p.seen {
			if _, still := onScreen[key]; !still {
				delete(p.seen, key)
			}
		}
		if len(due) == 0 {
			p.inspectAt = now + soonest
		}
	}
	for key := range due {
		keys = append(keys, key)
	}
	pause = p.inspectAt - now
	if p.urgentAt > now { // else the next event signals inspectSoon
		pause = min(pause, p.urgentAt-now)
	}
	return keys, all, max(pause, time.Millisecond)
}

// shows reports whether a lock is in a list that is kept, or on a screen. mu is locked.
func (p *poller) shows(key string) bool {
	for id := range p.lists {
		if id.kind == kindLocks && strings.HasPrefix(key, id.prefix) {
			return true
		}
	}
	return p.seen[key] != nil
}

func (p *poller) inspect(ctx context.Context, keys []string, all bool) {
	began := p.now()
	next := make(chan string, len(keys))
	for _, key := range keys {
		next <- key
	}
	close(next)
	var failed error
	var once sync.Once
	var workers sync.WaitGroup
	for range min(inspectors, len(keys)) {
		workers.Go(func() {
			for key := range next {
				at := p.now()
				info, err := p.locks.Inspect(ctx, key)
				if err != nil {
					once.Do(func() { failed = err })
					return
				}
				p.put(lockRow(info, at))
			}
		})
	}
	workers.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	took := now - began
	p.urgentAt = now + max(between, took)
	if all { // for a tenth of the time, or every second if that is more often, but at most half of the time
		p.inspectAt = began + max(soonest, min(listShare*took, time.Second), 2*took)
	}
	if ctx.Err() == nil {
		p.failed = failed
	}
	p.wakeAll()
}

// put notes the present state of a lock.
func (p *poller) put(r *row) {
	free := len(r.lock.Holders) == 0 && len(r.lock.Waiters) == 0
	p.mu.Lock()
	defer p.mu.Unlock()
	if before := p.seen[r.key]; before != nil {
		if before.asked > r.asked {
			return
		}
		r = steady(r, before)
	}
	for v := range p.viewers {
		if slices.Contains(v.keys, r.key) {
			p.seen[r.key] = r
		}
	}
	for id, l := range p.lists {
		if id.kind != kindLocks || !strings.HasPrefix(r.key, id.prefix) {
			continue
		}
		if l.fresh != nil {
			l.fresh[r.key] = r
			if free {
				l.fresh[r.key] = nil
			}
		}
		before := l.rows[r.key]
		switch {
		case l.rows == nil || before == r || before != nil && before.asked > r.asked:
		case free:
			delete(l.rows, r.key)
			l.sorted = nil
		case before != nil || len(l.rows) < maxRows:
			if before == nil {
				l.rows[r.key] = r
				l.sorted = nil
			} else if one := steady(r, before); one != before {
				l.rows[r.key] = one
				l.sorted = nil
			}
		}
	}
}

// sort returns the rows of a list in an order. mu is locked. The caller must not change
// the result.
func (l *list) sort(order string) []*row {
	if rows, ok := l.sorted[order]; ok {
		return rows
	}
	rows := make([]*row, 0, len(l.rows))
	rank := slices.Index(orders[l.kind], order)
	if order == onlyWaiting {
		rank = 0
	}
	for _, r := range l.rows {
		r.order = 0
		if rank >= 0 {
			r.order = r.rank[rank]
		}
		if order != onlyWaiting || r.order > 0 {
			rows = append(rows, r)
		}
	}
	slices.SortFunc(rows, func(a, b *row) int {
		if a.order != b.order {
			return cmp.Compare(b.order, a.order)
		}
		return strings.Compare(a.key, b.key)
	})
	if l.sorted == nil {
		l.sorted = map[string][]*row{}
	}
	l.sorted[order] = rows
	return rows
}

// onlyWaiting is the order by waiters, without locks that have none.
const onlyWaiting = "only waiting"

// detail returns the last state of a lock, or nil before its first inspection. mu is
// locked.
func (p *poller) detail(key string) *row {
	if r := p.seen[key]; r != nil {
		return r
	}
	for id, l := range p.lists {
		if r := l.rows[key]; id.kind == kindLocks && r != nil {
			return r
		}
	}
	return nil
}

// requests returns the reasons of the known requests to release key. mu is locked.
func (p *poller) requests(key string) (reasons []string) {
	if r := p.detail(baton.AskPrefix + key); r != nil {
		for _, h := range r.lock.Holders {
			reasons = append(reasons, driver.Printable(h.Owner))
		}
	}
	return reasons
}
