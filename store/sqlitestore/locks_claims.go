package sqlitestore

import (
	"database/sql"
	"errors"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/sqlstore"
)

// tx is the one transaction that a Store can have open. BEGIN IMMEDIATE has locked the
// whole database, so every row stays as it was read.
type tx struct {
	s   *Store
	now int64 // read after BEGIN, and for each request
	fx  sqlstore.Effects
}

var _ sqlstore.Tx = (*tx)(nil)

// fastAcquire takes a free exclusive lock.
func (t *tx) fastAcquire(r driver.Request) (g driver.Grant, done bool, err error) {
	token := t.Seed()
	done, err = t.changed(stFastAcquire, []byte(r.Key), t.now, t.now+r.TTL.Microseconds(), token, r.ID, r.Owner, t.Node(false))
	return driver.Grant{Token: token, Ticket: token, TTL: r.TTL}, done, err
}

// fastRelease releases an exclusive lock that has no waiters.
func (t *tx) fastRelease(c driver.Claim) (done bool, err error) {
	return t.changed(stFastRelease, []byte(c.Key), t.now, c.ID)
}

// renew renews a batch: the locks, then the claims, then one by one those that neither
// statement found. Last it serves every key that has waiters. The transaction excludes
// other writers, so no claim can move between the two tables meanwhile; the locks come
// first because most of a large batch are locks.
func (t *tx) renew(b *sqlstore.Batch, ttl time.Duration) error {
	b.Reset()
	us := ttl.Microseconds()
	positions := make(map[string][]sqlstore.Position)
	waits := func(p sqlstore.Position) {
		b.Waiting(p.ID, p.Key, driver.Grant{Waiting: true, Ticket: p.Seq, TTL: driver.WaiterTTL})
		positions[p.Key] = append(positions[p.Key], p)
	}
	err := t.each(stRenewLocks, func(row *sql.Rows) error {
		var key []byte
		var id string
		var token int64
		if err := row.Scan(&key, &id, &token); err != nil {
			return err
		}
		b.Held(id, string(key), token)
		return nil
	}, sqlstore.JSON(b.Left()), t.now, t.now+us)
	if err != nil {
		return err
	}
	left := b.Left()
	if len(left) == 0 {
		return nil
	}
	err = t.each(stRenewClaims, func(row *sql.Rows) error {
		var key []byte
		var p sqlstore.Position
		var held bool
		if err := row.Scan(&key, &p.ID, &p.Seq, &held); err != nil {
			return err
		}
		if p.Key = string(key); held {
			b.Held(p.ID, p.Key, p.Seq)
		} else {
			waits(p)
		}
		return nil
	}, sqlstore.JSON(left), t.now, t.now+us, t.now+driver.WaiterTTL.Microseconds(), us)
	if err != nil {
		return err
	}
	for _, p := range b.Left() {
		p, waiting, err := sqlstore.Find(t, p, b, us)
		if err != nil {
			return err
		}
		if waiting {
			waits(p)
		}
	}
	for key, of := range positions {
		if err := sqlstore.Look(t, key, of, b, us, &t.fx); err != nil {
			return err
		}
	}
	return nil
}

// changed executes a statement and reports whether it changed a row.
func (t *tx) changed(n int, args ...any) (bool, error) {
	st, err := t.s.statement(n)
	if err != nil {
		return false, err
	}
	r, err := st.Exec(args...)
	if err != nil {
		return false, err
	}
	rows, err := r.RowsAffected()
	return rows > 0, err
}

// each calls f for each row of a query.
func (t *tx) each(n int, f func(*sql.Rows) error, args ...any) error {
	st, err := t.s.statement(n)
	if err != nil {
		return err
	}
	rows, err := st.Query(args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := f(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (t *tx) Now() int64 { return t.now }

func (t *tx) Seed() int64 { return t.s.opts.wall() }

func (t *tx) Node(waits bool) string { return t.s.mail.address(waits) }

func (t *tx) LockKey(key string) (k sqlstore.Key, found bool, err error) {
	err = scanKey(t.s.row(stLockKey, []byte(key)), &k)
	if errors.Is(err, sql.ErrNoRows) {
		k.Weight = driver.Whole
		return k, false, t.s.row(stFloor).Scan(&k.Last)
	}
	return k, err == nil, err
}

func (t *tx) SaveKey(key string, k sqlstore.Key, found bool) error {
	n := stInsertKey
	if found {
		n = stUpdateKey
	}
	return t.s.exec(n, []byte(key), k.Last, k.Busy, k.ID, k.Token, k.Weight, k.Owner, k.Node, k.Since, k.Ends)
}

func (t *tx) Claims(key string, after int64, limit int) (all []sqlstore.Claim, err error) {
	err = t.each(stClaims, func(row *sql.Rows) error {
		var c sqlstore.Claim
		if err := scanClaim(row, &c); err != nil {
			return err
		}
		all = append(all, c)
		return nil
	}, []byte(key), after, limit)
	return all, err
}

func (t *tx) ClaimByID(key, id string) (c sqlstore.Claim, found bool, err error) {
	err = scanClaim(t.s.row(stClaimByID, []byte(key), id), &c)
	if errors.Is(err, sql.ErrNoRows) {
		return c, false, nil
	}
	return c, err == nil, err
}

func (t *tx) InsertClaim(key string, c sqlstore.Claim) error {
	return t.s.exec(stInsertClaim, []byte(key), c.Seq, c.ID, c.Node, c.Owner, c.Weight, c.Capacity, c.Held, c.TTL, c.Since, c.Ends)
}

func (t *tx) UpdateClaim(key string, c sqlstore.Claim) error {
	return t.s.exec(stUpdateClaim, []byte(key), c.Seq, c.Held, c.Weight, c.TTL, c.Since, c.Ends)
}

func (t *tx) RenameClaim(key string, c sqlstore.Claim) error {
	return t.s.exec(stRenameClaim, []byte(key), c.Seq, c.Owner)
}

func (t *tx) DeleteClaim(key string, seq int64) error {
	return t.s.exec(stDeleteClaim, []byte(key), seq)
}

func (t *tx) DeleteDead(key string, seq int64) (bool, error) {
	return t.changed(stDeleteDead, []byte(key), seq, t.now)
}

func (t *tx) CountWaiting(key string) (n int, err error) {
	err = t.s.row(stCountWaiting, []byte(key), t.now).Scan(&n)
	return n, err
}

type scanner interface{ Scan(...any) error }

func scanKey(row scanner, k *sqlstore.Key) error {
	return row.Scan(&k.Last, &k.Busy, &k.ID, &k.Token, &k.Weight, &k.Owner, &k.Node, &k.Since, &k.Ends)
}

func scanClaim(row scanner, c *sqlstore.Claim) error {
	return row.Scan(&c.Seq, &c.ID, &c.Node, &c.Owner, &c.Weight, &c.Capacity, &c.Held, &c.TTL, &c.Since, &c.Ends)
}
