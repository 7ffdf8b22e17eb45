package mysqlstore

import (
	"context"
	"database/sql"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/sqlstore"
)

// alone looks at maxAlone keys of a batch at a time, for at most an eighth of the TTL, or
// minAlone.
const (
	maxAlone = 4
	minAlone = 250 * time.Millisecond
)

// Renew implements driver.Locks, in two round trips for every 500 claims. Claims that are
// not known to wait have connections of their own. Renew skips rows that another
// transaction has locked. It looks at these keys alone, and at keys whose waiters may
// have to be granted.
func (s *Store) Renew(ctx context.Context, claims []driver.Claim, ttl time.Duration) []driver.Renewal {
	return s.watchers.Renew(ctx, claims, ttl, s.renewal, s.confirm)
}

// renewWith returns the send function of a sqlstore.Renewals.
func (s *Store) renewWith(pool *sql.DB) func(context.Context, []driver.Claim, time.Duration) []driver.Renewal {
	return func(ctx context.Context, claims []driver.Claim, ttl time.Duration) []driver.Renewal {
		answers := make([]driver.Renewal, 0, len(claims))
		for part := range chunks(claims, func(c driver.Claim) string { return c.Key }) {
			answers = append(answers, s.renewPart(ctx, pool, part, ttl)...)
		}
		return answers
	}
}

func (s *Store) renewPart(ctx context.Context, pool *sql.DB, claims []driver.Claim, ttl time.Duration) []driver.Renewal {
	b := sqlstore.NewBatch(claims, ttl, traits)
	if !b.Legal() {
		return b.Done()
	}
	if err := s.ready(ctx); err != nil {
		return b.Failed(driver.Renewal{Err: err})
	}
	r := &renewal{s: s, pool: pool, b: b, positions: b.Left(), ttl: ttl, look: make(map[string]bool), waiting: make(map[string]sqlstore.Position)}
	var err error
	for range maxTries {
		b.Reset()
		if err = r.together(ctx); !undone(err) {
			break
		}
	}
	if err != nil {
		if ctx.Err() != nil {
			err = joinUnknown(ctx)
		} else {
			err = s.failure(err, uncertain(err))
		}
		return b.Failed(driver.Renewal{Err: err})
	}
	for _, p := range b.Left() {
		r.look[p.Key] = true
	}
	answers := b.Done() // the others count as lost, until alone finds them
	if len(r.look) > 0 {
		r.alone(ctx, claims, answers)
	}
	return answers
}

// renewal is a part of a batch.
type renewal struct {
	s         *Store
	pool      *sql.DB
	b         *sqlstore.Batch
	positions []sqlstore.Position
	ttl       time.Duration

	waiting map[string]sqlstore.Position // the first position of each key
	look    map[string]bool              // keys for alone
}

// together renews all rows that no other transaction has locked. It asks for the claims
// first: a claim never moves to the table of locks, but may be granted meanwhile. It
// never waits for a row, so it cannot deadlock.
func (r *renewal) together(ctx context.Context) error {
	ses, err := r.s.sessionOf(ctx, r.pool)
	if err != nil {
		return err
	}
	defer ses.close()

	type id struct{ key, id string }
	asked := make(map[id]bool, len(r.positions))
	var seqs, claims pairs
	var keys, locks list
	for _, p := range r.positions {
		asked[id{p.Key, p.ID}] = true
		if p.Seq > 0 {
			seqs.add(p.Key, p.Seq)
		}
		keys.add(literal(p.Key))
	}
	first := ses.beginning()
	if seqs.any() {
		first = append(first, statement{
			words("SELECT k,id,seq,held FROM baton_claim FORCE INDEX (PRIMARY) WHERE ", seqs.are(), " AND ends>UTC_TIMESTAMP(6) ",
				"AND EXISTS (SELECT 1 FROM baton_lock l WHERE l.k=baton_claim.k AND l.busy=1) FOR UPDATE SKIP LOCKED"),
			func(rows *sql.Rows) error {
				var p sqlstore.Position
				var held bool
				if err := rows.Scan(&p.Key, &p.ID, &p.Seq, &held); err != nil || !asked[id{p.Key, p.ID}] {
					return err
				}
				claims.add(p.Key, p.Seq)
				if held {
					r.b.Held(p.ID, p.Key, p.Seq)
					return nil
				}
				r.b.Waiting(p.ID, p.Key, driver.Grant{Waiting: true, Ticket: p.Seq, TTL: driver.WaiterTTL})
				if w, ok := r.waiting[p.Key]; !ok || p.Seq < w.Seq {
					r.waiting[p.Key] = p
				}
				return nil
			},
		})
	}
	first = append(first, statement{
		words("SELECT k,id,token FROM baton_lock FORCE INDEX (PRIMARY) WHERE k IN (", keys.String(), ") AND id<>'' AND ends>UTC_TIMESTAMP(6) FOR UPDATE SKIP LOCKED"),
		func(rows *sql.Rows) error {
			var key, holder string
			var token int64
			if err := rows.Scan(&key, &holder, &token); err != nil || !asked[id{key, holder}] {
				return err
			}
			locks.add(literal(key))
			r.b.Held(holder, key, token)
			return nil
		},
	})
	if err := ses.run(ctx, first...); err != nil {
		return err
	}

	// The rows are locked, so these statements do not wait, and the clock that they read
	// is right.
	var second []statement
	us := integer(r.ttl.Microseconds())
	if claims.any() {
		second = append(second, exec(words("UPDATE baton_claim FORCE INDEX (PRIMARY) SET ends=UTC_TIMESTAMP(6)+INTERVAL IF(held=1,", us, ",",
			integer(driver.WaiterTTL.Microseconds()), ") MICROSECOND,ttl=", us, " WHERE ", claims.are())))
	}
	if locks.text != nil {
		second = append(second, exec(words("UPDATE baton_lock FORCE INDEX (PRIMARY) SET ends=UTC_TIMESTAMP(6)+INTERVAL ", us, " MICROSECOND WHERE k IN (",
			locks.String(), ")")))
	}
	second = append(second, exec(toCommit), exec(restore))
	if len(r.waiting) > 0 {
		second = append(second, r.heads())
	}
	if err := ses.run(ctx, second...); err != nil {
		return err
	}
	ses.done()
	return nil
}

