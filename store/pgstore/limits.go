package pgstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/batch"
	"github.com/batonhq/baton/internal/rate"
	"github.com/batonhq/baton/internal/sqlstore"
)

var _ limits.Store = (*Store)(nil)

const (
	// Locks rows in order, and makes missing ones. Commits do not wait for the disk. The
	// server ends a process that is stopped in the middle before others give up waiting
	// for its rows: see lockTimeout.
	lockLimitsSQL = `INSERT INTO baton_limit AS l (key, state, expires) SELECT k, '', '-infinity' FROM unnest($1::bytea[]) AS u (k)
		WHERE set_config('synchronous_commit', 'off', true) = 'off' AND set_config('idle_in_transaction_session_timeout', '1s', true) <> ''
			AND set_config('enable_seqscan', 'off', true) = 'off' AND set_config('plan_cache_mode', 'force_generic_plan', true) <> '' ORDER BY k
		ON CONFLICT (key) DO UPDATE SET state = l.state WHERE false`

	// Reads committed rows, and then the clock. In another isolation it reads nothing.
	readLimitsSQL = `SELECT k, coalesce(state, ''), ` + expiresSQL + `, ` + clockSQL + `
		FROM unnest($1::bytea[]) AS u (k) LEFT JOIN baton_limit ON key = k WHERE current_setting('transaction_isolation') = 'read committed'`
	readLimitIDsSQL = `SELECT key, l.id, at, wait, ` + expiresSQL + ` FROM unnest($1::bytea[], $2::text[]) AS u (k, id)
		JOIN baton_limit_id l ON key = k AND l.id = u.id`

	saveLimitsSQL = `UPDATE baton_limit l SET state = u.state, expires = 'epoch'::timestamptz + ends * interval '1 microsecond'
		FROM unnest($1::bytea[], $2::text[], $3::bigint[]) AS u (k, state, ends) WHERE key = k`
	dropLimitsSQL   = `DELETE FROM baton_limit WHERE key = ANY ($1::bytea[])`
	saveLimitIDsSQL = `INSERT INTO baton_limit_id (key, id, at, wait, expires)
		SELECT k, id, at, wait, 'epoch'::timestamptz + ends * interval '1 microsecond'
		FROM unnest($1::bytea[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[]) AS u (k, id, at, wait, ends)
		ON CONFLICT (key, id) DO UPDATE SET at = excluded.at, wait = excluded.wait, expires = excluded.expires`

	sweepLimitsSQL = `SELECT upto, removed FROM baton_sweep_limits_1($1::bytea, $2::int)`
)

// Codes of errors after which a transaction can be repeated.
const (
	notSerializable = "40001"
	deadlock        = "40P01"
	idledTooLong    = "25P03" // it was idle for too long
)

// Take implements limits.Store, in two round trips: one locks and reads the rows, one
// writes them and commits. Requests of this process that wait meanwhile share the next
// two, so under load each costs a small part of a round trip. A request that only looks,
// or whose key refuses again, locks nothing and takes one round trip.
//
// A take is answered before it is on the disk. A crash of the server may lose the
// decisions of its last moments (three times wal_writer_delay, by default 0.6 s) with
// their IDs, and a failover those that were not replicated. Then the same can be taken
// once more. Locks are not affected.
func (s *Store) Take(ctx context.Context, r limits.Request) (limits.Taken, error) {
	return s.limits.Take(ctx, r)
}

// newLimits returns limits whose transactions take at most that long: other requests for
// the same keys wait for them, and a connection may be dead.
func (s *Store) newLimits(within time.Duration) *sqlstore.Limits {
	return sqlstore.NewLimits(traits.Store, batch.Config[*sqlstore.LimitOp]{
		Max: maxMerged, InFlight: int(s.pool.Config().MaxConns), Grace: s.patience, Timeout: within,
	}, func(ctx context.Context) (sqlstore.LimitRows, error) {
		if s.closed.Load() {
			return nil, driver.ErrClosed
		}
		conn, err := s.connect(ctx, s.pool)
		if err != nil {
			return nil, err
		}
		return &limitRows{s, conn}, nil
	})
}

