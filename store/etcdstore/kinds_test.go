package etcdstore

import (
	"errors"
	"fmt"
	"testing"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
)

// A renewal does not restore the writer that a downgrade has made a reader: neither a
// renewal beside the downgrade, nor one after a downgrade that got no answer.
func TestRenewalBesideADowngrade(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("lost=%v", lost), func(t *testing.T) {
			t.Parallel()
			all := openOn(t, testserver.SharedEtcd(t), 2)
			s := all[0]
			spy := spyOn(s)
			c, g := take(t, s, claimOf("k", "me"), long, false)
			spy.mu.Lock()
			spy.after = func() { // of the renewal, which comes first; the next request downgrades
				spy.mu.Lock()
				defer spy.mu.Unlock()
				if spy.lose = lost; lost {
					return
				}
				spy.after = func() {
					s.mu.Lock()
					s.keys["k"].claims[c.ID].moving = true // as if an answer had been lost before
					s.mu.Unlock()
					if a := renewOne(t, s, c, long); a.State == driver.Lost {
						t.Errorf("beside a downgrade: %+v", a)
					}
				}
			}
			spy.mu.Unlock()
			_, err := s.Downgrade(t.Context(), c, long)
			if lost != errors.Is(err, driver.ErrUnknown) || !lost && err != nil {
				t.Fatalf("downgraded: %v", err)
			}
			if a := renewOne(t, s, c, long); a.State != driver.Held || a.Grant.Token != g.Token {
				t.Errorf("renewed: %+v", a)
			}
			reader := claimOf("k", "other")
			reader.Weight = 1
			other, _ := take(t, all[1], reader, long, false)
			mustRelease(t, all[1], other)
			mustRelease(t, s, c)
			nothingLeft(t, s, "k")
		})
	}
}
