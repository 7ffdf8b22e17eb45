package agent

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/batontest"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/once"
)

// The agent is stopped, and a client does not close the connection: its lock is not free
// before what it was promised is over, although the agent ends soon.
func TestStopKeepsWhatWasPromised(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newFullHost(t)
		a := h.connect()
		sent := time.Now()
		for i, request := range []string{`"do":"lock","key":"k"`, `"do":"lock","keys":["x","y"]`, `"do":"once","key":"op"`} {
			a.must(`{"id":%d,%s}`, i+1, request)
		}
		a.must(`{"id":9,"do":"lock","key":"over","max_hold_ms":300}`) // what it was promised of this is soon over
		time.Sleep(100 * time.Millisecond)
		h.stop()
		if err := <-h.ended; err != nil || time.Since(sent) > 100*time.Millisecond+grace {
			t.Errorf("it stopped after %v: %v", time.Since(sent), err)
		}
		h.ended <- nil
		if last := a.over(); last.Error != "closing" {
			t.Errorf("it was told %v", last)
		}
		for id, key := range []string{"over", "k", "x", "y", once.LockPrefix + "op"} {
			holders := h.store.Holders(key)
			if want := min(id, 1); len(holders) != want {
				t.Errorf("%q is held by %v, want %d", key, holders, want)
			} else if want > 0 && !time.Now().Add(holders[0].Remaining).After(sent.Add(ttl-ttl/10)) {
				t.Errorf("%q is free after %v", key, holders[0].Remaining)
			}
		}
		time.Sleep(ttl)
		for _, key := range []string{"k", "x", "y", once.LockPrefix + "op"} {
			if holders := h.store.Holders(key); len(holders) != 0 {
				t.Errorf("%q is still held by %v", key, holders)
			}
		}
	})
}

// The agent is stopped while a session that it has ended waits for its client.
func TestStopDuringTheEndOfASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, Config{})
		a := h.connect()
		a.must(`{"id":1,"do":"lock","key":"k"}`)
		a.must(`{"id":2,"do":"lock","key":"sound"}`)
		h.store.Lose("k")
		if r := a.next(); r.Lost != 1 {
			t.Fatal(r)
		}
		time.Sleep(2 * grace)
		began := time.Now()
		h.stop()
		if err := <-h.ended; err != nil || time.Since(began) != 0 {
			t.Errorf("it stopped after %v: %v", time.Since(began), err)
		}
		h.ended <- nil
		if holders := h.store.Holders("sound"); len(holders) != 1 {
			t.Errorf("what was promised has the holders %v", holders)
		}
		time.Sleep(ttl)
	})
}

// A store frees the locks of a process that ends: the agent waits until what it promised
// is over.
func TestStopOverAStoreWithSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, Config{})
		locks, err := baton.New(tied{h.store}, baton.Config{TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		h.server.locks = locks // which it does not use before the first request
		a, b := h.connect(), h.connect()
		began := time.Now()
		r := a.must(`{"id":1,"do":"lock","key":"k"}`)
		b.must(`{"id":1,"do":"lock","key":"l"}`)
		h.stop()
		if r := b.next(); r.Error != "closing" {
			t.Errorf("it was told %v", r)
		}
		b.conn.Close()
		synctest.Wait()
		if holders := h.store.Holders("l"); len(holders) != 0 {
			t.Errorf("the lock of one that has gone is held by %v", holders)
		}
		if err := <-h.ended; err != nil || time.Since(began).Milliseconds() != *r.RemainingMS {
			t.Errorf("it stopped after %v, having promised %v: %v", time.Since(began), r, err)
		}
		h.ended <- nil
		if holders := h.store.Holders("k"); len(holders) != 0 {
			t.Errorf("it is still held by %v", holders)
		}
	})
}

// tied is a store whose locks end with the process that took them.
type tied struct{ *batontest.Store }

func (s tied) Traits() driver.Traits {
	t := s.Store.Traits()
	t.Sessions = true
	return t
}

// The agent is stopped: every client is told, and what they close is free when Serve returns.
func TestStopReleasesAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, Config{})
		a, b := h.connect(), h.connect()
		a.must(`{"id":1,"do":"lock","key":"k"}`)
		b.send(`{"id":1,"do":"lock","key":"k"}`)
		synctest.Wait()
		began := time.Now()
		h.stop()
		if r := a.next(); r.OK || r.Error != "closing" {
			t.Errorf("the holder was told %v", r)
		}
		a.conn.Close()
		if last := b.over(); last.OK || last.Error != "closing" {
			t.Errorf("the waiter was told %v", last)
		}
		if err := <-h.ended; err != nil || time.Since(began) > grace {
			t.Errorf("it stopped after %v: %v", time.Since(began), err)
		}
		h.ended <- nil // for the cleanup
		if holders := h.store.Holders("k"); len(holders) != 0 {
			t.Errorf("the lock is still held: %v", holders)
		}
		if err := h.server.Serve(t.Context(), newPipes()); err == nil {
			t.Error("it serves twice")
		}
	})
}

// A stopping agent shuts all sessions before any of them can be granted a lock that
// another gives back.
func TestStopShutsAllSessionsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, Config{})
		clients := make([]*client, 30)
		for i := range clients {
			clients[i] = h.connect()
			clients[i].must(`{"id":1,"do":"ping"}`)
		}
		h.server.stop()
		h.server.mu.Lock()
		defer h.server.mu.Unlock()
		for c := range h.server.sessions {
			if !c.over() {
				t.Error("a session is open after the agent was stopped")
			}
		}
	})
}

// A store that does not answer does not keep the agent from ending.
func TestStopWithoutAStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, Config{})
		a := h.connect()
		a.must(`{"id":1,"do":"lock","key":"k"}`)
		h.store.Fail(batontest.Release, baton.ErrUnavailable).Optional()
		began := time.Now()
		h.stop()
		if err := <-h.ended; err != nil || time.Since(began) > 10*time.Second {
			t.Errorf("it stopped after %v: %v", time.Since(began), err)
		}
		h.ended <- nil
		time.Sleep(2 * ttl)
	})
}
