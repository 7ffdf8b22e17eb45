package mysqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"slices"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/sqlstore"
)

// Claims in one read: firstClaims, twice a page of a walk, and then moreClaims, when the
// walk goes on because many have expired.
const (
	firstClaims = 32
	moreClaims  = 256
)

// tx is a transaction about one key. Its first round trip locks the key's row and reads
// the clock and the head of the queue. Its last one writes all changes and commits.
type tx struct {
	ctx context.Context
	ses *session
	key string

	locked bool
	idle   bool // there were no claims
	now    int64
	row    sqlstore.Key
	stored bool // the row is in the table
	found  bool // or will be
	saved  bool // the row was changed

	claims   []sqlstore.Claim // the first ones, with the changes
	loaded   bool
	complete bool           // these are all claims
	outcome  map[int64]bool // of deletions of expired claims: whether they had expired

	writes []string
	wrote  bool // some were sent before the commit
	fx     sqlstore.Effects

	// fresh says that this is the first attempt of its ID, so that the queue need not be
	// searched for it.
	fresh bool

	exact bool // the claims that this process renews are locked, too
}

var _ sqlstore.Tx = (*tx)(nil)

// Now implements sqlstore.Tx. A statement of its own read it, after the row was locked.
func (t *tx) Now() int64 { return t.now }

func (t *tx) Seed() int64 { return t.now }

// Node implements sqlstore.Tx: other processes get no hints.
func (t *tx) Node(bool) string { return "" }

// LockKey implements sqlstore.Tx. A missing row is inserted with the commit; if another
// transaction inserts it first, the transaction is repeated.
func (t *tx) LockKey(string) (sqlstore.Key, bool, error) {
	if t.locked {
		return t.row, t.found, nil
	}
	k := literal(t.key)
	all := append(t.ses.beginning(), statement{
		words("SELECT ", keyColumns, " FROM baton_lock WHERE k=", k, " FOR UPDATE"),
		func(r *sql.Rows) error {
			t.stored = true
			return r.Scan(keyFields(&t.row)...)
		},
	}, statement{"SELECT " + micros, func(r *sql.Rows) error { return r.Scan(&t.now) }})
	if t.ses.multi { // otherwise it costs a round trip, perhaps needlessly
		all = append(all, t.read(0, firstClaims))
	}
	t.row.Weight = driver.Whole
	if err := t.ses.run(t.ctx, all...); err != nil {
		return sqlstore.Key{}, false, err
	}
	t.locked, t.found = true, t.stored
	if t.idle = !t.stored || !t.row.Busy; t.idle {
		t.claims, t.complete = nil, true
	} else {
		t.loaded, t.complete = t.ses.multi, t.ses.multi && len(t.claims) < firstClaims
	}
	return t.row, t.found, nil
}

func (t *tx) SaveKey(_ string, k sqlstore.Key, _ bool) error {
	t.row, t.found, t.saved = k, true, true
	return nil
}

// read reads more claims into the cache.
func (t *tx) read(after int64, limit int) statement {
	return statement{
		words("SELECT ", claimColumns, " FROM baton_claim WHERE k=", literal(t.key), " AND seq>", integer(after),
			" ORDER BY seq LIMIT ", integer(int64(limit))),
		func(r *sql.Rows) error {
			var c sqlstore.Claim
			err := r.Scan(claimFields(&c)...)
			t.claims = append(t.claims, c)
			return err
		},
	}
}

// ask sends the pending writes and reads.
func (t *tx) ask(st ...statement) error {
	all := make([]statement, 0, len(t.writes)+len(st))
	for _, w := range t.writes {
		all = append(all, exec(w))
	}
	t.wrote = t.wrote || len(t.writes) > 0
	t.writes = nil
	return t.ses.run(t.ctx, append(all, st...)...)
}

// more extends the cache.
func (t *tx) more() error {
	after, limit := int64(0), firstClaims
	if n := len(t.claims); t.loaded {
		limit = moreClaims
		if n > 0 {
			after = t.claims[n-1].Seq
		}
	}
	before := len(t.claims)
	if err := t.ask(t.read(after, limit)); err != nil {
		return err
	}
	t.loaded, t.complete = true, len(t.claims)-before < limit
	return nil
}

func (t *tx) Claims(_ string, after int64, limit int) ([]sqlstore.Claim, error) {
	for {
		if n := len(t.claims); !t.complete && t.loaded && n > 0 && after > t.claims[n-1].Seq {
			return t.query(words("seq>", integer(after), " ORDER BY seq LIMIT ", integer(int64(limit)))) // a position deep in the queue
		}
		if rest := t.claims[t.index(after+1):]; t.complete || len(rest) >= limit {
			return slices.Clone(rest[:min(limit, len(rest))]), nil
		}
		if err := t.more(); err != nil {
			return nil, err
		}
	}
}

