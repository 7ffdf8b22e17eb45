package sqlstore

import (
	"context"
	"slices"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/batch"
	"github.com/batonhq/baton/internal/contended"
	"github.com/batonhq/baton/internal/rate"
)

// Limits decides requests to rate limits for a store. Package rate decides here, while a
// transaction has the rows of the keys locked. Requests of this process that wait
// meanwhile are decided together in the next transaction. Two transactions of this
// process are never about one key, and no request overtakes an earlier one that asks for
// one of its keys.
type Limits struct {
	store   string
	known   rate.Known
	batch   *batch.Batcher[*LimitOp]
	refused contended.Keys // keys that refused the last request: the next one first reads, without a lock, whether they still do
}

// LimitRows is what a dialect does with the rows of limits, on one connection at a time.
// Keys come sorted and once each. An error is what callers are told.
type LimitRows interface {
	// Read reads the rows of keys that are committed, and then the clock, without a lock. A
	// decision that it does not see was not answered before. It returns nil if the
	// connection may see what is outdated.
	Read(ctx context.Context, keys []string) (*LimitTx, error)

	// Change decides in one transaction. It locks the rows of the keys in order, and makes
	// those that are missing, so that two first requests for a key wait for each other. It
	// reads them, what is there of IDsOf(ops), and then the clock, has LimitTx.Take decide
	// each request, writes what that changed, and commits. refused says that the server
	// undid all because it refused a statement.
	Change(ctx context.Context, keys []string, ops []*LimitOp) (refused bool, err error)

	// Close is called last.
	Close()
}

// A LimitOp is a request that waits for a decision.
type LimitOp struct {
	batch.Item
	Request *rate.Request

	quiet bool // it may well change nothing
	taken limits.Taken
	err   error
}

// Answer is the decision, once there is one.
func (o *LimitOp) Answer() (limits.Taken, error) { return o.taken, o.err }

const (
	// limitKeys bounds the rows that one transaction locks, and limitNumbers the numbers
	// that it reads, so that short requests do not wait long for logs.
	limitKeys    = 200
	limitNumbers = 20_000
)

// NewLimits returns the Limits of a store of that name. begin waits for a connection. c says
// how many requests go together and how many transactions there are at a time.
func NewLimits(store string, c batch.Config[*LimitOp], begin func(context.Context) (LimitRows, error)) *Limits {
	l := &Limits{store: store}
	c.Begin = func(ctx context.Context) (func(context.Context, []*LimitOp), error) {
		rows, err := begin(ctx)
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context, ops []*LimitOp) {
			defer rows.Close()
			if len(ops) > 0 {
				decide(ctx, rows, ops)
			}
		}, nil
	}
	c.Direct, c.Yield = true, true
	c.Keys = func(o *LimitOp) []batch.Key {
		keys := make([]batch.Key, len(o.Request.Takes))
		for i, t := range o.Request.Takes {
			keys[i] = batch.Key{Name: t.Key, Rule: batch.Serial | batch.Order}
		}
		return keys
	}
	c.MaxKeys = limitKeys
	c.Size = func(o *LimitOp) (numbers int) {
		for _, a := range o.Request.Limits {
			numbers += rate.Longest(a)
		}
		return numbers
	}
	c.MaxSize = limitNumbers
	l.batch = batch.New(c)
	return l
}

// Take does what limits.Store says.
func (l *Limits) Take(ctx context.Context, t limits.Request) (limits.Taken, error) {
	r, err := l.known.NewRequest(t)
	if err != nil {
		return limits.Taken{}, err
	}
	o := &LimitOp{Item: batch.NewItem(), Request: r}
	looks := !slices.ContainsFunc(r.Takes, func(t limits.Take) bool { return t.Cost > 0 })
	first := r.Takes[0].Key
	o.quiet = r.ID == "" && r.Mode <= limits.TakeAnyway && (looks || l.refused.Has(first))
	if err := l.batch.Do(ctx, o); err != nil {
		return limits.Taken{}, err
	}
	if o.err != nil {
		return limits.Taken{}, o.err
	}
	if !looks {
		l.refused.Set(first, !o.taken.OK)
	}
	return o.taken, nil
}

