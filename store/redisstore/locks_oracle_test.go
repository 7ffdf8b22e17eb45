package redisstore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/lockstate"
	"github.com/batonhq/baton/internal/testserver"
)

// The scripts do what the plain state machine does, in random histories without expiry:
// the holders, the waiters in their order, and the answer to every call.
func TestScriptsAgainstTheOracle(t *testing.T) {
	l := newLab(t, 3)
	for seed := range uint64(testserver.Rounds(150)) {
		if !l.history(seed) {
			return
		}
	}
}

// history plays one random history on two keys of its own.
func (l *lab) history(seed uint64) bool {
	random := rand.New(rand.NewPCG(seed, 15))
	first := fmt.Sprint("history ", seed)
	if seed%5 == 0 {
		first += "}{" // names of another form
	}
	keys := []string{first, first + ", less busy"}
	oracles := map[string]*lockstate.State{}
	for _, key := range keys {
		oracles[key] = lockstate.New(key, new(lockstate.Counter))
	}
	ctx := l.Context()
	begin := time.Now()
	var steps []string
	type actor struct {
		driver.Claim // with the store's ticket
	}
	var actors []*actor
	kinds := [][2]int64{{driver.Whole, driver.Whole}, {1, driver.Whole}, {1, driver.Whole}, {1, 3}, {2, 3}, {3, 3}, {1, 2}}

	for step := range 40 {
		// The oracle's clock stands still, so the history must be over before a
		// position is too old.
		if time.Since(begin) > driver.WaiterTTL/2 {
			return true
		}
		s := l.stores[random.IntN(len(l.stores))]
		var a *actor
		if len(actors) > 0 {
			a = actors[random.IntN(len(actors))]
		}
		key := first
		if a != nil {
			key = a.Key
		}
		oracle := oracles[key]
		var did, got, want string
		switch n := random.IntN(24); {
		case n < 8 || a == nil:
			if key = first; random.IntN(4) == 0 {
				key = keys[1]
			}
			oracle = oracles[key]
			kind := kinds[random.IntN(len(kinds))]
			a = &actor{claimOf(key, fmt.Sprint("actor ", step))}
			a.Weight, a.Capacity = kind[0], kind[1]
			// The queue's entry names the process that asks; other processes find it
			// all the same.
			r := driver.Request{Claim: a.Claim, TTL: time.Minute, Queue: random.IntN(4) > 0, MaxWaiting: random.IntN(4)}
			g, err := s.Acquire(ctx, r)
			expected, oracleErr := oracle.Acquire(0, r)
			a.Ticket = g.Ticket
			did = fmt.Sprintf("%s acquires %s, queue %v of at most %d", a.Owner, asked(a.Claim), r.Queue, r.MaxWaiting)
			got, want = outcome(g, err), outcome(expected, oracleErr)
			if err == nil {
				actors = append(actors, a)
			}
		case n < 10:
			r := driver.Request{Claim: a.Claim, TTL: time.Minute, Queue: true, Retry: true}
			if random.IntN(2) == 0 {
				r.Ticket = 0
			}
			g, err := s.Acquire(ctx, r)
			expected, oracleErr := oracle.Acquire(0, r)
			did = a.Owner + " acquires again"
			got, want = outcome(g, err), outcome(expected, oracleErr)
			if err == nil {
				a.Ticket = g.Ticket
			}
		case n < 13:
			r := s.Renew(ctx, []driver.Claim{a.Claim}, time.Minute)[0]
			did = a.Owner + " renews"
			got, want = r.State.String(), oracle.Renew(0, a.Claim, time.Minute).State.String()
			if r.State == driver.Held || r.State == driver.Waiting {
				a.Ticket = r.Grant.Ticket
			}
		case n < 18:
			c := a.Claim
			if random.IntN(4) == 0 {
				c.Ticket = 0
			}
			did = a.Owner + " releases"
			got, want = fmt.Sprint(s.Release(ctx, c)), fmt.Sprint(oracle.Release(0, c))
			actors = slices.DeleteFunc(actors, func(b *actor) bool { return a == b })
		case n == 18:
			g, err := s.Downgrade(ctx, a.Claim, time.Minute)
			expected, oracleErr := oracle.Downgrade(0, a.Claim, time.Minute)
			did = a.Owner + " downgrades"
			got, want = outcome(g, err), outcome(expected, oracleErr)
			if err == nil {
				a.Weight, a.Ticket = 1, g.Ticket
			}
		case n >= 22:
			c, owner := a.Claim, fmt.Sprint("renamed ", step)
			if random.IntN(4) == 0 {
				c.Ticket = 0
			}
			did = a.Owner + " becomes " + owner // and goes on with its claim from before
			got, want = fmt.Sprint(s.Rename(ctx, c, owner)), fmt.Sprint(oracle.Rename(0, c, owner))
		case n >= 20:
			var r []driver.Request
			for _, i := range random.Perm(len(keys)) {
				kind := kinds[random.IntN(len(kinds))]
				c := claimOf(keys[i], fmt.Sprint("actor ", step))
				c.Weight, c.Capacity = kind[0], kind[1]
				r = append(r, driver.Request{Claim: c, TTL: time.Minute, Retry: random.IntN(4) == 0})
			}
			did = fmt.Sprintf("%s acquires %s and %s", r[0].Owner, asked(r[0].Claim), asked(r[1].Claim))
			grants, err := s.AcquireAll(ctx, r)
			got, want = outcome(driver.Grant{}, err), outcome(driver.Grant{}, together(oracles, r))
			if err == nil {
				for i, g := range grants {
					r[i].Ticket = g.Ticket
					actors = append(actors, &actor{r[i].Claim})
				}
			}
		default:
			if random.IntN(3) > 0 {
				continue
			}
			n, err := s.Break(ctx, key)
			did = "break"
			got, want = fmt.Sprint(n, err), fmt.Sprint(oracle.Break(0), nil)
			actors = slices.DeleteFunc(actors, func(b *actor) bool { return b.Key == key && oracle.Renew(0, b.Claim, time.Minute).State == driver.Lost })
		}
		for _, key := range keys {
			info, err := s.Inspect(ctx, key)
			if err != nil {
				l.Errorf("inspect: %v", err)
			}
			got += "; " + shown(info)
			want += "; " + shown(oracles[key].Inspect(0))
		}
		steps = append(steps, did)
		if got != want {
			l.Errorf("history %d:\n%s\nthe store:  %s\nthe oracle: %s", seed, strings.Join(steps, "\n"), got, want)
			return false
		}
	}
	return true
}