// query reads claims past the cache.
func (t *tx) query(where string) (all []sqlstore.Claim, err error) {
	err = t.ask(statement{
		words("SELECT ", claimColumns, " FROM baton_claim WHERE k=", literal(t.key), " AND ", where),
		func(r *sql.Rows) error {
			var c sqlstore.Claim
			err := r.Scan(claimFields(&c)...)
			all = append(all, c)
			return err
		},
	})
	return all, err
}

func (t *tx) ClaimByID(_, id string) (sqlstore.Claim, bool, error) {
	for _, c := range slices.Backward(t.claims) {
		if c.ID == id {
			return c, true, nil
		}
	}
	if t.complete || t.fresh {
		return sqlstore.Claim{}, false, nil
	}
	all, err := t.query(words("id=", literal(id), " ORDER BY seq DESC LIMIT 1"))
	if err != nil || len(all) == 0 {
		return sqlstore.Claim{}, false, err
	}
	return all[0], true, nil
}

func (t *tx) cached(seq int64) (int, bool) {
	i := slices.IndexFunc(t.claims, func(c sqlstore.Claim) bool { return c.Seq == seq })
	return i, i >= 0
}

// index is the place of a claim in the cache, if it were there.
func (t *tx) index(seq int64) int {
	i, _ := slices.BinarySearchFunc(t.claims, seq, func(c sqlstore.Claim, seq int64) int { return cmp.Compare(c.Seq, seq) })
	return i
}

// InsertClaim implements sqlstore.Tx. Move inserts a claim again before later ones, where
// a walk must find it.
func (t *tx) InsertClaim(_ string, c sqlstore.Claim) error {
	if i := t.index(c.Seq); t.complete || i < len(t.claims) {
		t.claims = slices.Insert(t.claims, i, c)
	}
	t.writes = append(t.writes, words("INSERT INTO baton_claim (k,seq,id,owner,weight,cap,held,ttl,since,ends) VALUES (", literal(t.key), ",",
		integer(c.Seq), ",", literal(c.ID), ",", literal(c.Owner), ",", integer(c.Weight), ",", integer(c.Capacity), ",",
		bit(c.Held), ",", integer(c.TTL), ",", stamp(c.Since), ",", t.end(c.Ends), ")"))
	return nil
}

// end is when a claim ends, counted from the write. The transaction of a distant client
// takes long. Until it writes a waiter's row, the waiter may renew its position, and then
// relies on a grant that lasts for ClaimTTL from that renewal.
func (t *tx) end(ends int64) string {
	if left := ends - t.now; left > 0 {
		return words("UTC_TIMESTAMP(6)+INTERVAL ", integer(left), " MICROSECOND")
	}
	return stamp(ends)
}

// lockClaims locks the rows of the positions, so that no renewal is under way, and reads
// the clock again.
func (t *tx) lockClaims(positions []sqlstore.Position) error {
	if _, _, err := t.LockKey(t.key); err != nil {
		return err
	}
	var seqs list
	for _, p := range positions {
		if p.Seq > 0 && t.row.Busy {
			seqs.add(integer(p.Seq))
		}
	}
	if seqs.text == nil {
		return nil
	}
	t.exact = true
	return t.ask(
		statement{
			words("SELECT seq FROM baton_claim WHERE k=", literal(t.key), " AND seq IN (", seqs.String(), ") FOR UPDATE"),
			func(r *sql.Rows) error { return r.Scan(new(int64)) },
		},
		statement{"SELECT " + micros, func(r *sql.Rows) error { return r.Scan(&t.now) }})
}

// UpdateClaim implements sqlstore.Tx. It does not shorten a holder's end, which a renewal
// may have promised meanwhile. It may shorten the end of a waiter that becomes a holder.
func (t *tx) UpdateClaim(_ string, c sqlstore.Claim) error {
	if i, ok := t.cached(c.Seq); ok {
		t.claims[i] = c
	}
	held, ends := bit(c.Held), t.end(c.Ends)
	end := ends
	if !t.exact {
		end = words("IF(held=", held, ",GREATEST(ends,", ends, "),", ends, ")")
	}
	t.writes = append(t.writes, words("UPDATE baton_claim SET ends=", end, ",held=", held,
		",weight=", integer(c.Weight), ",ttl=", integer(c.TTL), ",since=", stamp(c.Since), t.where(c.Seq)))
	return nil
}