// heads asks, for the keys with waiters, when their holders expire. After one exclusive
// holder no waiter can be granted. Other keys need a walk through the claims.
func (r *renewal) heads() statement {
	var keys list
	for key := range r.waiting {
		keys.add(literal(key))
		r.look[key] = true
	}
	left := "TIMESTAMPDIFF(MICROSECOND,UTC_TIMESTAMP(6),"
	return statement{
		words("SELECT l.k,IF(l.id<>'',", left, "l.ends),0),l.weight,c.held,", left, "c.ends),c.weight FROM baton_lock l JOIN baton_claim c ON c.k=l.k AND ",
			"c.seq=(SELECT f.seq FROM baton_claim f WHERE f.k=l.k ORDER BY f.seq LIMIT 1) WHERE l.k IN (", keys.String(), ")"),
		func(rows *sql.Rows) error {
			var key string
			var left, weight, claimLeft, claimWeight int64
			var held bool
			if err := rows.Scan(&key, &left, &weight, &held, &claimLeft, &claimWeight); err != nil {
				return err
			}
			if left <= 0 && held {
				left, weight = claimLeft, claimWeight
			}
			if left <= 0 || weight != driver.Whole {
				return nil
			}
			delete(r.look, key)
			p := r.waiting[key]
			if again := time.Duration(left)*time.Microsecond + time.Millisecond; again < driver.RefreshEvery {
				r.b.Waiting(p.ID, key, driver.Grant{Waiting: true, Ticket: p.Seq, TTL: driver.WaiterTTL, Again: again})
			}
			return nil
		},
	}
}

// alone looks at each key that is left in a transaction of its own, which waits for the
// row, and corrects the answers.
func (r *renewal) alone(ctx context.Context, claims []driver.Claim, answers []driver.Renewal) {
	at := make(map[string][]int)
	for i, c := range claims {
		if r.look[c.Key] && (answers[i].State == driver.Lost || answers[i].State == driver.Waiting) {
			at[c.Key] = append(at[c.Key], i)
		}
	}
	// A row that stays locked must not cost the other claims their leases.
	ctx, cancel := context.WithTimeout(ctx, max(minAlone, r.ttl/8))
	defer cancel()
	var wg sync.WaitGroup
	gate := make(chan struct{}, maxAlone)
	for key, positions := range at {
		gate <- struct{}{}
		wg.Go(func() {
			defer func() { <-gate }()
			some := make([]driver.Claim, len(positions))
			for n, i := range positions {
				some[n] = claims[i]
			}
			for n, a := range r.s.lookAt(ctx, key, some, r.ttl) {
				answers[positions[n]] = a
			}
		})
	}
	wg.Wait()
}

// lookAt renews claims of one key and grants its waiters that fit.
func (s *Store) lookAt(ctx context.Context, key string, claims []driver.Claim, ttl time.Duration) []driver.Renewal {
	us := ttl.Microseconds()
	b := sqlstore.NewBatch(claims, ttl, traits)
	err := s.do(ctx, key, false, func(t *tx) error {
		b.Reset()
		if err := t.lockClaims(b.Left()); err != nil {
			return err
		}
		var positions []sqlstore.Position
		for _, p := range b.Left() {
			at, waiting, err := sqlstore.Find(t, p, b, us)
			if err != nil {
				return err
			}
			if k := t.row; k.ID == p.ID && k.HeldAt(t.now) {
				// The fast path granted this holder.
				k.Ends = t.now + us
				if err := t.SaveKey(key, k, t.found); err != nil {
					return err
				}
				b.Held(p.ID, key, k.Token)
			} else if waiting {
				positions = append(positions, at)
			}
		}
		return sqlstore.Look(t, key, positions, b, us, &t.fx)
	})
	if err != nil {
		return b.Failed(driver.Renewal{Err: err})
	}
	return b.Done()
}

// list is the list in an IN.
type list struct{ text []byte }

func (l *list) add(parts ...string) {
	if l.text != nil {
		l.text = append(l.text, ',')
	}
	for _, p := range parts {
		l.text = append(l.text, p...)
	}
}

func (l *list) String() string { return string(l.text) }

// pairs are rows of baton_claim.
type pairs struct {
	all list
	one string // the condition for the first
	n   int
}

func (p *pairs) add(key string, seq int64) {
	k, n := literal(key), integer(seq)
	p.all.add("(", k, ",", n, ")")
	if p.n++; p.n == 1 {
		p.one = words("k=", k, " AND seq=", n)
	}
}

func (p *pairs) any() bool { return p.n > 0 }

// are is the condition. With a list of one, an UPDATE of MariaDB reads the whole table,
// and waits for each of its rows.
func (p *pairs) are() string {
	if p.n == 1 {
		return p.one
	}
	return words("(k,seq) IN (", p.all.String(), ")")
}