// together has the oracles grant all or none.
func together(oracles map[string]*lockstate.State, r []driver.Request) error {
	for i, q := range r {
		if _, err := oracles[q.Key].Acquire(0, q); err != nil {
			for _, granted := range r[:i] {
				_ = oracles[granted.Key].Release(0, granted.Claim)
			}
			return err
		}
	}
	return nil
}

func asked(c driver.Claim) string { return want(c) }

func outcome(g driver.Grant, err error) string {
	switch {
	case err == nil && g.Waiting:
		return "waiting"
	case err == nil:
		return "held"
	case errors.Is(err, driver.ErrLost):
		return "lost"
	}
	if held, ok := errors.AsType[*driver.HeldError](err); ok {
		return fmt.Sprint("refused, ", held.Waiting, " waiting")
	}
	return err.Error()
}

func shown(info driver.KeyInfo) string {
	var holders, waiters []string
	for _, h := range info.Holders {
		holders = append(holders, fmt.Sprintf("%s %d/%d", h.Owner, h.Weight, h.Capacity))
	}
	for _, w := range info.Waiters {
		waiters = append(waiters, fmt.Sprintf("%s %d/%d", w.Owner, w.Weight, w.Capacity))
	}
	return fmt.Sprintf("holders %q, waiters %q", holders, waiters)
}
