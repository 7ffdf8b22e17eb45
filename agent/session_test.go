package agent

import (
	"bytes"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/batontest"
)

func token(t *testing.T, r reply) int64 {
	t.Helper()
	n, err := strconv.ParseInt(r.Token, 10, 64)
	if err != nil || n <= 0 {
		t.Fatalf("the token of %v", r)
	}
	return n
}

func TestLockIsHandedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, Config{})
		a, b := h.connect(), h.connect()
		first := a.must(`{"id":1,"do":"lock","key":"k"}`)
		if ms := *first.RemainingMS; ms <= 0 || ms > ttl.Milliseconds() || first.MaxHoldMS != 0 {
			t.Errorf("the answer to lock is %v", first)
		}
		b.send(`{"id":9,"do":"lock","key":"k"}`)
		time.Sleep(10 * ttl)
		b.quiet()
		if waiters := h.store.Waiters("k"); len(waiters) != 0 {
			t.Errorf("%d wait in the store, and not in the agent", len(waiters))
		}
		a.must(`{"id":2,"do":"unlock","lock":1}`)
		if second := b.next(); second.ID != 9 || token(t, second) <= token(t, first) {
			t.Errorf("after %v the next got %v", first, second)
		}
		b.must(`{"id":10,"do":"unlock","lock":9}`)
		a.must(`{"id":3,"do":"lock","key":"k"}`) // an ID of its own each time
		a.must(`{"id":4,"do":"ping"}`)
	})
}

func TestOneThatDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, Config{})
		a, b := h.connect(), h.connect()
		a.must(`{"id":1,"do":"lock","key":"k"}`)
		began := time.Now()
		if r := b.refused("held", `{"id":1,"do":"lock","key":"k","wait_ms":0}`); !strings.Contains(r.Message, `"k" is held`) || !strings.Contains(r.Message, "client of this agent") {
			t.Errorf("the message is %q", r.Message)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("it waited for %v", took)
		}
		if r := b.refused("held", `{"id":2,"do":"lock","key":"k","wait_ms":1500}`); time.Since(began) != 1500*time.Millisecond {
			t.Errorf("after %v: %v", time.Since(began), r)
		}
		a.must(`{"id":2,"do":"unlock","lock":1}`)
		b.must(`{"id":2,"do":"lock","key":"k","wait_ms":0}`) // the ID of a request that failed is free
	})
}

func TestClientThatDiesFreesItsLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, Config{})
		a, b, c, d := h.connect(), h.connect(), h.connect(), h.connect()
		a.must(`{"id":1,"do":"lock","key":"k"}`)
		a.must(`{"id":2,"do":"lock","key":"l"}`)
		b.send(`{"id":1,"do":"lock","key":"k"}`)
		synctest.Wait()
		c.send(`{"id":1,"do":"lock","key":"k"}`)
		d.send(`{"id":1,"do":"lock","key":"l"}`)
		synctest.Wait()
		b.conn.Close() // it waited
		synctest.Wait()
		began := time.Now()
		a.conn.Close()
		if r := c.next(); !r.OK || time.Since(began) != 0 {
			t.Errorf("after %v: %v", time.Since(began), r)
		}
		if r := d.next(); !r.OK || time.Since(began) != 0 {
			t.Errorf("after %v: %v", time.Since(began), r)
		}
	})
}

// Read locks and permits.
func TestKindsOfLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, Config{})
		a, b, c := h.connect(), h.connect(), h.connect()
		a.must(`{"id":1,"do":"lock","key":"r","mode":"shared"}`)
		b.must(`{"id":1,"do":"lock","key":"r","mode":"shared","wait_ms":0}`)
		c.refused("held", `{"id":1,"do":"lock","key":"r","mode":"exclusive","wait_ms":0}`)
		a.must(`{"id":2,"do":"lock","key":"p","mode":"permits","n":2,"of":3}`)
		b.must(`{"id":2,"do":"lock","key":"p","mode":"permits","n":1,"of":3}`)
		c.refused("held", `{"id":2,"do":"lock","key":"p","mode":"permits","n":1,"of":3,"wait_ms":0}`)
		c.refused("bad", `{"id":3,"do":"lock","key":"p","mode":"permits","n":1,"of":4,"wait_ms":0}`) // another number
		b.must(`{"id":3,"do":"unlock","lock":2}`)
		c.must(`{"id":4,"do":"lock","key":"p","mode":"permits","n":1,"of":3,"wait_ms":0}`)
	})
}

