package drivertest

import (
	"errors"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/quorum"
)

// memberCases are what a quorum needs of each server.
var memberCases = []testCase{
	{
		name:  "a raised token is passed",
		why:   "a majority writes back the highest token that one of its servers gave; later grants must be above it everywhere",
		needs: []need{fencing, member},
		run: func(t *test) {
			a := t.writer(0, "k").hold()
			raised := a.grant.Token + 300_000 // more than a counter can draw within a window of its clock
			t.raise(1, "k", raised)
			t.raise(2, "k", raised-1000) // a raise never lowers the count
			if at, told := t.raise(1, "k", 1); told && at < raised {
				t.Errorf("raised to %d, which says that later tokens are above %d", raised, at)
			}
			a.mustBe(driver.Held) // the token of the grant stays
			a.leave()
			b := t.writer(2, "k").hold()
			b.above(raised)
			b.leave()
			c := t.writer(0, "k").hold() // the count continues from there
			c.above(b.grant.Token)
			c.leave()

			t.raise(0, "never held", c.grant.Token+300_000)
			t.writer(1, "never held").hold().above(c.grant.Token + 300_000)
		},
	},
	{
		name:  "all handles see one life of the server",
		why:   "a majority must notice that two of its servers are one",
		needs: []need{member},
		run: func(t *test) {
			first := t.life(0)
			if first.Server == "" {
				t.Errorf("the server has no name: %+v", first)
			}
			for i := range handles {
				if l := t.life(i); l.Server != first.Server || l.Age < 0 {
					t.Errorf("process %d sees %+v, process 0 %+v", i, l, first)
				}
			}
		},
	},
	{
		name:  "a restart is another life",
		why:   "a server that has forgotten what it granted must not be counted before all that has expired",
		needs: []need{member, restart},
		run: func(t *test) {
			before := make([]quorum.Life, handles)
			for i := range before {
				before[i] = t.life(i)
			}
			begin := time.Now()
			t.h.Restart(t, t.locks)
			for i := range before {
				t.writer(i, "k").hold().leave() // the answer that must not be trusted
				l := t.life(i)
				if l.Server == before[i].Server {
					t.Errorf("process %d sees the same life after a restart: %+v", i, l)
				}
				if since := time.Since(begin); l.Age > since {
					t.Errorf("process %d sees an age of %v, %v after the restart began", i, l.Age, since)
				}
			}
		},
	},
}

// raise returns the token that later ones exceed. told is false if the answer was lost.
func (t *test) raise(process int, key string, token int64) (at int64, told bool) {
	t.Helper()
	at, err := ability[quorum.Member](t.locks[process]).Raise(t.ctx, key, token)
	if err != nil && !t.lost(err) {
		t.Fatalf("raise to %d: %v", token, err)
	}
	return at, err == nil
}

func (t *test) life(process int) quorum.Life {
	t.Helper()
	l, err := ability[quorum.Member](t.locks[process]).Life(t.ctx)
	if errors.Is(err, errors.ErrUnsupported) {
		return quorum.Life{Server: "not one server"}
	}
	if err != nil {
		t.Fatalf("life: %v", err)
	}
	return l
}
