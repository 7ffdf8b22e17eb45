package redisstore

import (
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
)

// The answer to a downgrade may be lost; the claim is then still thought to be
// exclusive.
func TestLostAnswerToDowngrade(t *testing.T) {
	l := newLab(t, 2)
	s := l.stores[0]
	c, g := take(t, s, claimOf(l.key, "a"), time.Minute, false)
	if _, err := s.Downgrade(t.Context(), c, time.Minute); err != nil {
		t.Fatal(err)
	}
	if r := renewOne(t, s, c, time.Minute); r.State != driver.Held || r.Grant.Token != g.Token {
		t.Errorf("renewed as it was thought to be: %+v, want held with token %d", r, g.Token)
	}
	mustRelease(t, s, c)
	take(t, l.stores[1], claimOf(l.key, "b"), time.Minute, false)
}