// Several keys are one lock.
func TestLockOfSeveralKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, Config{})
		a, b := h.connect(), h.connect()
		first := a.must(`{"id":1,"do":"lock","keys":["b","a","b"],"max_hold_ms":60000}`)
		if len(first.Tokens) != 2 || first.Token != "" || first.Tokens["a"] == "" || *first.RemainingMS <= 0 {
			t.Errorf("got %v", first)
		}
		a.must(`{"id":2,"do":"check","lock":1}`)
		a.refused("nested", `{"id":3,"do":"lock","key":"a"}`)
		a.refused("nested", `{"id":3,"do":"lock","keys":["c","b"]}`)
		if r := b.refused("held", `{"id":1,"do":"lock","keys":["c","b"],"wait_ms":0}`); !strings.Contains(r.Message, `"b" is held`) || !strings.Contains(r.Message, "client of this agent") {
			t.Errorf("the message is %q", r.Message)
		}
		b.must(`{"id":1,"do":"lock","key":"c"}`)
		if r := b.must(`{"id":2,"do":"who"}`); len(r.Locks) != 3 || r.Locks[0].Key != "a" || r.Locks[0].Token != first.Tokens["a"] || r.Locks[1].Key != "b" {
			t.Errorf("who tells %v", r)
		}
		b.send(`{"id":3,"do":"lock","keys":["a","b"]}`)
		synctest.Wait()
		a.must(`{"id":4,"do":"unlock","lock":1}`)
		second := b.next()
		if !second.OK || second.Tokens["a"] <= first.Tokens["a"] {
			t.Errorf("after %v the next got %v", first, second)
		}
		// The loss of one of them is that of all.
		a.send(`{"id":5,"do":"lock","key":"a"}`)
		synctest.Wait()
		h.store.Lose("b")
		if last := b.over(); last.Lost != 3 || last.Cause != "gone" {
			t.Errorf("it was told %v", last)
		}
		if r := a.next(); r.ID != 5 || !r.OK {
			t.Errorf("got %v", r)
		}
		a.refused("bad", `{"id":6,"do":"lock","keys":["ok",""]}`)
	})
}

// A client that is stopped, and so neither reads nor closes, keeps its lock for MaxHold.
// What it is told stands in the socket until it goes on.
func TestMaxHoldBoundsAClientThatIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, Config{MaxHold: time.Minute})
		a, b := h.connect(), h.connect()
		r := a.must(`{"id":1,"do":"lock","key":"k","max_hold_ms":10000}`)
		a.must(`{"id":2,"do":"lock","key":"other"}`)
		if r.MaxHoldMS != 10_000 {
			t.Errorf("the longest time is %d ms", r.MaxHoldMS)
		}
		began := time.Now()
		b.send(`{"id":1,"do":"lock","key":"k","max_hold_ms":90000}`)
		next := b.next()
		if took := next.at.Sub(began); !next.OK || took != 10*time.Second+grace {
			t.Errorf("the next one got %v after %v", next, took)
		}
		if next.MaxHoldMS != time.Minute.Milliseconds() {
			t.Errorf("a client that asks for more than the agent allows got %v", next)
		}
		last := a.over()
		if last.Lost != 1 || last.Cause != "overheld" || last.at.Sub(began) != 10*time.Second {
			t.Errorf("it was told %v after %v", last, last.at.Sub(began))
		}
	})
}

