package pgstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/contended"
	"github.com/batonhq/baton/internal/rate"
)

var _ limits.Store = (*Store)(nil)

const (
	takeSQL        = `SELECT baton_take_1($1::bytea, $2::bigint[], $3::bigint, $4::int, $5::bigint, $6::bigint, $7::bigint, $8::bigint, $9::boolean)`
	takeManySQL    = `SELECT baton_take_many_1($1::bytea[], $2::bigint[])`
	takeAllSQL     = `SELECT baton_take_all_1($1::bytea[], $2::bigint[], $3::bigint[], $4::int, $5::bigint, $6::bigint, $7::bigint, $8::bigint, $9::text, $10::bigint, $11::boolean)`
	sweepLimitsSQL = `SELECT upto, removed FROM baton_sweep_limits_1($1::bytea, $2::int)`
)

// Codes of errors after which a transaction may be tried again.
const (
	notSerializable = "40001"
	deadlock        = "40P01"
)

// How a decision ended, as the functions say.
const (
	wasRefused = iota
	wasAllowed
	wasRepeated
	wasOutside // of the windows of a calendar
)

// limiter is what the store needs for rate limits.
type limiter struct {
	known   rate.Known
	sweep   limitSweeper
	batcher batcher

	// refused has the keys that refused the last request: then the next one locks
	// nothing to see whether they still do.
	refused contended.Keys
}

// Take implements limits.Store, in one round trip, by one function on the server, which
// locks the rows of the keys in order. A request that is refused, or only looks,
// changes nothing and does not wait for the disk.
//
// Nor does a request that is allowed: a crash of the server may forget the decisions of
// its last moments (three times wal_writer_delay, by default 0.6 s) with the IDs that
// they had, and a fail-over those that were not replicated. What these took may then be
// taken once more. The locks do not share this.
//
// Requests to one limit, without an ID, that would have to wait for a connection are
// decided together, in order, up to 64 in one statement. Requests to a log of more than
// a hundred, or to more than a hundred sub-windows, are not.
func (s *Store) Take(ctx context.Context, r limits.Request) (limits.Taken, error) {
	q, err := s.limits.known.NewRequest(r)
	if err != nil {
		return limits.Taken{}, err
	}
	looks := true
	for _, t := range q.Takes {
		looks = looks && t.Cost == 0
	}
	looks = (looks || s.limits.refused.Has(r.Takes[0].Key)) && r.Mode <= limits.TakeAnyway && r.ID == ""
	o := &operation{take: q, looks: looks}
	alone := func() (err error) {
		o.answer, err = s.takeAlone(ctx, q, looks)
		return err
	}
	if single(q) && brief(q.Limits[0]) {
		err = s.limits.batcher.share(ctx, o, alone)
	} else {
		err = alone()
	}
	if err != nil {
		return limits.Taken{}, err
	}
	a := o.answer
	how, now := a[0], a[1]
	if how == wasOutside {
		ahead, _ := q.Outside(now)
		return limits.Taken{}, &limits.ClockError{Store: traits.Store, Ahead: ahead}
	}
	states := make([]rate.State, len(r.Takes))
	if single(q) {
		states[0] = a[2:]
	} else {
		for i, rest := 0, a[4:]; i < len(states); i++ {
			states[i], rest = rest[1:1+rest[0]:1+rest[0]], rest[1+rest[0]:]
		}
		if how == wasRepeated {
			return q.Repeated(states, now, a[2], a[3]), nil
		}
	}
	d, changed := q.Decide(states, now)
	if d.OK != (how == wasAllowed) {
		return d, fmt.Errorf("postgres: the server and this program do not decide alike about limit %q: %w", r.Takes[0].Key, driver.ErrUnknown)
	}
	s.limits.refused.Set(r.Takes[0].Key, !d.OK)
	if changed {
		s.limits.sweep.changed(s, r.Takes)
	}
	return d, nil
}

