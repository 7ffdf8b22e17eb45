package pgstore

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/batonhq/baton/driver"
)

// A release that waits for the key's row sees claims that joined the queue while it waited. One
// statement that does everything would not, and the lock would go to no claim.
func TestReleaseSeesClaimsThatJoinedWhileItWaited(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s := openAt(t, url)
	for i := range 5 {
		key := fmt.Sprint("k", i)
		holder := hold(t, s, writer(key))
		tx := begin(t, s, pgx.ReadCommitted)
		if _, err := tx.Exec(t.Context(), `SELECT FROM baton_lock WHERE k = $1 FOR UPDATE`, []byte(key)); err != nil {
			t.Fatal(err)
		}
		r := queued(writer(key))
		var g driver.Grant
		var wg sync.WaitGroup
		wg.Go(func() {
			var err error
			if g, err = s.Acquire(t.Context(), r); err != nil {
				t.Errorf("join: %v", err)
			}
		})
		awaitBlocked(t, s, 1)
		wg.Go(func() {
			if err := s.Release(t.Context(), holder); err != nil {
				t.Errorf("release: %v", err)
			}
		})
		awaitBlocked(t, s, 2)
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		mustBe(t, s, with(r, g), driver.Held)
	}
}

// A holder is being renewed while other requests read that it has ended: it keeps the lock, and no
// claim is granted beside it.
func TestRenewedClaimIsNotRemoved(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s := openAt(t, url)
	for kind, c := range holders(t, s) {
		waiter := join(t, s, writer(c.Key))
		exec(t, s, `UPDATE baton_lock SET ends = clock_timestamp() WHERE k = $1 AND id = $2`, []byte(c.Key), c.ID)
		exec(t, s, `UPDATE baton_claim SET ends = clock_timestamp() WHERE k = $1 AND id = $2`, []byte(c.Key), c.ID)
		renewing := begin(t, s, pgx.ReadCommitted)
		for _, table := range []string{"baton_lock", "baton_claim"} {
			if _, err := renewing.Exec(t.Context(), `UPDATE `+table+` SET ends = clock_timestamp() + interval '1 minute'
				WHERE k = $1 AND id = $2`, []byte(c.Key), c.ID); err != nil {
				t.Fatal(err)
			}
		}
		got := make(chan driver.State, 1)
		go func() { got <- s.Renew(t.Context(), []driver.Claim{waiter}, time.Minute)[0].State }()
		select {
		case state := <-got: // it need not wait for the renewal
			if state == driver.Held {
				t.Errorf("%s: another claim holds, too", kind)
			}
			got <- state
		case <-time.After(50 * time.Millisecond): // it waits
		}
		if err := renewing.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if state := <-got; state == driver.Held {
			t.Errorf("%s: another claim holds, too", kind)
		}
		mustBe(t, s, c, driver.Held)
		mustRefuse(t, s, c.Key)
	}
}

// A renewal never misses a claim that is just being granted.
func TestRenewalsDuringTheHandOver(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	a, b := openAt(t, url), openAt(t, url)
	for range 20 {
		holder := hold(t, a, writer("k"))
		waiter := join(t, b, writer("k"))
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				if r := b.Renew(t.Context(), []driver.Claim{waiter}, time.Minute)[0]; r.State == driver.Lost {
					t.Error("a claim was lost while it was granted")
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
		release(t, a, holder)
		close(stop)
		wg.Wait()
		release(t, b, waiter)
	}
}

// The repeated acquire of a holder is answered with its own token, not with the
// counter, which waiters have raised: the next holder's token would be below it.
func TestTokenIsNotTheCounter(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s := openAt(t, url)
	r := writer("k")
	holder := hold(t, s, r)
	waiter := join(t, s, writer("k"))
	r.Retry = true
	if again := hold(t, s, r); again.Ticket != holder.Ticket {
		t.Errorf("token %d, and then %d", holder.Ticket, again.Ticket)
	}
	release(t, s, holder)
	mustBe(t, s, waiter, driver.Held)
}

// Rows are swept away between a release and the next acquire, again and again.
func TestTokensRiseWhileTheSweepRuns(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	sweeper := openAt(t, url, func(o *options) { o.idle, o.sweep = 0, time.Hour })
	ctx, cancel := context.WithCancel(t.Context())
	var sweeping, users sync.WaitGroup
	removed := 0
	sweeping.Go(func() {
		for ctx.Err() == nil {
			_, n, err := sweeper.sweep.page([]byte{}, 100)
			if err != nil {
				t.Errorf("sweep: %v", err)
			}
			removed += n
		}
	})
	for i := range 4 {
		s := openAt(t, url)
		users.Go(func() {
			last := int64(0)
			for n := 0; n < 100; n++ {
				r := writer(fmt.Sprint("k", i))
				g, err := s.Acquire(t.Context(), r)
				if err != nil {
					t.Errorf("acquire: %v", err)
					return
				}
				if g.Token <= last {
					t.Errorf("token %d after %d", g.Token, last)
				}
				last = g.Token
				if err := s.Release(t.Context(), with(r, g)); err != nil {
					t.Errorf("release: %v", err)
				}
			}
		})
	}
	users.Wait()
	cancel()
	sweeping.Wait()
	if removed == 0 {
		t.Error("nothing was swept")
	}
}

// A person deletes the row of a key by hand and forgets its claims: the holders are
// told, and are not there again when the key is.
func TestDeletedRowWithClaimsLeft(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s := openAt(t, url)
	for kind, c := range holders(t, s) {
		exec(t, s, `DELETE FROM baton_lock WHERE k = $1`, []byte(c.Key))
		mustBe(t, s, c, driver.Lost)
		next := hold(t, s, writer(c.Key))
		if next.Ticket <= c.Ticket {
			t.Errorf("%s: token %d after %d", kind, next.Ticket, c.Ticket)
		}
		waiter := join(t, s, writer(c.Key))
		mustBe(t, s, c, driver.Lost)
		if info, err := s.Inspect(t.Context(), c.Key); err != nil || len(info.Holders) != 1 || len(info.Waiters) != 1 {
			t.Errorf("%s: %+v, %v", kind, info, err)
		}
		release(t, s, next)
		mustBe(t, s, waiter, driver.Held)
		release(t, s, waiter)
		reader := writer(c.Key)
		reader.Weight = 1
		release(t, s, hold(t, s, reader))
		release(t, s, hold(t, s, writer(c.Key)))
	}
}