// A client that closes the connection when it is told has its locks released at once.
func TestClientThatHeedsALossIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, Config{})
		a, b := h.connect(), h.connect()
		a.must(`{"id":1,"do":"lock","key":"k","max_hold_ms":10000}`)
		b.send(`{"id":1,"do":"lock","key":"k"}`)
		began := time.Now()
		if r := a.next(); r.Lost != 1 {
			t.Fatalf("got %v", r)
		}
		a.conn.Close()
		if r := b.next(); !r.OK || r.at.Sub(began) != 10*time.Second {
			t.Errorf("after %v: %v", r.at.Sub(began), r)
		}
	})
}

// The loss of one lock ends the session. Its other locks stay taken until the client has
// closed the connection, or until what it was promised is over.
func TestLossEndsTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, Config{})
		a, b := h.connect(), h.connect()
		a.must(`{"id":1,"do":"lock","key":"k"}`)
		a.must(`{"id":2,"do":"lock","key":"sound"}`)
		a.send(`{"id":3,"do":"lock","key":"held"}`)
		if r := a.next(); !r.OK {
			t.Fatal(r)
		}
		time.Sleep(ttl)
		promised := time.Now().Add(time.Duration(*a.must(`{"id":5,"do":"check","lock":2}`).RemainingMS) * time.Millisecond)
		b.send(`{"id":1,"do":"lock","key":"sound"}`)
		synctest.Wait()
		h.store.Lose("k")
		r := a.next()
		if r.OK || r.ID != 0 || r.Lost != 1 || r.Cause != "gone" || r.Error != "lost" {
			t.Fatalf("it was told %v", r)
		}
		if _, err := a.conn.Write([]byte(`{"id":4,"do":"lock","key":"more"}` + "\n")); err != nil {
			t.Logf("writing to a session that has ended: %v", err)
		}
		if promised.Sub(r.at) <= grace {
			t.Fatalf("told at %v before the end of what was promised", promised.Sub(r.at))
		}
		if next := b.next(); !next.OK || !next.at.Equal(promised) {
			t.Errorf("the sound lock was free %v after the end of what was promised: %v", next.at.Sub(promised), next)
		}
		if last := a.over(); last.ID != 0 || last.OK {
			t.Errorf("after the loss came %v", last)
		}

		// One that closes the connection has said that it has stopped.
		c := h.connect()
		c.must(`{"id":1,"do":"lock","key":"k"}`)
		c.must(`{"id":2,"do":"lock","key":"other"}`)
		b.send(`{"id":2,"do":"lock","key":"other"}`)
		synctest.Wait()
		h.store.Lose("k")
		r = c.next()
		c.conn.Close()
		if next := b.next(); !next.OK || !next.at.Equal(r.at) {
			t.Errorf("after %v: %v", next.at.Sub(r.at), next)
		}
	})
}

// The store falls silent. The client is told before the store can give the lock to
// another process.
func TestLossIsToldBeforeTheStoreGrants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, Config{})
		a := h.connect()
		a.must(`{"id":1,"do":"lock","key":"k"}`)
		began := time.Now()
		h.store.Fail(batontest.Renew, baton.ErrUnavailable).Optional()
		h.store.Fail(batontest.Release, baton.ErrUnavailable).Optional()
		lost := a.next()
		if lost.Lost != 1 || lost.Cause != "expired" {
			t.Fatalf("it was told %v", lost)
		}
		if took := lost.at.Sub(began); took >= ttl || took < ttl/2 {
			t.Errorf("it was told after %v, with a TTL of %v", took, ttl)
		}
		if holders := h.store.Holders("k"); len(holders) != 1 {
			t.Errorf("when it was told the store had %d holders", len(holders))
		}
		a.over()
		time.Sleep(2 * ttl)
	})
}