// takeAlone asks the server to decide one request.
func (s *Store) takeAlone(ctx context.Context, q *rate.Request, looks bool) (answer []int64, err error) {
	sql, args := takeArgs(q, looks)
	for tries := 3; ; tries-- {
		err = s.row(ctx, sql, args, &answer)
		// Only row locks that a person takes by hand can be in the way, and nothing was done.
		if err == nil || tries == 1 || !isCode(err, deadlock) && !isCode(err, notSerializable) {
			return answer, err
		}
		// The pause lets a transaction that waits for what we had locked wake up before
		// we lock it again. Otherwise it would be in our way once more.
		select {
		case <-time.After(10*time.Millisecond + rand.N(20*time.Millisecond)):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// sendTakes asks the server to decide several requests in one statement, which does
// nothing if it fails. Then each goes alone, so that the failure of one does not
// concern the others.
func (s *Store) sendTakes(ctx context.Context, conn *pgxpool.Conn, all []*operation) error {
	keys, numbers := make([][]byte, len(all)), make([]int64, 0, widest*len(all))
	for i, o := range all {
		q := o.take
		keys[i] = []byte(q.Takes[0].Key)
		look := int64(0)
		if o.looks {
			look = 1
		}
		numbers = append(appendNumbers(numbers, q, q.Limits[0]),
			q.Takes[0].Cost, int64(q.Mode), q.MaxWait.Microseconds(), takenAt(q), q.Wait.Microseconds(), q.Now, look)
	}
	var a []int64
	err := s.askWith(ctx, conn, takeManySQL, []any{keys, numbers}, oneRow(&a))
	if errors.Is(err, driver.ErrUnavailable) && !errors.As(err, new(*SchemaError)) {
		return nil
	} else if err != nil {
		return err
	}
	for len(a) > 0 {
		o, end := all[a[0]-1], 4+a[1]
		o.served, o.answer = true, a[2:end:end] // Decide writes to the states
		a = a[end:]
	}
	return nil
}

// takenAt is when the cost that comes back was taken. Sums must not overflow.
func takenAt(q *rate.Request) int64 { return min(q.At, 1<<60) }

// single reports whether the shorter function will do.
func single(q *rate.Request) bool { return len(q.Takes) == 1 && q.ID == "" }

// brief reports whether states are so short that other requests do not wait long for a
// decision.
func brief(a rate.Algorithm) bool {
	w, ok := a.(*rate.Window)
	return !ok || w.Part == 0 || min(w.Limit, w.Life/w.Part) <= 100
}

// takeArgs are the statement that makes a request, and its arguments.
func takeArgs(q *rate.Request, looks bool) (sql string, args []any) {
	numbers := make([]int64, 0, wide*len(q.Takes))
	for _, l := range q.Limits {
		numbers = appendNumbers(numbers, q, l)
	}
	if single(q) {
		t := q.Takes[0]
		return takeSQL, []any{[]byte(t.Key), numbers, t.Cost, int32(q.Mode), q.MaxWait.Microseconds(), takenAt(q), q.Wait.Microseconds(), q.Now, looks}
	}
	keys, costs := make([][]byte, len(q.Takes)), make([]int64, len(q.Takes))
	for i, t := range q.Takes {
		keys[i], costs[i] = []byte(t.Key), t.Cost
	}
	return takeAllSQL, []any{
		keys, numbers, costs, int32(q.Mode), q.MaxWait.Microseconds(), takenAt(q), q.Wait.Microseconds(), q.Now,
		q.ID, q.Request.Keep.Microseconds(), looks,
	}
}

const (
	wide   = 11       // numbers of a limit
	widest = wide + 7 // and of a request to one
)

// appendNumbers appends what the functions want to know of a limit.
func appendNumbers(numbers []int64, q *rate.Request, a rate.Algorithm) []int64 {
	var n [wide]int64
	copy(n[:], a.Numbers())
	if b, ok := a.(*rate.Bucket); ok {
		if within := q.Within(); b.Queue && within < rate.AnyTurn {
			n[4] = 2 + within
		}
		each, rest := b.Period/b.Tokens, b.Period%b.Tokens
		copy(n[7:], []int64{each, rest, b.Burst*each + b.Burst*rest/b.Tokens, b.Burst * rest % b.Tokens})
	}
	return append(numbers, n[:]...)
}

// limitSweeper removes rows of limits that have expired. After sweepEvery changes it
// looks at a page, of more rows than can have been made meanwhile, so that they do not
// pile up.
type limitSweeper struct {
	changes atomic.Int64 // since the last page

	mu      sync.Mutex
	busy    bool // as the rest, guarded by mu
	closed  bool
	after   []byte // where the last page ended
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
}

const (
	sweepEvery = 128 // changes
	sweepLooks = 3   // rows, for each change
	maxSweep   = 20_000
)

func (w *limitSweeper) init() {
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.changes.Store(rand.Int64N(sweepEvery)) // programs that decide once sweep, too, now and then
}

// changed notes that a request has written to some keys.
func (w *limitSweeper) changed(s *Store, takes []limits.Take) {
	if w.changes.Add(int64(len(takes))) < sweepEvery {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.changes.Load()
	if w.busy || w.closed || n < sweepEvery {
		return
	}
	w.changes.Add(-n)
	w.busy = true
	if w.after == nil {
		w.after = []byte(takes[0].Key)
	}
	w.running.Go(func() { w.run(s, n) })
}

// run sweeps a page, and the next ones if there was much to remove.
func (w *limitSweeper) run(s *Store, changes int64) {
	size := min(sweepLooks*changes, maxSweep)
	for more := true; more; {
		ctx, cancel := context.WithTimeout(w.ctx, 10*time.Second)
		from, upto, removed := w.after, []byte{}, int64(0)
		err := s.row(ctx, sweepLimitsSQL, []any{w.after, int32(size)}, &upto, &removed)
		cancel()
		if err != nil {
			w.changes.Add(changes) // the next decision tries again
		} else if w.after = upto; upto == nil {
			w.after = []byte{}
		}
		// After the last page comes the first: this may be a program that decides once.
		more = err == nil && (removed > size/2 || upto == nil && len(from) > 0)
	}
	w.mu.Lock()
	w.busy = false
	w.mu.Unlock()
}

// close waits a moment for a page that is under way: a program that decides once
// is about to end.
func (w *limitSweeper) close(patience time.Duration) {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	timer := time.AfterFunc(patience, w.cancel)
	w.running.Wait()
	timer.Stop()
	w.cancel()
}
