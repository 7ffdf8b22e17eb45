package redisstore

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
)

// 10 000 leases are renewed by at most 100 commands.
func TestRenewalInBatches(t *testing.T) {
	l := newLab(t, 1)
	s := l.stores[0]
	claims := make([]driver.Claim, 10_000)
	for i := range claims {
		c := claimOf(fmt.Sprint("job/", i), "a")
		// As acquire.lua leaves it, without ten thousand round trips.
		c.Ticket = -time.Now().UnixMicro()
		claims[i] = c
	}
	for part := range slices.Chunk(claims, 1000) {
		args := []string{"EVAL", `for i = 1, #KEYS do redis.call('SET', KEYS[i], ARGV[i], 'PX', 60000) end`, fmt.Sprint(len(part))}
		for _, c := range part {
			args = append(args, c.Key)
		}
		for _, c := range part {
			args = append(args, value(c.ID)+tokenArg(c)+":a")
		}
		l.do(args...)
	}
	l.do("DEL", "job/77")
	for i, r := range s.Renew(t.Context(), claims, 10*time.Minute) {
		switch {
		case i == 77:
			if r.State != driver.Lost {
				t.Errorf("the deleted one is %v", r.State)
			}
		case r.State != driver.Held || r.Grant.Token != -claims[i].Ticket:
			t.Fatalf("claim %d: %+v", i, r)
		}
	}
	l.do("CONFIG", "RESETSTAT") // that run may have sent the script's text
	s.Renew(t.Context(), claims, 10*time.Minute)
	if n := l.calls("evalsha") + l.calls("eval"); n > 100 {
		t.Errorf("renewing 10 000 leases took %d commands, want at most 100", n)
	}
}

// Trap 13: in a batch, a key that has become something else spoils no answer but its
// own.
func TestBatchWithABadKey(t *testing.T) {
	l := newLab(t, 1)
	s := l.stores[0]
	var claims []driver.Claim
	for i := range 9 {
		c := claimOf(fmt.Sprint("job", i), "a")
		if i%3 == 2 {
			c.Weight = 1
		}
		c, _ = take(t, s, c, time.Minute, false)
		if i%3 == 1 {
			c.Ticket = 0 // as if its answer had never come
		}
		claims = append(claims, c)
	}
	broken := map[int]bool{3: true, 4: true, 5: true}
	for i := range broken {
		n := l.names(claims[i].Key)
		for _, name := range []string{n.lock, n.queue(), n.waiters(), n.shared(), n.info()} {
			l.do("DEL", name)
			l.do("XADD", name, "*", "not", "ours")
		}
	}
	for i, r := range s.Renew(t.Context(), claims, time.Minute) {
		if broken[i] {
			if r.State == driver.Held || r.State == driver.Waiting {
				t.Errorf("claim %d, whose key is gone: %v", i, r.State)
			}
		} else if r.State != driver.Held {
			t.Errorf("claim %d: %v, %v, want held", i, r.State, r.Err)
		}
	}
}