// check tells what is certain from when it was sent, also after a wait.
func TestRemainingCountsFromTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, Config{})
		a, b := h.connect(), h.connect()
		a.must(`{"id":1,"do":"lock","key":"k","max_hold_ms":30000}`)
		sent := time.Now()
		b.send(`{"id":1,"do":"lock","key":"k"}`)
		time.Sleep(10 * time.Second)
		a.must(`{"id":2,"do":"unlock","lock":1}`)
		r := b.next()
		h.believed(t, "k", sent, r)
		if *r.RemainingMS < 10_000 {
			t.Errorf("the wait of 10s is not in what remains: %v", r)
		}
		for i := range 10 {
			time.Sleep(ttl / 7)
			sent = time.Now()
			h.believed(t, "k", sent, b.must(`{"id":%d,"do":"check","lock":1}`, 100+i))
		}
		b.must(`{"id":2,"do":"lock","key":"short","max_hold_ms":700}`)
		if r := b.must(`{"id":3,"do":"check","lock":2}`); *r.RemainingMS > 700 {
			t.Errorf("more than the longest time remains: %v", r)
		}
		b.refused("lost", `{"id":5,"do":"check","lock":77}`)
	})
}

// believed fails the test unless a client that sent its request at sent considers itself
// the holder for a shorter time than the store.
func (h *host) believed(t *testing.T, key string, sent time.Time, r reply) {
	t.Helper()
	holders := h.store.Holders(key)
	if len(holders) != 1 || r.RemainingMS == nil {
		t.Fatalf("%d holders; %v", len(holders), r)
	}
	until, ends := sent.Add(time.Duration(*r.RemainingMS)*time.Millisecond), time.Now().Add(holders[0].Remaining)
	if !until.Before(ends) || until.Before(time.Now()) {
		t.Errorf("the client believes until %v, the store keeps the lock until %v", until.Sub(sent), ends.Sub(sent))
	}
}

func TestWaitCanBeEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, Config{})
		a, b := h.connect(), h.connect()
		a.must(`{"id":1,"do":"lock","key":"k"}`)
		b.send(`{"id":1,"do":"lock","key":"k"}`)
		synctest.Wait()
		b.send(`{"id":2,"do":"unlock","lock":1}`)
		got := map[int64]reply{}
		for range 2 {
			r := b.next()
			got[r.ID] = r
		}
		if !got[2].OK || got[1].Error != "cancelled" {
			t.Errorf("got %v", got)
		}
		b.refused("bad", `{"id":3,"do":"unlock","lock":1}`)
		a.must(`{"id":2,"do":"unlock","lock":1}`)
		a.refused("bad", `{"id":3,"do":"unlock","lock":1}`)
		b.must(`{"id":4,"do":"lock","key":"k","wait_ms":0}`)
	})
}

// A session cannot wait for itself, and has one position for a key.
func TestSessionHasALockOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, Config{})
		a, b := h.connect(), h.connect()
		a.must(`{"id":1,"do":"lock","key":"k"}`)
		a.refused("nested", `{"id":2,"do":"lock","key":"k"}`)
		a.refused("bad", `{"id":1,"do":"lock","key":"l"}`) // the ID is in use
		b.send(`{"id":1,"do":"lock","key":"k"}`)
		synctest.Wait()
		b.refused("nested", `{"id":2,"do":"lock","key":"k","wait_ms":0}`)
		// An unlock and the next lock may be sent at once.
		a.send(`{"id":3,"do":"unlock","lock":1}` + "\n" + `{"id":4,"do":"lock","key":"k"}`)
		if r := b.next(); r.ID != 1 || !r.OK {
			t.Errorf("got %v", r)
		}
		if r := a.next(); r.ID != 3 || !r.OK {
			t.Errorf("got %v", r)
		}
		b.must(`{"id":3,"do":"unlock","lock":1}`)
		if r := a.next(); r.ID != 4 || !r.OK {
			t.Errorf("got %v", r)
		}
	})
}

func TestLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, Config{MaxSessions: 3, MaxUserSessions: 2, MaxLocks: 2, MaxUserLocks: 3})
		a, b := h.connect(), h.connect() // of one user, who is not known
		if r := h.connectRaw().over(); r.OK || r.Error != "busy" {
			t.Errorf("the third session of a user got %v", r)
		}
		a.must(`{"id":1,"do":"lock","key":"1"}`)
		a.must(`{"id":2,"do":"lock","key":"2"}`)
		a.refused("busy", `{"id":3,"do":"lock","key":"3"}`)
		b.must(`{"id":1,"do":"lock","key":"3"}`)
		b.refused("busy", `{"id":2,"do":"lock","key":"4"}`)
		a.must(`{"id":4,"do":"unlock","lock":1}`)
		b.must(`{"id":3,"do":"lock","key":"4"}`)
		a.conn.Close()
		synctest.Wait()
		h.connect().must(`{"id":1,"do":"lock","key":"1"}`)
	})
}

