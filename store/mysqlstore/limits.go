package mysqlstore

import (
	"context"
	"database/sql"
	"slices"
	"sync/atomic"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/batch"
	"github.com/batonhq/baton/internal/contended"
	"github.com/batonhq/baton/internal/rate"
	"github.com/batonhq/baton/internal/sqlstore"
)

var _ limits.Store = (*Store)(nil)

const (
	// limitWorkers bounds how many transactions about limits a process has at
	// a time. What comes meanwhile is decided in the next ones.
	limitWorkers = 4

	// limitKeys bounds the rows that one of them locks.
	limitKeys = 200
)

// limiter is what a Store needs for rate limits.
type limiter struct {
	known   rate.Known
	changed atomic.Int64 // keys, since the last sweep

	// refused has the keys that refused the last request: then the next one first
	// reads, without a lock, whether they still do.
	refused contended.Keys

	batch *batch.Batcher[*limitOp]
}

// A limitOp is a request that waits for a decision.
type limitOp struct {
	batch.Item
	r     *rate.Request
	quiet bool // it may well change nothing

	d   limits.Taken
	err error
}

// newLimitBatcher decides requests together. Two transactions of this process are never
// about one key, and no request overtakes an earlier one that asks for one of its keys.
func (s *Store) newLimitBatcher() *batch.Batcher[*limitOp] {
	return batch.New(batch.Config[*limitOp]{
		Send: s.decide, Go: s.serving.Go,
		Max: maxBatch, InFlight: limitWorkers, Yield: true,
		Context: s.life, Timeout: patience, Grace: sqlstore.Grace, // see sqlstore.Outlive
		Keys: func(o *limitOp) []batch.Key {
			keys := make([]batch.Key, len(o.r.Takes))
			for i, t := range o.r.Takes {
				keys[i] = batch.Key{Name: t.Key, Rule: batch.Serial | batch.Order}
			}
			return keys
		},
		MaxKeys: limitKeys,
	})
}

// Take implements limits.Store. The clock is the server's, read when the rows
// are locked.
//
// A Store from Open takes one round trip for a request to one bucket or fixed window,
// without ID, MaxWait and TurnWithin, and two for all the rest: one locks and reads the rows,
// one writes them and commits. All requests of this process that wait meanwhile are
// decided together in the next two, so that under load each costs a small part of a
// round trip. A request that only looks, or asks a key that refused before and refuses
// again, locks nothing, and takes one. On a pool that New was given each statement
// takes one, mostly ten in all.
//
// What was taken is durable before it is answered, as locks are.
func (s *Store) Take(ctx context.Context, t limits.Request) (limits.Taken, error) {
	r, err := s.limits.known.NewRequest(t)
	if err != nil {
		return limits.Taken{}, err
	}
	if err := s.ready(ctx); err != nil {
		return limits.Taken{}, err
	}
	s.sweepEarly(t.Takes[0].Key)
	o := &limitOp{Item: batch.NewItem(), r: r}
	look, first := looks(r), t.Takes[0].Key
	o.quiet = r.ID == "" && r.Mode <= limits.TakeAnyway && (look || s.limits.refused.Has(first))
	if err := s.limits.batch.Do(ctx, o); err != nil {
		return limits.Taken{}, err
	}
	if o.err != nil {
		return limits.Taken{}, o.err
	}
	if !look {
		s.limits.refused.Set(first, !o.d.OK)
	}
	return o.d, nil
}

func looks(r *rate.Request) bool {
	return !slices.ContainsFunc(r.Takes, func(t limits.Take) bool { return t.Cost > 0 })
}

// decide answers ops in one transaction, in order, or without one.
func (s *Store) decide(ctx context.Context, ops []*limitOp) {
	keys := keysOf(ops)
	if !slices.ContainsFunc(ops, func(o *limitOp) bool { return !o.quiet }) {
		var err error
		if ops, err = s.decideQuietly(ctx, keys, ops); err != nil {
			fail(ops, s.blame(ctx, err, false))
			return
		}
	}
	rules, alone := s.alone(ops)
	for len(ops) > 0 {
		var unsure bool
		var err error
		if alone {
			var done bool
			if done, unsure, err = s.attemptAlone(ctx, ops[0], rules); done {
				return
			}
			alone = err != nil
		} else if unsure, err = s.attemptLimits(ctx, keys, ops); err == nil {
			return
		}
		// The server undid it, or kept it waiting too long: nothing was done.
		if n := number(err); err != nil && (unsure || !(undone(err) || n == erLockTimeout) || ctx.Err() != nil) {
			fail(ops, s.blame(ctx, err, unsure))
			return
		}
	}
}

