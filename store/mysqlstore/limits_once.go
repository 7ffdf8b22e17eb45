package mysqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/rate"
	"github.com/batonhq/baton/internal/sqlstore"
)

// The server decides alone about what needs no list and no conversion: a bucket, or a
// fixed window. Package rate decides, too, by what the server has read. If the server was
// not certain and did not write, the request is made again in two round trips.

// alone returns the rules by which the server can decide about ops alone, if it can.
func (s limitRows) alone(ops []*sqlstore.LimitOp) (rules string, ok bool) {
	if len(ops) != 1 || !s.multi {
		return "", false
	}
	r := ops[0].Request
	if len(r.Takes) != 1 || r.Mode != limits.TakeIfAllowed || r.ID != "" || r.MaxWait != 0 || r.TurnWithin != 0 {
		return "", false
	}
	t := r.Takes[0]
	if t.Cost <= 0 || t.Cost > t.Limit.Capacity() {
		return "", false
	}
	now, keep := "c", "0"
	if r.Now != 0 {
		now, keep = integer(r.Now), integer(limits.ReplayTTL.Microseconds())
	}
	switch l := r.Limits[0].(type) {
	case *rate.Bucket:
		return bucketRules(l, t.Cost, now, keep), true
	case *rate.Window:
		if t.Limit.Algorithm == limits.FixedWindow && l.Windows[0] == 0 {
			return fixedRules(l, t.Cost, now, keep), true
		}
	}
	return "", false
}

// Both select s, e and c (the state, its end, the present) from a {row} of these, and w:
// 1 if the cost may certainly be taken; x: the new state; y: how long to keep it.

// bucketRules are Settle, Ask and Take of rate.Bucket.
func bucketRules(b *rate.Bucket, cost int64, now, keep string) string {
	us, frac := b.Time(cost)
	most, mostFrac := b.Time(b.Burst)
	tail := fmt.Sprintf(" %d %d %d", b.Tokens, b.Period, b.Burst)
	return fmt.Sprintf(`SELECT s,e,c,fit=1 AND (t-n<%[1]d OR t-n=%[1]d AND f<=%[2]d) AS w,CONCAT('3 ',t,' ',f,'%[3]s') AS x,GREATEST(t+(f>0)-n,%[4]s) AS y
	FROM (SELECT s,e,c,n,fit,t0+%[5]d+(f0+%[6]d>=%[7]d) AS t,(f0+%[6]d)%%%[7]d AS f
	FROM (SELECT s,e,c,n,fit AND f1<%[7]d AS fit,IF(t1>n OR t1=n AND f1>0,t1,n) AS t0,IF(t1>n OR t1=n AND f1>0,f1,0) AS f0
	FROM (SELECT s,e,c,n,fresh OR ours AS fit,IF(ours,CAST(SUBSTRING_INDEX(SUBSTRING_INDEX(s,' ',2),' ',-1) AS SIGNED),0) AS t1,
		IF(ours,CAST(SUBSTRING_INDEX(SUBSTRING_INDEX(s,' ',3),' ',-1) AS SIGNED),0) AS f1
	FROM (SELECT s,e,c,%[8]s AS n,e<=c AS fresh,e>c AND s REGEXP '^3 [0-9]{1,16} [0-9]{1,16}%[3]s$' AS ours
	FROM {row}) a) b) d) f`,
		most, mostFrac, tail, keep, us, frac, b.Tokens, now)
}

// fixedRules are Settle, Ask and Take of a fixed rate.Window.
func fixedRules(w *rate.Window, cost int64, now, keep string) string {
	return fmt.Sprintf(`SELECT s,e,c,fit=1 AND u<=%[1]d AS w,CONCAT('1 %[8]d ',t,' ',u) AS x,GREATEST(t-n,%[2]s) AS y
	FROM (SELECT s,e,c,n,t,fit AND (t1<=n OR t1=t) AS fit,IF(t1>n,u1,0)+%[3]d AS u
	FROM (SELECT s,e,c,n,fresh OR ours AS fit,n-((n-%[4]d)%%%[5]d+%[5]d)%%%[5]d+%[6]d AS t,
		IF(ours,CAST(SUBSTRING_INDEX(SUBSTRING_INDEX(s,' ',3),' ',-1) AS SIGNED),0) AS t1,IF(ours,CAST(SUBSTRING_INDEX(s,' ',-1) AS SIGNED),0) AS u1
	FROM (SELECT s,e,c,%[7]s AS n,e<=c AS fresh,e>c AND s REGEXP '^1 %[8]d [0-9]{1,16} [0-9]{1,16}$' AS ours
	FROM {row}) a) b) d`,
		w.Limit, keep, cost, w.Offset, w.Part, w.Life, now, w.Mark())
}

// attemptAlone makes the decision about one request in one round trip. done is false if
// it must be made in two. unsure is as in attemptLimits.
func (s limitRows) attemptAlone(ctx context.Context, o *sqlstore.LimitOp, rules string) (done, unsure bool, err error) {
	ses, err := s.session(ctx)
	if err != nil {
		return false, false, err
	}
	defer ses.close()
	key := o.Request.Takes[0].Key
	t := sqlstore.NewLimitTx(traits.Store)
	wrote, committing := false, false
	row := words("(SELECT state AS s,TIMESTAMPDIFF(MICROSECOND,'1970-01-01',ends) AS e,", micros, " AS c FROM baton_limit WHERE k=", literal(key), ") l")
	all := append(ses.beginning(),
		making([]string{key}), // locks it, so that the clock is read after that
		exec(words(strings.Replace(rules, "{row}", row, 1), " INTO @baton_s,@baton_e,@baton_c,@baton_w,@baton_x,@baton_y")),
		exec(words("UPDATE baton_limit SET state=@baton_x,ends=TIMESTAMP'1970-01-01 00:00:00'+INTERVAL @baton_c+@baton_y MICROSECOND WHERE @baton_w=1 AND k=", literal(key))),
		statement{"SELECT @baton_s,@baton_e,@baton_c,@baton_w=1", func(r *sql.Rows) error {
			var state string
			var row sqlstore.LimitRow
			if err := r.Scan(&state, &row.Ends, &t.Clock, &wrote); err != nil {
				return err
			}
			row.State = rate.Parse(state)
			t.Rows[key] = row
			committing = wrote
			return nil
		}},
		exec(toCommit), exec(restore))
	if err := ses.run(ctx, all...); err != nil {
		return false, mayBeDone(committing, err), err
	}
	ses.done()
	changed := t.Take(o)
	if changed && !wrote {
		return false, false, nil
	}
	if wrote {
		s.changed.Add(1)
	}
	return true, false, nil
}

// making locks the rows of the keys, which are sorted, and makes missing ones, so that
// two first requests for a key wait for each other.
func making(keys []string) statement {
	var missing list
	for _, key := range keys {
		missing.add(words("(", literal(key), ",'','1970-01-01')"))
	}
	return exec(words("INSERT INTO baton_limit (k,state,ends) VALUES ", missing.String(), " ON DUPLICATE KEY UPDATE ends=baton_limit.ends"))
}