func (t *tx) RenameClaim(_ string, c sqlstore.Claim) error {
	if i, ok := t.cached(c.Seq); ok {
		t.claims[i].Owner = c.Owner
	}
	t.writes = append(t.writes, words("UPDATE baton_claim SET owner=", literal(c.Owner), t.where(c.Seq)))
	return nil
}

func (t *tx) DeleteClaim(_ string, seq int64) error {
	t.forget(seq)
	t.writes = append(t.writes, "DELETE FROM baton_claim"+t.where(seq))
	return nil
}

func (t *tx) where(seq int64) string {
	return words(" WHERE k=", literal(t.key), " AND seq=", integer(seq))
}

// forget drops a claim from the cache, and a grant of it in this transaction.
func (t *tx) forget(seq int64) {
	if i, ok := t.cached(seq); ok {
		t.claims = slices.Delete(t.claims, i, i+1)
	}
	t.fx.Granted = slices.DeleteFunc(t.fx.Granted, func(g sqlstore.Granted) bool { return g.Token == seq })
}

// DeleteDead implements sqlstore.Tx. The first call deletes all claims that look expired
// and asks which were not: a renewal may have come meanwhile.
func (t *tx) DeleteDead(_ string, seq int64) (bool, error) {
	if dead, known := t.outcome[seq]; known {
		return dead, nil
	}
	if t.outcome == nil {
		t.outcome = make(map[int64]bool)
	}
	list := integer(seq)
	t.outcome[seq] = true
	for _, c := range t.claims {
		if _, known := t.outcome[c.Seq]; !known && c.Ends <= t.now {
			t.outcome[c.Seq] = true
			list += "," + integer(c.Seq)
		}
	}
	in := words(" FROM baton_claim WHERE k=", literal(t.key), " AND seq IN (", list, ")")
	alive := make(map[int64]sqlstore.Claim)
	t.wrote = true
	err := t.ask(exec("DELETE"+in+" AND ends<=UTC_TIMESTAMP(6) AND "+onward), statement{"SELECT " + claimColumns + in, func(r *sql.Rows) error {
		var c sqlstore.Claim
		err := r.Scan(claimFields(&c)...)
		t.outcome[c.Seq], alive[c.Seq] = false, c
		return err
	}})
	if err != nil {
		return false, err
	}
	t.claims = slices.DeleteFunc(t.claims, func(c sqlstore.Claim) bool { return t.outcome[c.Seq] })
	for i, c := range t.claims {
		if now, ok := alive[c.Seq]; ok {
			t.claims[i] = now
		}
	}
	return t.outcome[seq], nil
}

func (t *tx) CountWaiting(string) (n int, err error) {
	if t.complete {
		for _, c := range t.claims {
			if !c.Held && c.Ends > t.now {
				n++
			}
		}
		return n, nil
	}
	err = t.ask(statement{
		words("SELECT COUNT(*) FROM baton_claim WHERE k=", literal(t.key), " AND held=0 AND ends>UTC_TIMESTAMP(6)"),
		func(r *sql.Rows) error { return r.Scan(&n) },
	})
	return n, err
}

// commit sends the pending writes and commits, in one round trip. unsure says that it may
// have been committed in spite of the error, with changes.
func (t *tx) commit() (unsure bool, err error) {
	if !t.locked {
		return false, nil
	}
	var all []statement
	if t.saved {
		all = append(all, exec(t.keyStatement()))
	}
	changes := t.saved || t.wrote || len(t.writes) > 0
	if t.idle && t.row.Busy {
		// Claims of a key whose row was deleted must not become valid again.
		all = append(all, exec("DELETE FROM baton_claim WHERE k="+literal(t.key)))
	}
	for _, w := range t.writes {
		all = append(all, exec(w))
	}
	unsure, err = t.ses.commit(t.ctx, all...)
	return unsure && changes, err
}

func (t *tx) keyStatement() string {
	k := t.row
	if k.ID == "" {
		k.Ends = 0 // see fastRelease
	}
	if t.stored {
		return words("UPDATE baton_lock SET last=", integer(k.Last), ",busy=", bit(k.Busy), ",token=", integer(k.Token), ",weight=", integer(k.Weight),
			",id=", literal(k.ID), ",owner=", literal(k.Owner), ",since=", stamp(k.Since), ",ends=", stamp(k.Ends), " WHERE k=", literal(t.key))
	}
	return words("INSERT INTO baton_lock (k,last,busy,token,weight,id,owner,since,ends) VALUES (", literal(t.key), ",", integer(k.Last), ",", bit(k.Busy), ",",
		integer(k.Token), ",", integer(k.Weight), ",", literal(k.ID), ",", literal(k.Owner), ",", stamp(k.Since), ",", stamp(k.Ends), ")")
}
