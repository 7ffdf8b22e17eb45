package sqlstore

import (
	"context"
	"slices"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/batch"
	"github.com/batonhq/baton/internal/contended"
	"github.com/batonhq/baton/internal/rate"
)

// Limits decides requests to rate limits for a store. Package rate decides in this
// process, while a transaction has the rows of the keys locked. Requests of this process
// that wait meanwhile share the next transaction. No two transactions of this process
// lock the same key, and no request overtakes an earlier one with a common key.
type Limits struct {
	store   string
	known   rate.Known
	batch   *batch.Batcher[*LimitOp]
	refused contended.Keys // keys that refused the last request: the next one first reads, without a lock, whether they still do
}

// LimitRows is a dialect's access to the rows of limits, on one connection at a time.
// Keys are sorted and unique. Errors are those for callers.
type LimitRows interface {
	// Read reads the committed rows of keys, and then the clock, without a lock: it sees
	// every decision that was answered before. It returns nil if the connection may see
	// outdated rows.
	Read(ctx context.Context, keys []string) (*LimitTx, error)

	// Change decides in one transaction. It locks the rows of the keys in order, and
	// makes missing ones, so that two first requests for a key wait for each other. It
	// reads them, the memory of IDsOf(ops), and then the clock, calls LimitTx.Take for
	// each request, writes the changes, and commits. refused says that the server refused
	// a statement and undid everything.
	Change(ctx context.Context, keys []string, ops []*LimitOp) (refused bool, err error)

	// Close is the last call.
	Close()
}

// A LimitOp is a request that waits for a decision.
type LimitOp struct {
	batch.Item
	Request *rate.Request

	quiet bool // it probably changes nothing
	taken limits.Taken
	err   error
}

// Answer is the decision, after Done.
func (o *LimitOp) Answer() (limits.Taken, error) { return o.taken, o.err }

const (
	// limitKeys bounds the rows that one transaction locks, and limitNumbers the numbers
	// that it reads, so that short requests do not wait long for logs.
	limitKeys    = 200
	limitNumbers = 20_000
)

// NewLimits returns the Limits of the store with that name. begin waits for a connection.
// c bounds batches and concurrent transactions.
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

// Take implements limits.Store.
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

// Close refuses waiting and later requests. Wait then waits for those under way.
func (l *Limits) Close() { l.batch.Close() }

func (l *Limits) Wait() { l.batch.Wait() }

// Waiting is the number of waiting requests, for tests.
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
		// Requests after one that changes something go into the transaction with it, to
		// keep the order.
		for t != nil && len(ops) > 0 && !t.Take(ops[0]) {
			ops[0].Finish()
			ops = ops[1:]
		}
		if len(ops) == 0 {
			return
		}
	}
	refused, err := rows.Change(ctx, keys, ops)
	if refused && len(ops) > 1 { // the failure of one request must not affect the others
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

// LimitTx has the rows of one transaction, with its changes.
type LimitTx struct {
	Store   string
	Clock   int64 // microseconds since 1970, read after the rows were locked
	Rows    map[string]LimitRow
	IDs     map[LimitID]LimitMemory
	Changed int // rows
}

func NewLimitTx(store string) *LimitTx {
	return &LimitTx{Store: store, Rows: make(map[string]LimitRow), IDs: make(map[LimitID]LimitMemory)}
}

// LimitRow is the row of a key. A row that was only made to be locked has no State.
type LimitRow struct {
	State   rate.State
	Ends    int64
	Changed bool
}

// LimitID identifies an allowed request by its first key and ID.
type LimitID struct{ Key, ID string }

// LimitMemory is the memory of such a request.
type LimitMemory struct {
	At, Wait, Ends int64
	Changed        bool
}

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