// keysOf lists the keys of requests, sorted.
func keysOf(ops []*limitOp) []string {
	var keys []string
	for _, o := range ops {
		for _, t := range o.r.Takes {
			keys = append(keys, t.Key)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

func fail(ops []*limitOp, err error) {
	for _, o := range ops {
		o.err = err
	}
}

// decideQuietly answers ops without a lock, by what is committed, up to the first one
// that changes something, and returns the rest.
func (s *Store) decideQuietly(ctx context.Context, keys []string, ops []*limitOp) ([]*limitOp, error) {
	t := &limitTx{rows: make(map[string]limitRow, len(keys))}
	// One statement reads what is committed, and then the clock: a decision that it
	// sees was made before. It does not see one that is being committed meanwhile,
	// which may have been made before, too.
	rows, err := s.single.QueryContext(ctx, words("SELECT ", s.guard, ",", afterwards, ",IFNULL(l.k,''),IFNULL(l.state,''),IFNULL(TIMESTAMPDIFF(MICROSECOND,'1970-01-01',l.ends),0)",
		" FROM (SELECT 1) one LEFT JOIN baton_limit l ON l.k IN (", literals(keys), ")"))
	if err != nil {
		return ops, err
	}
	defer rows.Close()
	for rows.Next() {
		var key, state string
		var ends int64
		var committed bool
		if err := rows.Scan(&committed, &t.clock, &key, &state, &ends); err != nil || !committed {
			return ops, err // a transaction may see what is long outdated
		}
		t.rows[key] = limitRow{state: rate.Parse(state), ends: ends}
	}
	if err := rows.Err(); err != nil {
		return ops, err
	}
	// A request that comes after one that changes something comes after it in the
	// transaction, too.
	for i, o := range ops {
		if t.take(o) {
			return ops[i:], nil
		}
		o.Finish()
	}
	return nil, nil
}

// attemptLimits decides about ops in one transaction. unsure says that it may have
// been committed in spite of the error.
func (s *Store) attemptLimits(ctx context.Context, keys []string, ops []*limitOp) (unsure bool, err error) {
	ses, err := s.session(ctx)
	if err != nil {
		return false, err
	}
	defer ses.close()
	t := &limitTx{rows: make(map[string]limitRow, len(keys)), ids: make(map[limitID]limitMemory)}
	if err := ses.run(ctx, append(ses.beginning(), t.reading(keys, ops)...)...); err != nil {
		return false, err
	}
	for _, o := range ops {
		t.take(o)
	}
	if unsure, err := t.commit(ctx, ses, keys); err != nil {
		return unsure, err
	}
	s.limits.changed.Add(int64(t.dirty))
	return false, nil
}

// A limitTx is the rows of one transaction as they are with what it changed.
type limitTx struct {
	clock int64
	rows  map[string]limitRow
	ids   map[limitID]limitMemory
	dirty int // rows that were changed
}

type limitRow struct {
	state rate.State
	ends  int64
	dirty bool
	empty bool // it was made by this transaction, or is of no use
}

type limitID struct{ key, id string }

// A limitMemory is a request that was allowed.
type limitMemory struct {
	at, wait, ends int64
	dirty          bool
}

// reading locks the rows of the keys, in order, makes those that are missing so that
// two first requests for a key wait for each other, and reads them and then the clock.
func (t *limitTx) reading(keys []string, ops []*limitOp) []statement {
	var ids list
	for _, o := range ops {
		if o.r.ID != "" {
			ids.add(words("(", literal(o.r.Takes[0].Key), ",", literal(o.r.ID), ")"))
		}
	}
	all := []statement{
		making(keys),
		{
			words("SELECT k,state,TIMESTAMPDIFF(MICROSECOND,'1970-01-01',ends) FROM baton_limit WHERE k IN (", literals(keys), ")"),
			func(r *sql.Rows) error {
				var key, state string
				var row limitRow
				err := r.Scan(&key, &state, &row.ends)
				row.state, row.empty = rate.Parse(state), state == ""
				t.rows[key] = row
				return err
			},
		},
	}
	if ids.text != nil {
		all = append(all, statement{
			words("SELECT k,id,at,wait,TIMESTAMPDIFF(MICROSECOND,'1970-01-01',ends) FROM baton_limit_id WHERE (k,id) IN (", ids.String(), ")"),
			func(r *sql.Rows) error {
				var id limitID
				var m limitMemory
				err := r.Scan(&id.key, &id.id, &m.at, &m.wait, &m.ends)
				t.ids[id] = m
				return err
			},
		})
	}
	return append(all, statement{"SELECT " + micros, func(r *sql.Rows) error { return r.Scan(&t.clock) }})
}

// take decides about one request and reports whether that changes something.
func (t *limitTx) take(o *limitOp) (changed bool) {
	r := o.r
	states := make([]rate.State, len(r.Takes))
	for i, x := range r.Takes {
		if row := t.rows[x.Key]; row.ends > t.clock {
			states[i] = slices.Clone(row.state) // a decision spoils it
		}
	}
	id := limitID{r.Takes[0].Key, r.ID}
	var past *rate.Past
	if m, ok := t.ids[id]; ok && r.ID != "" && m.ends > t.clock {
		past = &rate.Past{At: m.at, Wait: m.wait}
	}
	if o.d, changed, o.err = r.Answer(traits.Store, t.clock, states, past); !changed {
		return false
	}
	for i, x := range r.Takes {
		t.rows[x.Key] = limitRow{
			state: states[i], ends: t.clock + r.Keep(o.d.Limits[i].Reset).Microseconds(),
			dirty: true, empty: len(states[i]) == 0,
		}
	}
	t.dirty += len(r.Takes)
	if r.ID != "" && o.d.OK {
		t.ids[id] = limitMemory{o.d.At, o.d.Wait.Microseconds(), t.clock + r.Keep(r.Request.Keep).Microseconds() + 1, true}
	}
	return true
}

// commit writes what was changed and commits, mostly in one round trip. If nothing was
// changed, the transaction is undone, with the rows that it made.
func (t *limitTx) commit(ctx context.Context, ses *session, keys []string) (unsure bool, err error) {
	if t.dirty == 0 {
		return false, nil // the session undoes it
	}
	var all []statement
	var rows, gone, ids list
	size := 0
	for _, key := range keys {
		switch row := t.rows[key]; {
		case row.empty:
			gone.add(literal(key))
		case row.dirty:
			text := words("(", literal(key), ",'", row.state.Text(), "',", stamp(row.ends), ")")
			if size += len(text); size > maxText && rows.text != nil { // long logs go out one after the other
				if err := ses.run(ctx, saving(&rows)); err != nil {
					return false, err
				}
				rows, size = list{}, len(text)
			}
			rows.add(text)
		}
	}
	if rows.text != nil {
		all = append(all, saving(&rows))
	}
	if gone.text != nil {
		all = append(all, exec(words("DELETE FROM baton_limit WHERE k IN (", gone.String(), ")")))
	}
	for id, m := range t.ids {
		if m.dirty {
			ids.add(words("(", literal(id.key), ",", literal(id.id), ",", integer(m.at), ",", integer(m.wait), ",", stamp(m.ends), ")"))
		}
	}
	if ids.text != nil {
		all = append(all, exec(words("INSERT INTO baton_limit_id (k,id,at,wait,ends) VALUES ", ids.String(),
			" ON DUPLICATE KEY UPDATE at=VALUES(at),wait=VALUES(wait),ends=VALUES(ends)")))
	}
	return ses.commit(ctx, all...)
}

func saving(rows *list) statement {
	return exec(words("INSERT INTO baton_limit (k,state,ends) VALUES ", rows.String(), " ON DUPLICATE KEY UPDATE state=VALUES(state),ends=VALUES(ends)"))
}

// literals writes a list of keys.
func literals(keys []string) string {
	var l list
	for _, key := range keys {
		l.add(literal(key))
	}
	return l.String()
}

// sweepLimits removes states that are as if their keys had never been used, of the next
// n keys, and expired IDs. It returns where it ended, "" if that is the end
// of the table, and with an error the beginning of the page that failed.
func (s *Store) sweepLimits(ctx context.Context, after string, n int) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ids := n
	for n > 0 {
		page := min(n, sweepList)
		n -= page
		last, err := s.sweepStates(ctx, after, page)
		if err != nil {
			return after, err
		}
		if after = last; last == "" {
			break
		}
	}
	return after, s.sweepIDs(ctx, ids)
}

// sweepStates sweeps one page. Like sweepIdle it locks only what it removes, and skips
// what other transactions have locked: it would hold up requests for the other keys meanwhile.
func (s *Store) sweepStates(ctx context.Context, after string, page int) (last string, err error) {
	ses, err := s.session(ctx)
	if err != nil {
		return "", err
	}
	defer ses.close()
	const over = "ends<=UTC_TIMESTAMP(6) AND " + onward
	seen, old := 0, list{}
	err = ses.run(ctx, append(ses.beginning(), statement{
		words("SELECT k,ends<=UTC_TIMESTAMP(6) FROM baton_limit FORCE INDEX (PRIMARY) WHERE k>", literal(after), " ORDER BY k LIMIT ", integer(int64(page))),
		func(r *sql.Rows) error {
			var over bool
			err := r.Scan(&last, &over)
			if seen++; over {
				old.add(literal(last))
			}
			return err
		},
	})...)
	if err != nil {
		return "", err
	}
	var second []statement
	if old.text != nil {
		var locked list
		err := ses.run(ctx, statement{
			words("SELECT k FROM baton_limit FORCE INDEX (PRIMARY) WHERE k IN (", old.String(), ") AND ", over, " ORDER BY k FOR UPDATE SKIP LOCKED"),
			func(r *sql.Rows) error {
				var key string
				err := r.Scan(&key)
				locked.add(literal(key))
				return err
			},
		})
		if err != nil {
			return "", err
		}
		if locked.text != nil {
			second = append(second, exec(words("DELETE l FROM baton_limit l FORCE INDEX (PRIMARY) WHERE k IN (", locked.String(), ") AND ", over)))
		}
	}
	if err := ses.run(ctx, append(second, exec(toCommit), exec(restore))...); err != nil {
		return "", err
	}
	ses.done()
	if seen < page {
		last = ""
	}
	return last, nil
}

// sweepIDs removes expired IDs, at most n: some in each transaction,
// because what a statement may name is bounded by max_allowed_packet.
func (s *Store) sweepIDs(ctx context.Context, n int) error {
	for n > 0 {
		page := min(n, sweepList)
		n -= page
		if removed, err := s.sweepSomeIDs(ctx, page); err != nil || removed < page {
			return err
		}
	}
	return nil
}

func (s *Store) sweepSomeIDs(ctx context.Context, n int) (found int, err error) {
	ses, err := s.session(ctx)
	if err != nil {
		return 0, err
	}
	defer ses.close()
	var old list
	err = ses.run(ctx, append(ses.beginning(), statement{
		words("SELECT k,id FROM baton_limit_id WHERE ends<=UTC_TIMESTAMP(6) ORDER BY ends LIMIT ", integer(int64(n)), " FOR UPDATE SKIP LOCKED"),
		func(r *sql.Rows) error {
			var id limitID
			err := r.Scan(&id.key, &id.id)
			found++
			old.add(words("(", literal(id.key), ",", literal(id.id), ")"))
			return err
		},
	})...)
	if err != nil {
		return 0, err
	}
	var second []statement
	if old.text != nil {
		// For the index and the condition see sweepSomeRecords.
		second = append(second, exec("DELETE i FROM baton_limit_id i FORCE INDEX (PRIMARY) WHERE (k,id) IN ("+old.String()+") AND ends<=UTC_TIMESTAMP(6)"))
	}
	if err := ses.run(ctx, append(second, exec(toCommit), exec(restore))...); err != nil {
		return 0, err
	}
	ses.done()
	return found, nil
}
