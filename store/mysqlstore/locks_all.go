package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/sqlstore"
)

// AcquireAll implements driver.Together, for locks of any kind, in one transaction: no
// other transaction sees half of it, and no crash leaves half of it. On a Store from
// Open it takes two round trips, one that locks the rows and one that writes them and
// commits, one more for each key that is shared or has waiters, and one more if another
// transaction had locked one of the rows at that moment. On a pool that New was given
// each statement takes one, mostly eight to ten in all.
func (s *Store) AcquireAll(ctx context.Context, r []driver.Request) ([]driver.Grant, error) {
	if err := check.Together(r, traits); err != nil {
		return nil, err
	}
	s.sweepEarly(r[0].Key)
	var grants []driver.Grant
	var refused error
	err := s.call(ctx, func(ctx context.Context) (unsure bool, err error) {
		grants, refused, unsure, err = s.attemptAll(ctx, r)
		return unsure, err
	})
	if errors.Is(err, driver.ErrUnknown) {
		for _, q := range r {
			s.left.Leave(q.ID)
		}
	}
	if err == nil {
		err = refused
	}
	if err != nil {
		return nil, err
	}
	return grants, nil
}

func (s *Store) attemptAll(ctx context.Context, r []driver.Request) (grants []driver.Grant, refused error, unsure bool, err error) {
	ses, err := s.session(ctx)
	if err != nil {
		return nil, nil, false, err
	}
	defer ses.close() // which undoes what was not committed
	m := newManyTx(ctx, ses, r)
	if refused, err := m.lock(); refused != nil || err != nil {
		return nil, refused, false, err
	}
	if grants, refused, err = sqlstore.AcquireAll(r, m.at); err != nil {
		return nil, nil, false, err
	}
	if unsure, err := m.commit(); err != nil {
		return nil, nil, unsure, err
	}
	for _, t := range m.all {
		s.hot.Set(t.key, t.row.Busy)
		s.tell(t.fx)
		if t.saved && !t.stored {
			s.inserted.Add(1)
		}
	}
	return grants, refused, false, nil
}

// manyTx is a transaction about several keys. It waits for their rows in the order of
// the keys' bytes, and transactions about one key wait for no other key's row. A row
// that is missing is inserted with the commit; if another transaction has inserted it
// meanwhile, the server may see a deadlock, and all is done again.
type manyTx struct {
	ctx context.Context
	ses *session
	r   []driver.Request
	all []*tx // in the order of their keys
	of  map[string]*tx

	fresh bool // no earlier attempt has left anything
}

func newManyTx(ctx context.Context, ses *session, r []driver.Request) *manyTx {
	m := &manyTx{ctx: ctx, ses: ses, r: r, of: make(map[string]*tx, len(r)), fresh: true}
	for _, q := range r {
		t := &tx{ctx: ctx, ses: ses, key: q.Key, row: sqlstore.Key{Weight: driver.Whole}, fresh: !q.Retry && q.Ticket == 0}
		m.all, m.of[q.Key] = append(m.all, t), t
		m.fresh = m.fresh && t.fresh
	}
	slices.SortFunc(m.all, func(a, b *tx) int { return strings.Compare(a.key, b.key) })
	return m
}

func (m *manyTx) ours(id string) bool {
	return slices.ContainsFunc(m.r, func(q driver.Request) bool { return q.ID == id })
}

func (m *manyTx) at(key string) (sqlstore.Tx, *sqlstore.Effects) {
	t := m.of[key]
	return t, &t.fx
}

