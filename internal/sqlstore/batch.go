package sqlstore

import (
	"strconv"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
)

// Batch assembles the answers of one Renew. A dialect renews claims and locks with as few
// statements as it can and reports their results; claims first if a claim can be made
// meanwhile. It then looks for the claims of Left one by one. A claim without a report is
// lost.
type Batch struct {
	claims  []driver.Claim
	ttl     time.Duration
	answers []driver.Renewal
	illegal map[int]error
	index   map[string][]int // of the legal claims, by ID; one claim may occur twice
}

// NewBatch begins a batch. It answers illegal claims at once.
func NewBatch(claims []driver.Claim, ttl time.Duration, t driver.Traits) *Batch {
	b := &Batch{claims: claims, ttl: ttl, answers: make([]driver.Renewal, len(claims)), index: make(map[string][]int, len(claims))}
	for i, c := range claims {
		err := check.Claim(c)
		if err == nil {
			err = check.TTL(c.Key, ttl, t)
		}
		if err != nil {
			if b.illegal == nil {
				b.illegal = make(map[int]error)
			}
			b.illegal[i] = err
			continue
		}
		b.index[c.ID] = append(b.index[c.ID], i)
	}
	return b
}

// Legal reports whether any claim is legal.
func (b *Batch) Legal() bool { return len(b.index) > 0 }

// Reset removes all answers, for a transaction that runs again.
func (b *Batch) Reset() { clear(b.answers) }

// Held: the claim holds the lock with the token.
func (b *Batch) Held(id, key string, token int64) {
	b.set(id, key, driver.Renewal{State: driver.Held, Grant: held(token, micros(b.ttl))})
}

// Waiting: the claim has a position.
func (b *Batch) Waiting(id, key string, g driver.Grant) {
	b.set(id, key, driver.Renewal{State: driver.Waiting, Grant: g})
}

// Unknown: the database has failed about the claim.
func (b *Batch) Unknown(id, key string, err error) {
	b.set(id, key, driver.Renewal{Err: err})
}

func (b *Batch) set(id, key string, r driver.Renewal) {
	for _, i := range b.index[id] {
		if b.claims[i].Key == key {
			b.answers[i] = r
		}
	}
}

// Left lists the legal claims without an answer, with their tickets.
func (b *Batch) Left() []Position {
	left := make([]Position, 0, len(b.claims))
	for i, c := range b.claims {
		if b.answers[i].State == driver.Unknown && b.answers[i].Err == nil && b.illegal[i] == nil {
			left = append(left, Position{Key: c.Key, ID: c.ID, Seq: c.Ticket})
		}
	}
	return left
}

// Done answers the other claims as lost and returns all answers.
func (b *Batch) Done() []driver.Renewal {
	for i := range b.answers {
		if err := b.illegal[i]; err != nil {
			b.answers[i] = driver.Renewal{Err: err}
		} else if b.answers[i].State == driver.Unknown && b.answers[i].Err == nil {
			b.answers[i].State = driver.Lost
		}
	}
	return b.answers
}

// Failed returns r for every legal claim. It may be called while an abandoned transaction
// still uses b.
func (b *Batch) Failed(r driver.Renewal) []driver.Renewal {
	out := make([]driver.Renewal, len(b.claims))
	for i := range out {
		if out[i] = r; b.illegal[i] != nil {
			out[i] = driver.Renewal{Err: b.illegal[i]}
		}
	}
	return out
}

// JSON lists positions as rows of [id, ticket, key], for dialects that take a list as
// JSON.
func JSON(positions []Position) string {
	out := make([]byte, 0, 64*len(positions)+2)
	out = append(out, '[')
	for i, p := range positions {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, '[')
		out = appendQuoted(out, p.ID)
		out = append(out, ',')
		out = strconv.AppendInt(out, p.Seq, 10)
		out = append(out, ',')
		out = appendQuoted(out, p.Key)
		out = append(out, ']')
	}
	return string(append(out, ']'))
}

// appendQuoted appends a string of UTF-8 without control characters, which package check
// ensures.
func appendQuoted(out []byte, s string) []byte {
	out = append(out, '"')
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			out = append(out, '\\')
		}
		out = append(out, s[i])
	}
	return append(out, '"')
}
