package pgstore

import (
	"context"
	"runtime"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/batonhq/baton/driver"
)

const keySQL = `SELECT baton_key_1($1::bytea, $2::text[], $3::bigint[], $4::text[], $5::text[], $6::bigint[], $7::text)`

// shareKey serves o together with what else this process wants of a contended key. One
// statement for the key is under way at a time: alone, each would wait for the other ones
// on the key's row. What comes meanwhile goes with the next: mostly the release of the
// claim that was just granted and the new position of the caller that released. It is
// not a batch.Batcher because an operation that is taken too late withdraws and goes
// alone, and for the second reason of batcher.
func (c *batcher) shareKey(ctx context.Context, o *operation, alone func() error) error {
	if o.ttl > 0 && !o.queue || o.ttl == 0 && o.claim.Ticket == 0 {
		return alone()
	}
	key := o.claim.Key
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return alone()
	}
	q := c.keys[key]
	if q == nil {
		q = new(queue)
		c.keys[key] = q
		c.running.Go(func() { c.serveKey(key, q) })
	}
	q.add(o)
	c.mu.Unlock()
	patience := time.NewTimer(c.store.patience)
	defer patience.Stop()
	for answered := false; !answered; {
		select {
		case <-o.done:
			answered = true
		case <-ctx.Done():
			if err := c.leave(ctx, o); err != nil {
				return err
			}
			answered = true
		case <-patience.C: // the connection of the statement before may be dead
			if c.withdraw(o) {
				return alone()
			}
		}
	}
	if o.served || o.err != nil {
		return o.err
	}
	return alone()
}

// withdraw takes o out of its queue and reports whether it was there.
func (c *batcher) withdraw(o *operation) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(o.in.all)
	o.in.remove(o)
	return len(o.in.all) < n
}

// serveKey sends what waits for a key until nothing does.
func (c *batcher) serveKey(key string, q *queue) {
	for {
		// Callers that the last answer has woken mostly come now.
		for range 3 {
			runtime.Gosched()
		}
		c.mu.Lock()
		if len(q.all) == 0 {
			delete(c.keys, key)
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		c.serve(q, func(ctx context.Context, conn *pgxpool.Conn, all []*operation) error {
			return c.sendKey(ctx, conn, key, all)
		})
	}
}

// sendKey sends the operations on one key in one statement and notes which it served.
func (c *batcher) sendKey(ctx context.Context, conn *pgxpool.Conn, key string, all []*operation) error {
	var ends, queued []*operation
	endIDs, tickets := make([]string, 0, len(all)), make([]int64, 0, len(all))
	ids, owners, ttls := make([]string, 0, len(all)), make([]string, 0, len(all)), make([]int64, 0, len(all))
	for _, o := range all {
		if o.ttl == 0 {
			ends = append(ends, o)
			endIDs, tickets = append(endIDs, o.claim.ID), append(tickets, o.claim.Ticket)
			continue
		}
		queued = append(queued, o)
		ids, owners, ttls = append(ids, o.claim.ID), append(owners, o.claim.Owner), append(ttls, o.ttl.Microseconds())
	}
	var text string
	err := c.store.askWith(ctx, conn, keySQL, []any{[]byte(key), endIDs, tickets, ids, owners, ttls, c.store.hints.node}, oneRow(&text))
	if err != nil || text == "" {
		return err
	}
	numbers, rest, _ := strings.Cut(text, "\n")
	ended, granted, _ := strings.Cut(rest, "\n")
	n := strings.Fields(numbers) // busy, first ticket, ticket of the head, when it is to ask again
	first, head, again := number(n[1]), number(n[2]), number(n[3])
	c.hot.Set(key, n[0] == "t")
	for i, o := range queued {
		o.served = true
		o.grant = driver.Grant{Waiting: true, Ticket: first + int64(i), TTL: driver.WaiterTTL}
		if o.grant.Ticket == head {
			o.grant.Again = micros(again)
		}
	}
	for _, f := range fields(granted) {
		ticket := number(f[2])
		if i := ticket - first; len(queued) > 0 && i >= 0 {
			queued[i].grant = driver.Grant{Token: ticket, Ticket: ticket, TTL: queued[i].ttl}
			continue
		}
		c.store.hints.send(f[0], key, f[1], grantOf(ticket, number(f[3])))
	}
	for line := range strings.FieldsSeq(ended) {
		ends[number(line)-1].served = true
	}
	return nil
}
