package mysqlstore

import (
	"encoding/hex"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/batonhq/baton/internal/sqlstore"
)

// micros is the server's clock in microseconds since 1970, when the statement began. All
// statements use UTC_TIMESTAMP(6): it is the same in all sessions and throughout a
// statement. A statement that waits for a row has too early a time, which is safe for
// expiry, unless the clock is set back meanwhile: see onward.
const micros = `TIMESTAMPDIFF(MICROSECOND,TIMESTAMP'1970-01-01 00:00:00',UTC_TIMESTAMP(6))`

// onward is false if the clock was set back since the statement began, so that what had
// expired then may be valid now. It is for statements that wait for a row and end its
// claim. SYSDATE is the time of its evaluation, after the row is locked. Both are in the
// session's time zone; if that jumps back, too, only the effect of one statement is lost.
// With the server's option sysdate-is-now it is always true.
const onward = `SYSDATE(6)>=NOW(6)`

// afterwards is micros at the time of its evaluation for a row, instead of the
// statement's beginning.
const afterwards = micros + "+" + elapsed

// elapsed is how long a statement has run. If the session's time zone jumps meanwhile, it
// is wrong by as much, once.
const elapsed = `TIMESTAMPDIFF(MICROSECOND,NOW(6),SYSDATE(6))`

const (
	keyColumns = `last,busy,token,weight,id,owner,TIMESTAMPDIFF(MICROSECOND,'1970-01-01',since),` +
		`TIMESTAMPDIFF(MICROSECOND,'1970-01-01',ends)`
	claimColumns = `seq,id,owner,weight,cap,held,ttl,TIMESTAMPDIFF(MICROSECOND,'1970-01-01',since),` +
		`TIMESTAMPDIFF(MICROSECOND,'1970-01-01',ends)`
)

func keyFields(k *sqlstore.Key) []any {
	return []any{&k.Last, &k.Busy, &k.Token, &k.Weight, &k.ID, &k.Owner, &k.Since, &k.Ends}
}

func claimFields(c *sqlstore.Claim) []any {
	return []any{&c.Seq, &c.ID, &c.Owner, &c.Weight, &c.Capacity, &c.Held, &c.TTL, &c.Since, &c.Ends}
}

func literal(s string) string { return "X'" + hex.EncodeToString([]byte(s)) + "'" }

func stamp(us int64) string {
	return time.UnixMicro(us).UTC().Format("TIMESTAMP'2006-01-02 15:04:05.000000'")
}

func integer(n int64) string { return strconv.FormatInt(n, 10) }

func bit(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

const (
	// maxList is the greatest number of rows in one statement. Longer lists make some
	// servers read the whole table.
	maxList = 500

	// maxText bounds a list by the length of its keys, so that a statement fits into the
	// smallest usual packet, 1 MB.
	maxText = 200 << 10
)

// chunks cuts a list into parts for one statement each.
func chunks[T any](all []T, key func(T) string) iter.Seq[[]T] {
	return func(yield func([]T) bool) {
		for len(all) > 0 {
			n, size := 0, 0
			for n < len(all) && n < maxList && (n == 0 || size < maxText) {
				size += 2*len(key(all[n])) + 40
				n++
			}
			if !yield(all[:n]) {
				return
			}
			all = all[n:]
		}
	}
}

func words(parts ...string) string { return strings.Join(parts, "") }
