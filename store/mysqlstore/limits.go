package mysqlstore

import (
	"context"
	"database/sql"
	"errors"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/batch"
	"github.com/batonhq/baton/internal/rate"
	"github.com/batonhq/baton/internal/sqlstore"
)

var _ limits.Store = (*Store)(nil)

// limitWorkers bounds the concurrent transactions about limits of a process. Requests
// that come meanwhile share the next ones.
const limitWorkers = 4

// Take implements limits.Store. The clock is the server's, read when the rows are locked.
//
// A Store from Open takes one round trip for a request to one bucket or fixed window,
// without ID, MaxWait and TurnWithin. Other requests take two: one locks and reads the
// rows, one writes them and commits. Requests of this process that wait meanwhile share
// the next two, so under load each costs a small part of a round trip. A request that
// only looks, or whose key refuses again, locks nothing, and takes one. On a pool that
// New was given each statement takes one, usually ten in all.
//
// A take is durable before it is answered, as locks are.
func (s *Store) Take(ctx context.Context, r limits.Request) (limits.Taken, error) {
	if err := limits.Check(r); err != nil {
		return limits.Taken{}, err
	}
	if err := s.ready(ctx); err != nil {
		return limits.Taken{}, err
	}
	s.sweepEarly(r.Takes[0].Key)
	return s.limits.Take(ctx, r)
}

func (s *Store) newLimits() *sqlstore.Limits {
	return sqlstore.NewLimits(traits.Store, batch.Config[*sqlstore.LimitOp]{
		Max: maxBatch, InFlight: limitWorkers, Grace: sqlstore.Grace, Context: s.life, Timeout: patience,
	}, func(context.Context) (sqlstore.LimitRows, error) { return limitRows{s}, nil })
}

// limitRows implements sqlstore.LimitRows.
type limitRows struct{ *Store }

func (limitRows) Close() {}

func (s limitRows) Read(ctx context.Context, keys []string) (*sqlstore.LimitTx, error) {
	t := sqlstore.NewLimitTx(traits.Store)
	committed := true
	// One statement reads committed rows, and then the clock. It misses a commit under
	// way, which may have been decided before, too.
	rows, err := s.single.QueryContext(ctx, words("SELECT ", s.guard, ",", afterwards, ",IFNULL(l.k,''),IFNULL(l.state,''),IFNULL(TIMESTAMPDIFF(MICROSECOND,'1970-01-01',l.ends),0)",
		" FROM (SELECT 1) one LEFT JOIN baton_limit l ON l.k IN (", literals(keys), ")"))
	if err == nil {
		defer rows.Close()
		for committed && err == nil && rows.Next() {
			var key, state string
			var row sqlstore.LimitRow
			err = rows.Scan(&committed, &t.Clock, &key, &state, &row.Ends)
			row.State = rate.Parse(state)
			t.Rows[key] = row
		}
		err = errors.Join(err, rows.Err())
	}
	if err != nil {
		return nil, s.blame(ctx, err, false)
	}
	if !committed { // the transaction may see outdated rows
		return nil, nil
	}
	return t, nil
}

func (s limitRows) Change(ctx context.Context, keys []string, ops []*sqlstore.LimitOp) (refused bool, err error) {
	rules, alone := s.alone(ops)
	for {
		var unsure bool
		if alone {
			var done bool
			if done, unsure, err = s.attemptAlone(ctx, ops[0], rules); done {
				return false, nil
			}
			alone = err != nil
		} else if unsure, err = s.attemptLimits(ctx, keys, ops); err == nil {
			return false, nil
		}
		// The server undid it, or kept it waiting too long: nothing was done.
		if n := number(err); err != nil && (unsure || !(undone(err) || n == erLockTimeout) || ctx.Err() != nil) {
			return n != 0 && !unsure, s.blame(ctx, err, unsure)
		}
	}
}

