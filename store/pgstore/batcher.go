package pgstore

import (
	"context"
	"errors"
	"math"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/batch"
	"github.com/batonhq/baton/internal/contended"
)

const manySQL = `SELECT baton_many_1($1::bytea[], $2::text[], $3::bytea[], $4::text[], $5::text[], $6::bigint[], $7::text)`

// batcher sends the acquires and releases of many goroutines in few statements when there
// are more of them than connections. The first operation of a statement and commit costs
// the server several times what each further one does.
//
// It merges exclusive claims of uncontended keys, in a statement that waits for no row;
// contended keys have statements of their own: see sendKey. An operation that a statement
// does not answer goes alone. Waiting operations are taken only when a connection is
// free.
type batcher struct {
	store *Store
	many  *batch.Batcher[*operation] // for uncontended keys
	keys  *batch.Batcher[*operation] // for contended keys
	end   context.CancelFunc         // ends all merged statements
	hot   contended.Keys
}

// maxMerged bounds how long a statement delays the waiting operations.
const maxMerged = 64

// operation is an acquire or a release that may be merged with others.
type operation struct {
	batch.Item
	claim driver.Claim
	ttl   time.Duration // 0 for a release
	queue bool          // the acquire wants a position
	alone func() error  // does the operation by itself

	served bool
	grant  driver.Grant
	err    error
}

func (c *batcher) init(s *Store) {
	ctx, cancel := context.WithCancel(context.Background())
	c.store, c.end = s, cancel
	c.many = batch.New(batch.Config[*operation]{
		Direct: true, Max: maxMerged, InFlight: int(s.pool.Config().MaxConns), Context: ctx, Grace: s.patience,
		Begin: c.begin(c.sendLocks),
		Send: func(_ context.Context, all []*operation) {
			o := all[0]
			o.err = o.alone()
			o.served = o.err == nil
		},
	})
	// One statement for a key is under way at a time: alone, each would wait for the
	// others at the key's row. Later operations share the next statement: usually the
	// release of the claim that was just granted, and the new position of the caller that
	// released. An operation that waits too long goes alone, because the connection of
	// the statement under way may be dead.
	c.keys = batch.New(batch.Config[*operation]{
		Max: maxMerged, InFlight: math.MaxInt, Context: ctx, Grace: s.patience, Patience: s.patience, Yield: true,
		Begin: c.begin(c.sendKey),
		Keys: func(o *operation) []batch.Key {
			return []batch.Key{{Name: o.claim.Key, Rule: batch.Serial | batch.Order}}
		},
		Kind: func(o *operation) any { return o.claim.Key },
	})
}

func (c *batcher) begin(send func(context.Context, *pgxpool.Conn, []*operation) error) func(context.Context) (func(context.Context, []*operation), error) {
	return func(ctx context.Context) (func(context.Context, []*operation), error) {
		conn, err := c.store.connect(ctx, c.store.pool)
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context, all []*operation) {
			if len(all) == 0 {
				giveBack(conn)
				return
			}
			err := send(ctx, conn, all)
			for _, o := range all {
				if !o.served {
					o.err = err
				}
			}
		}, nil
	}
}

func (c *batcher) close() {
	c.many.Close()
	c.keys.Close()
	c.end()
}

// do does o with other operations, or alone.
func (c *batcher) do(ctx context.Context, o *operation) error {
	o.Item = batch.NewItem()
	by := c.many
	if c.hot.Has(o.claim.Key) {
		if o.ttl > 0 && !o.queue || o.ttl == 0 && o.claim.Ticket == 0 {
			return o.alone()
		}
		by = c.keys
	}
	if err := by.Do(ctx, o); err != nil && err != batch.ErrImpatient {
		return err
	}
	if o.served || o.err != nil {
		return o.err
	}
	if by == c.many {
		c.hot.Set(o.claim.Key, true)
	}
	return o.alone()
}

// sendLocks sends the operations in one statement and marks those that were done. It
// returns nil for a harmless error: each operation then goes alone.
func (c *batcher) sendLocks(ctx context.Context, conn *pgxpool.Conn, all []*operation) error {
	var ends, grants []*operation
	var endKeys, keys [][]byte
	var endIDs, ids, owners []string
	var ttls []int64
	for _, o := range all {
		if o.ttl == 0 {
			ends = append(ends, o)
			endKeys, endIDs = append(endKeys, []byte(o.claim.Key)), append(endIDs, o.claim.ID)
			continue
		}
		grants = append(grants, o)
		keys, ids = append(keys, []byte(o.claim.Key)), append(ids, o.claim.ID)
		owners, ttls = append(owners, o.claim.Owner), append(ttls, o.ttl.Microseconds())
	}
	var text string
	err := c.store.askWith(ctx, conn, manySQL, []any{endKeys, endIDs, keys, ids, owners, ttls, c.store.hints.node}, oneRow(&text))
	if errors.Is(err, driver.ErrUnavailable) && !errors.As(err, new(*SchemaError)) {
		return nil
	} else if err != nil {
		return err
	}
	ended, granted, _ := strings.Cut(text, "\n\n")
	for line := range strings.FieldsSeq(ended) {
		ends[number(line)-1].served = true
	}
	for line := range strings.Lines(granted) {
		if i, token, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " "); ok {
			o := grants[number(i)-1]
			o.served, o.grant = true, driver.Grant{Token: number(token), Ticket: number(token), TTL: o.ttl}
		}
	}
	return nil
}