// limitRows implements sqlstore.LimitRows.
type limitRows struct {
	*Store
	conn *pgxpool.Conn
}

func (c *limitRows) Close() {
	if c.conn != nil {
		giveBack(c.conn)
	}
}

// ready takes a connection if there is none, or if the last transaction has ended it.
func (c *limitRows) ready(ctx context.Context) (err error) {
	if c.conn != nil && !c.conn.Conn().IsClosed() {
		return nil
	}
	c.Close()
	if c.conn, err = c.connect(ctx, c.pool); err != nil {
		err = c.failed(ctx, notSent{err})
	}
	return err
}

func (c *limitRows) Read(ctx context.Context, keys []string) (*sqlstore.LimitTx, error) {
	if err := c.ready(ctx); err != nil {
		return nil, err
	}
	t := sqlstore.NewLimitTx(traits.Store)
	err := c.several(ctx, c.conn.Conn(), readingLimits(t, keys))
	if err == nil && t.Clock == 0 {
		return nil, nil
	}
	return t, c.failed(ctx, err)
}

func (c *limitRows) Change(ctx context.Context, keys []string, ops []*sqlstore.LimitOp) (refused bool, err error) {
	for tries := 3; ; tries-- {
		if err := c.ready(ctx); err != nil {
			return false, err
		}
		err = c.attempt(ctx, keys, ops)
		again := isCode(err, deadlock) || isCode(err, notSerializable) || isCode(err, idledTooLong)
		if !again || tries == 1 || ctx.Err() != nil {
			closed := c.conn.Conn().IsClosed()
			return !closed && errors.As(err, new(*pgconn.PgError)), c.failed(ctx, err)
		}
		// Only row locks that a person takes by hand can cause a deadlock. The pause lets
		// a transaction that waits for the released rows lock them first. Otherwise this
		// one would block it again.
		select {
		case <-time.After(10*time.Millisecond + rand.N(20*time.Millisecond)):
		case <-ctx.Done():
		}
	}
}

// failed is the failure of a request. ctx is not that of its caller.
func (c *limitRows) failed(ctx context.Context, err error) error {
	if isCode(err, readOnly) {
		c.leave(ctx, c.conn)
	}
	if err = failure(context.WithoutCancel(ctx), err); err == nil || ctx.Err() == nil {
		return err
	}
	outcome := driver.ErrUnavailable
	if errors.Is(err, driver.ErrUnknown) {
		outcome = driver.ErrUnknown
	}
	return fmt.Errorf("postgres: %w: the server has not answered in time", outcome)
}

func (c *limitRows) attempt(ctx context.Context, keys []string, ops []*sqlstore.LimitOp) error {
	t := sqlstore.NewLimitTx(traits.Store)
	if err := c.several(ctx, c.conn.Conn(), append([]statement{{sql: beginSQL}}, lockingLimits(t, keys, sqlstore.IDsOf(ops))...)...); err != nil {
		c.rollBack(ctx, c.conn.Conn())
		return notSent{err} // nothing was done
	}
	for _, o := range ops {
		t.Take(o)
	}
	if t.Changed == 0 {
		for _, o := range ops {
			o.Finish()
		}
		c.rollBack(ctx, c.conn.Conn()) // with the rows that were made
		return nil
	}
	if err := c.several(ctx, c.conn.Conn(), append(savingLimits(t), statement{sql: commitSQL})...); err != nil {
		c.rollBack(ctx, c.conn.Conn())
		return err
	}
	c.limitSweep.changed(c.Store, t.Changed, keys[0])
	return nil
}

