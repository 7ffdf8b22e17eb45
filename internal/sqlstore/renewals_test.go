package sqlstore

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/driver"
)

func claim(key string) driver.Claim { return driver.Claim{Key: key, ID: driver.NewID()} }

// What comes while a request is under way shares the next one, and each caller gets
// the answers to its own claims.
func TestRenewalsShareARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent [][]driver.Claim
		busy := 0
		r := NewRenewals(1, func(_ context.Context, claims []driver.Claim, _ time.Duration) []driver.Renewal {
			sent = append(sent, claims)
			busy++
			time.Sleep(time.Second)
			busy--
			answers := make([]driver.Renewal, len(claims))
			for i, c := range claims {
				answers[i] = driver.Renewal{State: driver.Held, Grant: driver.Grant{Token: int64(len(c.Key))}}
			}
			return answers
		})
		go r.Do(t.Context(), []driver.Claim{claim("a")}, time.Minute)
		synctest.Wait()
		for _, keys := range [][]string{{"bb"}, {"ccc", "dddd"}, {"bb"}} {
			go func() {
				var claims []driver.Claim
				for _, k := range keys {
					claims = append(claims, claim(k))
				}
				answers := r.Do(t.Context(), claims, time.Minute)
				for i, k := range keys {
					if a := answers[i]; a.State != driver.Held || a.Grant.Token != int64(len(k)) {
						t.Errorf("%s: %+v", k, a)
					}
				}
			}()
		}
		other := r.Do(t.Context(), []driver.Claim{claim("of another TTL")}, time.Hour)
		if len(other) != 1 || other[0].State != driver.Held {
			t.Errorf("another TTL: %+v", other)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if len(sent) != 3 || len(sent[1])+len(sent[2]) != 5 {
			t.Errorf("%d requests, want the first, one for all that came meanwhile, and one for another TTL: %v", len(sent), sent)
		}
		if waiting := r.batch.Waiting(); busy != 0 || waiting != 0 {
			t.Errorf("at the end %d are under way and %d wait", busy, waiting)
		}
	})
}

// A caller whose context ends returns at once. A request whose callers have all given
// up ends, and one that still has a caller goes on.
func TestRenewalsAreLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy := 0
		r := NewRenewals(1, func(ctx context.Context, claims []driver.Claim, _ time.Duration) []driver.Renewal {
			busy++
			<-ctx.Done() // a server that hangs
			busy--
			answers := make([]driver.Renewal, len(claims))
			for i := range answers {
				answers[i].Err = ctx.Err()
			}
			return answers
		})
		call := func(within time.Duration) {
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			began := time.Now()
			answers := r.Do(ctx, []driver.Claim{claim("k")}, time.Minute)
			if took := time.Since(began).Round(time.Millisecond); took != within {
				t.Errorf("left after %v, want %v", took, within)
			}
			if len(answers) != 1 || answers[0].State != driver.Unknown || !errors.Is(answers[0].Err, context.DeadlineExceeded) && !errors.Is(answers[0].Err, context.Canceled) {
				t.Errorf("%+v", answers)
			}
		}
		for _, within := range []time.Duration{3 * time.Second, time.Second, 5 * time.Second, 8 * time.Second} {
			go call(within)
			synctest.Wait() // the first is sent at once, one leaves before it is sent, two are sent together
		}
		time.Sleep(7 * time.Second)
		synctest.Wait()
		if busy != 1 {
			t.Errorf("%d requests are under way, want the one for which a caller waits", busy)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if waiting := r.batch.Waiting(); busy != 0 || waiting != 0 {
			t.Errorf("at the end %d are under way and %d wait", busy, waiting)
		}
	})
}