// attemptLimits decides about ops in one transaction. unsure says that it may have been
// committed in spite of the error.
func (s limitRows) attemptLimits(ctx context.Context, keys []string, ops []*sqlstore.LimitOp) (unsure bool, err error) {
	ses, err := s.session(ctx)
	if err != nil {
		return false, err
	}
	defer ses.close()
	t := sqlstore.NewLimitTx(traits.Store)
	if err := ses.run(ctx, append(ses.beginning(), reading(t, keys, sqlstore.IDsOf(ops))...)...); err != nil {
		return false, err
	}
	for _, o := range ops {
		t.Take(o)
	}
	if t.Changed == 0 {
		return false, nil // the session undoes it, with the rows that it made
	}
	if unsure, err := save(ctx, ses, t); err != nil {
		return unsure, err
	}
	s.changed.Add(int64(t.Changed))
	return false, nil
}

// reading locks and reads the rows of the keys, reads the IDs, and then the clock.
func reading(t *sqlstore.LimitTx, keys []string, ids []sqlstore.LimitID) []statement {
	all := []statement{
		making(keys),
		{
			words("SELECT k,state,TIMESTAMPDIFF(MICROSECOND,'1970-01-01',ends) FROM baton_limit WHERE k IN (", literals(keys), ")"),
			func(r *sql.Rows) error {
				var key, state string
				var row sqlstore.LimitRow
				err := r.Scan(&key, &state, &row.Ends)
				row.State = rate.Parse(state)
				t.Rows[key] = row
				return err
			},
		},
	}
	if len(ids) > 0 {
		var list list
		for _, id := range ids {
			list.add(words("(", literal(id.Key), ",", literal(id.ID), ")"))
		}
		all = append(all, statement{
			words("SELECT k,id,at,wait,TIMESTAMPDIFF(MICROSECOND,'1970-01-01',ends) FROM baton_limit_id WHERE (k,id) IN (", list.String(), ")"),
			func(r *sql.Rows) error {
				var id sqlstore.LimitID
				var m sqlstore.LimitMemory
				err := r.Scan(&id.Key, &id.ID, &m.At, &m.Wait, &m.Ends)
				t.IDs[id] = m
				return err
			},
		})
	}
	return append(all, statement{"SELECT " + micros, func(r *sql.Rows) error { return r.Scan(&t.Clock) }})
}

// save writes the changes and commits, usually in one round trip.
func save(ctx context.Context, ses *session, t *sqlstore.LimitTx) (unsure bool, err error) {
	var all []statement
	var rows, gone, ids list
	size := 0
	for key, row := range t.Rows {
		switch {
		case len(row.State) == 0: // no state is left, or the row was only made to be locked
			gone.add(literal(key))
		case row.Changed:
			text := words("(", literal(key), ",'", row.State.Text(), "',", stamp(row.Ends), ")")
			if size += len(text); size > maxText && rows.text != nil { // long logs are sent one after the other
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
	for id, m := range t.IDs {
		if m.Changed {
			ids.add(words("(", literal(id.Key), ",", literal(id.ID), ",", integer(m.At), ",", integer(m.Wait), ",", stamp(m.Ends), ")"))
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

func literals(keys []string) string {
	var l list
	for _, key := range keys {
		l.add(literal(key))
	}
	return l.String()
}

// sweepLimits removes states without effect, of the next n keys, and expired IDs. It
// returns where it ended: "" at the end of the table, and with an error the beginning of
// the page that failed.
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
// locked rows: otherwise it would block requests for the other keys.
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

// sweepIDs removes at most n expired IDs, some in each transaction, because
// max_allowed_packet bounds a statement.
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
			var id sqlstore.LimitID
			err := r.Scan(&id.Key, &id.ID)
			found++
			old.add(words("(", literal(id.Key), ",", literal(id.ID), ")"))
			return err
		},
	})...)
	if err != nil {
		return 0, err
	}
	var second []statement
	if old.text != nil {
		// For the index and the condition see sweepSomeTexts.
		second = append(second, exec("DELETE i FROM baton_limit_id i FORCE INDEX (PRIMARY) WHERE (k,id) IN ("+old.String()+") AND ends<=UTC_TIMESTAMP(6)"))
	}
	if err := ses.run(ctx, append(second, exec(toCommit), exec(restore))...); err != nil {
		return 0, err
	}
	ses.done()
	return found, nil
}