// lockingLimits locks and reads the rows, and reads the IDs and the clock.
func lockingLimits(t *sqlstore.LimitTx, keys []string, ids []sqlstore.LimitID) []statement {
	all := []statement{{sql: lockLimitsSQL, args: []any{bytesOf(keys)}}, readingLimits(t, keys)}
	if len(ids) == 0 {
		return all
	}
	var firsts [][]byte
	var names []string
	for _, id := range ids {
		firsts, names = append(firsts, []byte(id.Key)), append(names, id.ID)
	}
	return append(all, statement{readLimitIDsSQL, []any{firsts, names}, func(rows pgx.Rows) error {
		var key []byte
		var id string
		var m sqlstore.LimitMemory
		_, err := pgx.ForEachRow(rows, []any{&key, &id, &m.At, &m.Wait, &m.Ends}, func() error {
			t.IDs[sqlstore.LimitID{Key: string(key), ID: id}] = m
			return nil
		})
		return err
	}})
}

func readingLimits(t *sqlstore.LimitTx, keys []string) statement {
	return statement{readLimitsSQL, []any{bytesOf(keys)}, func(rows pgx.Rows) error {
		var key []byte
		var state string
		var row sqlstore.LimitRow
		_, err := pgx.ForEachRow(rows, []any{&key, &state, &row.Ends, &t.Clock}, func() error {
			row.State = rate.Parse(state)
			t.Rows[string(key)] = row
			return nil
		})
		return err
	}}
}

func savingLimits(t *sqlstore.LimitTx) (all []statement) {
	var keys, gone, firsts [][]byte
	var states, ids []string
	var ends, ats, waits, idEnds []int64
	for key, row := range t.Rows {
		switch {
		case len(row.State) == 0: // no state is left, or the row was only made to be locked
			gone = append(gone, []byte(key))
		case row.Changed:
			keys, states, ends = append(keys, []byte(key)), append(states, row.State.Text()), append(ends, row.Ends)
		}
	}
	for id, m := range t.IDs {
		if m.Changed {
			firsts, ids = append(firsts, []byte(id.Key)), append(ids, id.ID)
			ats, waits, idEnds = append(ats, m.At), append(waits, m.Wait), append(idEnds, m.Ends)
		}
	}
	if keys != nil {
		all = append(all, statement{sql: saveLimitsSQL, args: []any{keys, states, ends}})
	}
	if gone != nil {
		all = append(all, statement{sql: dropLimitsSQL, args: []any{gone}})
	}
	if ids != nil {
		all = append(all, statement{sql: saveLimitIDsSQL, args: []any{firsts, ids, ats, waits, idEnds}})
	}
	return all
}

func bytesOf(keys []string) [][]byte {
	all := make([][]byte, len(keys))
	for i, key := range keys {
		all[i] = []byte(key)
	}
	return all
}

// limitSweeper removes expired rows of limits. After sweepEvery changes it looks at a
// page of more rows than can have been made meanwhile, so that they do not accumulate.
type limitSweeper struct {
	changes atomic.Int64 // since the last page

	mu      sync.Mutex
	busy    bool // guarded by mu, like the fields below
	closed  bool
	after   []byte // the end of the last page
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
}

const (
	sweepEvery = 128 // changes
	sweepLooks = 3   // rows for each change
	maxSweep   = 20_000
)

func (w *limitSweeper) init() {
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.changes.Store(rand.Int64N(sweepEvery)) // random, so that programs with one decision sweep sometimes, too
}

// changed notes that a decision has written n keys, among them key.
func (w *limitSweeper) changed(s *Store, n int, key string) {
	if w.changes.Add(int64(n)) < sweepEvery {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.changes.Load()
	if w.busy || w.closed || all < sweepEvery {
		return
	}
	w.changes.Add(-all)
	w.busy = true
	if w.after == nil {
		w.after = []byte(key)
	}
	w.running.Go(func() { w.run(s, all) })
}

// run sweeps a page, and more pages if it removed many rows.
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
		// After the last page comes the first: this may be a program with one decision.
		more = err == nil && (removed > size/2 || upto == nil && len(from) > 0)
	}
	w.mu.Lock()
	w.busy = false
	w.mu.Unlock()
}

// close waits briefly for a page that is under way: the program may be about to end.
func (w *limitSweeper) close(patience time.Duration) {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	timer := time.AfterFunc(patience, w.cancel)
	w.running.Wait()
	timer.Stop()
	w.cancel()
}
