package redisstore

import (
	"context"
	"errors"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

// batch is the number of claims in one script call: enough that the call itself costs
// little, few enough to occupy the server for a fraction of a millisecond.
const batch = 200

// chunk is one call and its claims.
type chunk struct {
	call   wire.Call
	claims []int
}

// Renew implements driver.Locks. One command renews up to 200 exclusive holders, other
// holders, or other claims; in Cluster those of one slot. All commands share a round
// trip. An exclusive lock that seems lost costs another round trip, because a request
// whose answer was lost may have downgraded it.
func (s *Store) Renew(ctx context.Context, claims []driver.Claim, ttl time.Duration) []driver.Renewal {
	out := make([]driver.Renewal, len(claims))
	ask := make([]int, 0, len(claims))
	for i, c := range claims {
		if err := errors.Join(check.Claim(c), check.TTL(c.Key, ttl, traits)); err != nil {
			out[i].Err = err
		} else if _, err := s.names.of(c.Key); err != nil {
			out[i].Err = err
		} else {
			ask = append(ask, i)
		}
	}
	ttl = ttl.Truncate(time.Millisecond)
	again := s.renew(ctx, claims, ask, func(c driver.Claim) *wire.Script {
		switch {
		case !knownHeld(c):
			return refreshScript
		case c.Exclusive():
			return renewScript
		}
		return renewHeldScript
	}, ttl, out)
	s.renew(ctx, claims, again, func(driver.Claim) *wire.Script { return renewHeldScript }, ttl, out)
	return out
}

// renew renews some claims, each by the script that by chooses, and sets their answers.
// It returns those that the script renew did not find.
func (s *Store) renew(ctx context.Context, claims []driver.Claim, ask []int, by func(driver.Claim) *wire.Script, ttl time.Duration, out []driver.Renewal) (lost []int) {
	chunks := s.chunks(claims, ask, by, ttl)
	if len(chunks) == 0 {
		return nil
	}
	calls := make([]wire.Call, len(chunks))
	for i, c := range chunks {
		calls[i] = c.call
		calls[i].Acks = s.replicas.ask(ttl)
	}
	for i, r := range s.runAll(ctx, calls) {
		c := chunks[i]
		answers := list(r.Value)
		if r.Err == nil && len(answers) != len(c.claims) {
			r.Err = strange(c.call.Script, r.Value)
		}
		var missing error
		if r.Err == nil {
			missing = s.replicas.missing(calls[i].Acks, claims[c.claims[0]].Key)
		}
		for n, at := range c.claims {
			switch {
			case r.Err != nil:
				out[at].Err = r.Err
			case c.call.Script != renewScript:
				out[at] = s.refreshed(c.call.Script, answers[n], ttl)
				if !knownHeld(claims[at]) && out[at].State == driver.Held {
					s.pushes.waits(claims[at].ID, false)
					s.pushes.missed.Add(1)
				}
				if missing != nil && out[at].State != driver.Waiting {
					out[at] = driver.Renewal{Err: missing}
				}
			case missing != nil:
				// Likewise for a lock that a server does not know which may not be the
				// primary.
				out[at].Err = missing
			case number(answers[n]) == 1:
				out[at] = driver.Renewal{State: driver.Held, Grant: grant(-claims[at].Ticket, ttl)}
			default:
				lost = append(lost, at)
			}
		}
	}
	return lost
}

// chunks divides legal claims into calls.
func (s *Store) chunks(claims []driver.Claim, ask []int, by func(driver.Claim) *wire.Script, ttl time.Duration) []*chunk {
	type kind struct {
		script *wire.Script
		slot   uint16
	}
	var chunks []*chunk
	open := map[kind]*chunk{}
	for _, i := range ask {
		c := claims[i]
		n, _ := s.names.of(c.Key) // legal: Renew has checked it
		k := kind{script: by(c)}
		if s.names.cluster && !s.names.fixed {
			k.slot = slot(n.lock)
		}
		b := open[k]
		if b == nil || len(b.claims) == batch {
			b = &chunk{call: wire.Call{Script: k.script, Args: []string{millis(ttl)}}}
			if k.script == refreshScript {
				b.call.Keys = []string{n.counter, n.high}
			}
			open[k] = b
			chunks = append(chunks, b)
		}
		b.claims = append(b.claims, i)
		switch k.script {
		case renewScript:
			b.call.Keys = append(b.call.Keys, n.lock)
			b.call.Args = append(b.call.Args, value(c.ID)+tokenArg(c)+":")
		case renewHeldScript:
			b.call.Keys = append(b.call.Keys, n.lock, n.shared(), n.info())
			b.call.Args = append(b.call.Args, c.ID, tokenArg(c))
		default:
			b.call.Keys = append(b.call.Keys, n.lock, n.queue(), n.waiters(), n.shared(), n.info())
			b.call.Args = append(b.call.Args, c.ID, s.entry(c, ttl))
		}
	}
	return chunks
}

// refreshed parses one answer of the scripts refresh and renew_held.
func (s *Store) refreshed(by *wire.Script, answer any, ttl time.Duration) driver.Renewal {
	a := list(answer)
	if len(a) > 0 {
		switch code := number(a[0]); {
		case code == 0:
			return driver.Renewal{State: driver.Lost}
		case code == 1 && len(a) > 1:
			return driver.Renewal{State: driver.Held, Grant: grant(number(a[1]), ttl)}
		case code == 2:
			return driver.Renewal{State: driver.Waiting, Grant: s.waiting(a)}
		case code == 6 && len(a) > 1:
			return driver.Renewal{Err: failure(&wire.ServerError{Text: text(a[1])})}
		}
	}
	return driver.Renewal{Err: strange(by, answer)}
}