// Close refuses what waits and what comes. Wait then waits for what is under way.
func (l *Limits) Close() { l.batch.Close() }

// Wait waits until no decision is under way.
func (l *Limits) Wait() { l.batch.Wait() }

// Waiting is how many requests wait, for tests.
func (l *Limits) Waiting() int { return l.batch.Waiting() }

// decide answers requests in one transaction, in order, or without one.
func decide(ctx context.Context, rows LimitRows, ops []*LimitOp) {
	keys := keysOf(ops)
	if !slices.ContainsFunc(ops, func(o *LimitOp) bool { return !o.quiet }) {
		t, err := rows.Read(ctx, keys)
		if err != nil {
			fail(ops, err)
			return
		}
		// A request that comes after one that changes something comes after it in the
		// transaction, too.
		for t != nil && len(ops) > 0 && !t.Take(ops[0]) {
			ops[0].Finish()
			ops = ops[1:]
		}
		if len(ops) == 0 {
			return
		}
	}
	refused, err := rows.Change(ctx, keys, ops)
	if refused && len(ops) > 1 { // the failure of one request does not concern the others
		for _, o := range ops {
			decide(ctx, rows, []*LimitOp{o})
			o.Finish()
		}
		return
	}
	if err != nil {
		fail(ops, err)
	}
}

func fail(ops []*LimitOp, err error) {
	for _, o := range ops {
		o.err = err
	}
}

// keysOf lists the keys of requests, sorted.
func keysOf(ops []*LimitOp) []string {
	var keys []string
	for _, o := range ops {
		for _, t := range o.Request.Takes {
			keys = append(keys, t.Key)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// LimitTx is the rows of one transaction as they are with what it has changed.
type LimitTx struct {
	Store   string
	Clock   int64 // microseconds since 1970, read after the rows were locked
	Rows    map[string]LimitRow
	IDs     map[LimitID]LimitMemory
	Changed int // rows
}

// NewLimitTx returns a LimitTx without rows.
func NewLimitTx(store string) *LimitTx {
	return &LimitTx{Store: store, Rows: make(map[string]LimitRow), IDs: make(map[LimitID]LimitMemory)}
}

// LimitRow is what is kept of a key. A row that a transaction has only made to lock it has
// no State.
type LimitRow struct {
	State   rate.State
	Ends    int64
	Changed bool
}

// LimitID is a request that was allowed, by its first key and ID.
type LimitID struct{ Key, ID string }

// LimitMemory is what is kept of such a request.
type LimitMemory struct {
	At, Wait, Ends int64
	Changed        bool
}

// IDsOf lists the IDs of requests that have one.
func IDsOf(ops []*LimitOp) (ids []LimitID) {
	for _, o := range ops {
		if r := o.Request; r.ID != "" {
			ids = append(ids, LimitID{r.Takes[0].Key, r.ID})
		}
	}
	return ids
}

// Take decides one request and reports whether that changes something.
func (t *LimitTx) Take(o *LimitOp) (changed bool) {
	r := o.Request
	states := make([]rate.State, len(r.Takes))
	for i, x := range r.Takes {
		if row := t.Rows[x.Key]; row.Ends > t.Clock {
			states[i] = slices.Clone(row.State) // a decision overwrites it
		}
	}
	id := LimitID{r.Takes[0].Key, r.ID}
	var past *rate.Past
	if m, ok := t.IDs[id]; ok && r.ID != "" && m.Ends > t.Clock {
		past = &rate.Past{At: m.At, Wait: m.Wait}
	}
	if o.taken, changed, o.err = r.Answer(t.Store, t.Clock, states, past); !changed {
		return false
	}
	for i, x := range r.Takes {
		t.Rows[x.Key] = LimitRow{State: states[i], Ends: t.Clock + r.Keep(o.taken.Limits[i].Reset).Microseconds(), Changed: true}
	}
	t.Changed += len(r.Takes)
	if r.ID != "" && o.taken.OK {
		t.IDs[id] = LimitMemory{o.taken.At, o.taken.Wait.Microseconds(), t.Clock + r.Keep(r.Request.Keep).Microseconds() + 1, true}
	}
	return true
}
