package pgstore

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/faultproxy"
)

// What needs more than one row goes the other way, after a statement that did
// nothing; where that is known, without it.
func TestDirect(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s, other := openDirect(t, url), openDirect(t, url)
	r := writer("k")
	g, err := s.acquireDirectly(t.Context(), r)
	if err != nil || g == 0 {
		t.Fatalf("a new key: token %d, %v", g, err)
	}
	if again, err := s.acquireDirectly(t.Context(), r); again != g || err != nil {
		t.Errorf("the same claim: token %d, %v, want %d", again, err, g)
	}
	mustAsk := func(done bool, err error) {
		t.Helper()
		if done || err != nil {
			t.Errorf("done is %v, %v", done, err)
		}
	}
	token, err := other.acquireDirectly(t.Context(), writer("k"))
	mustAsk(token > 0, err)
	mustAsk(other.releaseDirectly(t.Context(), writer("k").Claim))
	mustAsk(other.releaseDirectly(t.Context(), writer("unknown").Claim))
	waiter := join(t, other, writer("k"))
	stay(t, s)
	mustAsk(s.releaseDirectly(t.Context(), r.Claim)) // there is a waiter
	release(t, s, r.Claim)
	stay(t, s)
	mustBe(t, other, waiter, driver.Held)
	mustAsk(s.releaseDirectly(t.Context(), r.Claim)) // it has no claim
	if waiter.Ticket <= g {
		t.Errorf("ticket %d after token %d", waiter.Ticket, g)
	}
	release(t, other, waiter)

	next := hold(t, s, writer("k"))
	if next.Ticket <= waiter.Ticket {
		t.Errorf("token %d after %d", next.Ticket, waiter.Ticket)
	}
	tx := begin(t, s, pgx.ReadCommitted)
	if err := s.InTx(t.Context(), tx, leased(next)); err != nil {
		t.Fatal(err)
	}
	mustAsk(s.releaseDirectly(t.Context(), next)) // a transaction depends on it
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if done, err := s.releaseDirectly(t.Context(), next); !done || err != nil {
		t.Errorf("released: %v, %v", done, err)
	}
	mustBe(t, s, next, driver.Lost)

	s.batcher.hot.Set("k", true)
	token, err = s.acquireDirectly(t.Context(), writer("k"))
	mustAsk(token > 0, err)
}

// The answer is lost after its effect: asking again finds it.
func TestDirectAnswerCut(t *testing.T) {
	t.Parallel()
	server, url := database(t)
	proxy := faultproxy.New(t, server.Addr)
	s, plain := openOn(t, newPool(t, strings.Replace(url, server.Addr, proxy.Addr, 1), likeOpen)), openAt(t, url)
	r := writer("k")
	mine := func(request []byte) bool { return bytes.Contains(request, []byte(r.ID)) }
	sprung := proxy.CutAfterRequest(mine)
	_, err := s.Acquire(t.Context(), r)
	<-sprung
	if !errors.Is(err, driver.ErrUnknown) {
		t.Errorf("cut: %v, want driver.ErrUnknown", err)
	}
	mustRefuse(t, plain, "k")
	r.Retry = true
	c := hold(t, s, r)
	sprung = proxy.CutAfterRequest(mine)
	err = s.Release(t.Context(), c)
	<-sprung
	if !errors.Is(err, driver.ErrUnknown) {
		t.Errorf("cut: %v, want driver.ErrUnknown", err)
	}
	if err := s.Release(t.Context(), c); !errors.Is(err, driver.ErrLost) {
		t.Errorf("again: %v, want driver.ErrLost", err)
	}
}
