package pgstore

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/batonhq/baton/driver"
)

const keySQL = `SELECT baton_key_1($1::bytea, $2::text[], $3::bigint[], $4::text[], $5::text[], $6::bigint[], $7::text)`

// sendKey sends the operations on one key in one statement and marks those that were
// done.
func (c *batcher) sendKey(ctx context.Context, conn *pgxpool.Conn, all []*operation) error {
	key := all[0].claim.Key
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
	n := strings.Fields(numbers) // busy, first ticket, ticket of the head, when it must ask again
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