func TestWho(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, Config{MaxLocks: 500})
		a, b := h.connect(), h.connect()
		held := a.must(`{"id":1,"do":"lock","key":"k"}`)
		b.send(`{"id":1,"do":"lock","key":"k"}`)
		b.must(`{"id":2,"do":"lock","key":"j","mode":"shared"}`)
		r := b.must(`{"id":3,"do":"who"}`)
		if len(r.Locks) != 3 || r.Locks[0].Key != "j" || r.Locks[0].Mode != "shared" || r.Locks[1].State != "held" || r.Locks[1].Token != held.Token || r.Locks[2].State != "waiting" {
			t.Errorf("who tells %v", r)
		}
		if r := b.must(`{"id":4,"do":"who","key":"j"}`); len(r.Locks) != 1 || r.Locks[0].Key != "j" {
			t.Errorf("who tells %v", r)
		}
		if r := b.must(`{"id":5,"do":"who","key":"none"}`); r.Locks == nil || len(r.Locks) != 0 {
			t.Errorf("who tells %v", r)
		}
		for i := range 200 {
			a.must(`{"id":%d,"do":"lock","key":"many/%d"}`, 100+i, i)
		}
		if r := b.must(`{"id":6,"do":"who"}`); len(r.Locks) != maxShown || r.More != 203-maxShown {
			t.Errorf("who tells %d and %d more", len(r.Locks), r.More)
		}
	})
}

// A client that does not read is cut off, and its locks are free when what it was
// promised is over. The pipe has no buffer: one answer is enough.
func TestClientThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		h := newHost(t, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		deaf := h.dial()
		defer deaf.Close()
		hello := make([]byte, 4096)
		if _, err := deaf.Read(hello); err != nil {
			t.Fatal(err)
		}
		if _, err := deaf.Write([]byte(`{"id":1,"do":"lock","key":"k"}` + "\n")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		began := time.Now()
		b := h.connect()
		b.send(`{"id":1,"do":"lock","key":"k"}`)
		if r := b.next(); !r.OK || r.at.Sub(began) > ttl {
			t.Errorf("after %v: %v", r.at.Sub(began), r)
		}

		// One that has gone while it waited is no news.
		c := h.connect()
		c.send(`{"id":1,"do":"lock","key":"k"}`)
		synctest.Wait()
		c.conn.Close()
		synctest.Wait()
		if n := strings.Count(log.String(), "level=WARN"); n != 1 || !strings.Contains(log.String(), `msg="a client was cut off: it does not read, or has gone" caller=uid:-1`) {
			t.Errorf("the log is:\n%s", &log)
		}
	})
}

// The store does not answer an unlock. The session goes on meanwhile, and its end is
// noticed at once.
func TestUnlockDoesNotBlockTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, Config{})
		a, b := h.connect(), h.connect()
		a.must(`{"id":1,"do":"lock","key":"k"}`)
		a.must(`{"id":2,"do":"lock","key":"l"}`)
		b.send(`{"id":1,"do":"lock","key":"l"}`)
		synctest.Wait()
		slow := h.store.Delay(batontest.Release, 400*time.Millisecond)
		began := time.Now()
		a.send(`{"id":3,"do":"unlock","lock":1}`)
		if r := a.ask(`{"id":4,"do":"ping"}`); r.ID != 4 || time.Since(began) != 0 {
			t.Errorf("after %v: %v", time.Since(began), r)
		}
		a.conn.Close()
		if r := b.next(); !r.OK || time.Since(began) != 0 { // handed over without the store
			t.Errorf("after %v: %v", time.Since(began), r)
		}
		time.Sleep(time.Second)
		slow.Stop()
	})
}