// lock locks the rows of all keys, mostly in one round trip, or refuses because of one
// that it would have to wait for. A holder's row may be locked for long, by a
// transaction of a user that depends on the lease (InTx), and this one is not to wait
// for that while it keeps other transactions from the rows before it.
func (m *manyTx) lock() (refused, failed error) {
	var keys list
	for _, t := range m.all {
		keys.add(literal(t.key))
	}
	in := words("SELECT k,", keyColumns, " FROM baton_lock FORCE INDEX (PRIMARY) WHERE k IN (", keys.String(), ") ORDER BY k")
	var now int64
	clock := statement{"SELECT " + micros, func(r *sql.Rows) error { return r.Scan(&now) }}
	locked := 0
	rows := statement{in + " FOR UPDATE", func(r *sql.Rows) error {
		t, err := m.scan(r)
		if err == nil {
			t.stored = true
			locked++
		}
		return err
	}}
	var others []*tx // whose rows another transaction has locked
	look := statement{in, func(r *sql.Rows) error {
		t, err := m.scan(r)
		if err == nil && !t.stored {
			others = append(others, t)
		}
		return err
	}}

	first := append(m.ses.beginning(), statement{rows.text + " SKIP LOCKED", rows.read}, clock)
	if m.ses.multi { // else it costs a round trip, perhaps for nothing
		first = append(first, look)
	}
	if err := m.ses.run(m.ctx, first...); err != nil {
		return nil, err
	}
	if !m.ses.multi && locked < len(m.all) {
		if err := m.ses.run(m.ctx, look); err != nil {
			return nil, err
		}
	}
	for _, t := range others {
		if k := t.row; m.fresh && k.HeldAt(now) && k.Weight == driver.Whole && !m.ours(k.ID) {
			return m.heldBy(t, now)
		}
	}
	if len(others) > 0 { // that lock will not last: now wait in order, with nothing locked before
		for _, t := range m.all {
			t.row, t.stored = sqlstore.Key{Weight: driver.Whole}, false
		}
		again := append([]statement{exec(toRollBack)}, m.ses.beginning()[1:]...)
		if err := m.ses.run(m.ctx, append(again, rows, clock)...); err != nil {
			return nil, err
		}
	}
	for _, t := range m.all {
		t.now = now
		t.isLocked(false)
	}
	return nil, nil
}

// scan reads a row into the tx of its key.
func (m *manyTx) scan(r *sql.Rows) (*tx, error) {
	var key string
	var row sqlstore.Key
	if err := r.Scan(append([]any{&key}, keyFields(&row)...)...); err != nil {
		return nil, err
	}
	t := m.of[key]
	t.row = row
	return t, nil
}

// heldBy refuses because of the holder in a row that is not locked.
func (m *manyTx) heldBy(t *tx, now int64) (refused, failed error) {
	waiting, err := 0, error(nil)
	if t.row.Busy {
		waiting, err = t.CountWaiting(t.key)
	}
	us := func(n int64) time.Duration { return max(0, time.Duration(n)*time.Microsecond) }
	return &driver.HeldError{
		Key: t.key, Owner: t.row.Owner, Age: us(now - t.row.Since), Remaining: us(t.row.Ends - now), Waiting: waiting,
	}, err
}

// commit writes what is left and commits, in one round trip. unsure is as in
// tx.commit.
func (m *manyTx) commit() (unsure bool, err error) {
	var missing, stored list
	var all []statement
	changes := false
	for _, t := range m.all {
		changes = changes || t.changes()
		switch {
		case t.saved && t.stored:
			stored.add(t.values())
		case t.saved:
			missing.add(t.values())
		}
		all = append(all, t.rest()...)
	}
	into := words("INSERT INTO baton_lock (k,", storedColumns, ") VALUES ")
	if stored.text != nil { // they are there, and locked
		all = append(all, exec(words(into, stored.String(), " ON DUPLICATE KEY UPDATE last=VALUES(last),busy=VALUES(busy),token=VALUES(token),",
			"weight=VALUES(weight),id=VALUES(id),owner=VALUES(owner),since=VALUES(since),ends=VALUES(ends)")))
	}
	if missing.text != nil {
		all = append(all, exec(words(into, missing.String())))
	}
	unsure, err = m.ses.commit(m.ctx, all...)
	return unsure && changes, err
}