// An unlock comes at the very moment at which the longest time is over.
func TestUnlockAtTheEndOfMaxHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, Config{})
		for range 50 {
			a := h.connect()
			a.must(`{"id":1,"do":"lock","key":"k","max_hold_ms":1000}`)
			time.Sleep(time.Second)
			_, _ = a.conn.Write([]byte(`{"id":2,"do":"unlock","lock":1}` + "\n")) // the session may have ended
			synctest.Wait()
			r := a.next()
			if unlocked := r.OK && r.ID == 2; !unlocked && r.Lost != 1 {
				t.Fatalf("got %v", r)
			}
			a.conn.Close()
			synctest.Wait()
			if holders := h.store.Holders("k"); len(holders) != 0 {
				t.Fatalf("after %v it is held by %v", r, holders)
			}
		}
	})
}

// The grant comes at the moment at which the client has gone, or has ended its wait.
func TestGrantForAClientThatHasGone(t *testing.T) {
	for _, how := range []string{"gone", "cancelled"} {
		synctest.Test(t, func(t *testing.T) {
			h := newHost(t, Config{})
			for range 100 {
				a, b := h.connect(), h.connect()
				a.must(`{"id":1,"do":"lock","key":"k"}`)
				b.send(`{"id":1,"do":"lock","key":"k"}`)
				synctest.Wait()
				go a.conn.Close()
				if how == "gone" {
					go b.conn.Close()
				} else {
					go b.conn.Write([]byte(`{"id":2,"do":"unlock","lock":1}` + "\n")) //nolint:errcheck // it reads
				}
				synctest.Wait()
				if holders := h.store.Holders("k"); len(holders) != 0 {
					t.Fatalf("%s: it is held by %v", how, holders)
				}
				if how == "cancelled" { // both requests are answered
					first, second := b.next(), b.next()
					if ids := [2]int64{min(first.ID, second.ID), max(first.ID, second.ID)}; ids != [2]int64{1, 2} {
						t.Fatalf("answers: %v, %v", first, second)
					}
				}
				b.conn.Close()
			}
		})
	}
}

// An unlock comes after the grant, and before the client knows of it: both requests are
// answered.
func TestUnlockThatMeetsTheGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, Config{})
		c := h.connect()
		var s *session
		for s = range h.server.sessions {
		}
		lease, err := h.locks.Lock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		l := &lock{session: s, id: 1, keys: []string{"k"}, mode: modeExclusive}
		if !s.enter(l) || !s.hold(l, lease, request{}) {
			t.Fatal("it has no lock")
		}
		c.must(`{"id":2,"do":"unlock","lock":1}`)
		s.granted(l, time.Now(), answer{})
		s.busy.Done()
		if r := c.next(); r.ID != 1 || r.Error != "cancelled" {
			t.Errorf("got %v", r)
		}
	})
}

// The store does not answer: the client is told that, or, after the wait, that it is over.
func TestStoreOutOfReach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, Config{})
		a := h.connect()
		f := h.store.Fail(batontest.Acquire, baton.ErrUnavailable)
		a.refused("store", `{"id":1,"do":"lock","key":"k","wait_ms":0}`)
		a.refused("store", `{"id":1,"do":"lock","key":"k"}`)
		a.refused("held", `{"id":1,"do":"lock","key":"k","wait_ms":100}`)
		f.Stop()
		a.must(`{"id":1,"do":"lock","key":"k"}`)
		a.must(`{"id":2,"do":"unlock","lock":1}`)
	})
}

func TestConfigThatMakesNoSense(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks, err := baton.New(batontest.New(t), baton.Config{})
		if err != nil {
			t.Fatal(err)
		}
		for _, cfg := range []Config{{MaxHold: -1}, {MaxSessions: -1}, {MaxUserSessions: -1}, {MaxLocks: -1}, {MaxUserLocks: -1}} {
			if _, err := New(locks, cfg); !errors.As(err, new(*ConfigError)) {
				t.Errorf("%+v: %v", cfg, err)
			}
		}
	})
}
