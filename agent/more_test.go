package agent

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/batontest"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/rules"
)

// newFullHost is a host whose agent has rules and operations.
func newFullHost(t *testing.T) *host {
	t.Helper()
	h := newHost(t, Config{})
	all, err := rules.Parse("rules.yaml", []byte(`
rules:
  - {name: login, requests: 2, period: 1m, algorithm: fixed-window}
  - {name: slow, requests: 60, period: 1m, algorithm: leaky-bucket}
  - {name: tiered, requests: 1, period: 1m, tiers: {pro: {requests: 5}}}
`))
	if err != nil {
		t.Fatal(err)
	}
	// The server does not read its Config before the first request.
	if h.server.cfg.Limits, err = rules.New(h.store, all); err != nil {
		t.Fatal(err)
	}
	if h.server.cfg.Once, err = once.New(h.store, once.Config{Lock: baton.Config{TTL: ttl}}); err != nil {
		t.Fatal(err)
	}
	return h
}

func TestTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newFullHost(t)
		a, b := h.connect(), h.connect()
		if r := a.must(`{"id":1,"do":"take","rule":"login","key":"eve"}`); *r.Limit != 2 || *r.Remaining != 1 || r.ResetMS <= 0 {
			t.Errorf("got %v", r)
		}
		b.must(`{"id":1,"do":"take","rule":"login","key":"eve","cost":1}`)
		r := b.refused("limited", `{"id":2,"do":"take","rule":"login","key":"eve"}`)
		if r.RetryMS <= 0 || *r.Remaining != 0 {
			t.Errorf("got %v", r)
		}
		b.must(`{"id":3,"do":"take","rule":"login","key":"bob"}`)
		if r := b.refused("limited", `{"id":4,"do":"take","rule":"login","key":"bob","cost":3}`); r.RetryMS != 0 {
			t.Errorf("a cost that is never allowed: %v", r)
		}
		time.Sleep(time.Duration(r.RetryMS) * time.Millisecond)
		b.must(`{"id":5,"do":"take","rule":"login","key":"eve"}`) // not a moment too early
		a.must(`{"id":2,"do":"take","rule":"tiered","key":"eve","tier":"pro","cost":5}`)
		a.must(`{"id":3,"do":"take","rule":"slow","key":"eve"}`)
		if r := a.must(`{"id":4,"do":"take","rule":"slow","key":"eve"}`); r.WaitMS != 1000 {
			t.Errorf("the second of a leaky bucket: %v", r)
		}
		a.refused("bad", `{"id":5,"do":"take","rule":"logon","key":"eve"}`)
		a.refused("bad", `{"id":6,"do":"take","rule":"login","key":""}`)
		f := h.store.Fail(batontest.Take, baton.ErrUnavailable)
		a.refused("store", `{"id":7,"do":"take","rule":"login","key":"eve"}`)
		f.Stop()
	})
}

// A session looks, gives back, asks several rules at once, and settles estimates.
func TestTakeThatIsNotAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newFullHost(t)
		h.server.cfg.MaxLocks = 2
		c := h.connect()
		id := 0
		left := func(rule string, want int64) {
			t.Helper()
			id++
			if r := c.must(`{"id":%d,"do":"take","rule":%q,"key":"eve","tier":"pro","cost":0}`, 100+id, rule); *r.Remaining != want {
				t.Errorf("%s: %v, want %d", rule, r, want)
			}
		}
		left("tiered", 5)
		c.must(`{"id":1,"do":"take","rule":"tiered","key":"eve","tier":"pro","cost":4}`)
		left("tiered", 1)
		c.must(`{"id":2,"do":"take","rule":"tiered","key":"eve","tier":"pro","cost":-1}`)
		left("tiered", 2)
		c.must(`{"id":2,"do":"take","rule":"tiered","key":"eve","tier":"pro","cost":-100}`)
		left("tiered", 5)
		r := c.must(`{"id":3,"do":"take","rule":"login","key":"eve","also":[{"rule":"tiered","key":"eve","tier":"pro","cost":2}]}`)
		if len(r.Each) != 2 || r.Each[0].Remaining != 1 || r.Each[1].Remaining != 3 || *r.Remaining != 1 {
			t.Errorf("got %v", r.Each)
		}
		c.refused("limited", `{"id":4,"do":"take","rule":"login","key":"eve","also":[{"rule":"tiered","key":"eve","tier":"pro","cost":5}]}`)
		left("tiered", 3)
		for _, bad := range []string{
			`"cost":-1,"also":[{"rule":"tiered","key":"eve"}]`, `"also":[]`, `"also":{}`, `"also":[1]`, `"also":[{"rule":1}]`, `"also":[{"wait_ms":1}]`,
			`"also":[{"rule":"login"}]`, `"also":[{"rule":"login","key":"x","cost":1.5}]`, `"reserve":1`, `"reserve":true,"cost":0`, `"cost":NaN`,
			`"reserve":true,"also":[{"rule":"tiered","key":"eve","cost":2}]`,
		} {
			if strings.Contains(bad, "NaN") {
				continue // it is no JSON, and ends a session
			}
			c.refused("bad", `{"id":5,"do":"take","rule":"login","key":"eve",%s}`, bad)
		}
		c.must(`{"id":6,"do":"take","rule":"tiered","key":"eve","tier":"pro","cost":3,"reserve":true}`)
		c.refused("bad", `{"id":6,"do":"take","rule":"tiered","key":"bob","tier":"pro","reserve":true}`) // the id is taken
		c.must(`{"id":7,"do":"take","rule":"tiered","key":"bob","tier":"pro","reserve":true}`)
		c.refused("busy", `{"id":8,"do":"take","rule":"tiered","key":"bob","tier":"pro","reserve":true}`)
		left("tiered", 0)
		c.refused("bad", `{"id":9,"do":"settle","take":6,"cost":-1}`)
		if r := c.must(`{"id":9,"do":"settle","take":6,"cost":1}`); r.Before {
			t.Errorf("got %v", r)
		}
		left("tiered", 2)
		c.refused("bad", `{"id":10,"do":"settle","take":6,"cost":1}`)
		h.connect().refused("bad", `{"id":10,"do":"settle","take":7,"cost":1}`) // another session's
		f := h.store.Fail(batontest.Take, baton.ErrUnavailable)
		c.refused("store", `{"id":11,"do":"settle","take":7,"cost":0}`)
		f.Stop()
		c.must(`{"id":12,"do":"settle","take":7,"cost":0}`)
		for id := 13; id < 15; id++ {
			c.must(`{"id":%d,"do":"take","rule":"tiered","key":"eve","tier":"pro","reserve":true}`, id)
		}
		c.refused("busy", `{"id":15,"do":"take","rule":"tiered","key":"eve","tier":"pro","reserve":true}`)
		time.Sleep(ratelimit.SettleWithin + time.Minute) // those that can be settled no more are forgotten
		c.must(`{"id":15,"do":"take","rule":"tiered","key":"eve","tier":"pro","reserve":true}`)
		c.refused("bad", `{"id":16,"do":"settle","take":13,"cost":0}`)
	})
}

// A client that does not read what it watches misses events, is told so with what stands when
// it reads again, and keeps its locks. The pipe has no buffer.
func TestWatchOfClientThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, Config{})
		deaf := h.dial()
		defer deaf.Close()
		in := bufio.NewReaderSize(deaf, 16) // little more than it is asked for
		next := func(want string) {
			t.Helper()
			text, err := in.ReadString('\n')
			var r reply
			if err == nil {
				err = json.Unmarshal([]byte(text), &r)
			}
			if got := fmt.Sprint(r.ID, r.OK, " ", r.Event, " ", r.Key); err != nil || strings.TrimSpace(got) != want {
				t.Fatalf("%q, %v, want %s", text, err, want)
			}
		}
		send := func(text string) {
			t.Helper()
			if _, err := io.WriteString(deaf, text+"\n"); err != nil {
				t.Fatal(err)
			}
		}
		next("0 true")
		send(`{"id":1,"do":"lock","key":"app/own"}`)
		next("1 true")
		send(`{"id":2,"do":"watch","key":"app/"}`)
		next("2 true got app/own")
		next("2 true ready")
		other := h.connect()
		other.must(`{"id":1,"do":"lock","key":"app/other"}`)
		if _, err := in.Peek(5); err != nil { // and no more than the beginning of a line
			t.Fatal(err)
		}
		time.Sleep(10 * ttl)
		other.must(`{"id":2,"do":"unlock","lock":1}`)
		time.Sleep(10 * ttl)
		next("2 true got app/other")
		next("2 true gap")
		next("2 true got app/own")
		next("2 true ready")
		send(`{"id":3,"do":"check","lock":1}`)
		next("3 true")
	})
}

// An election as its observers see it: the value of the leader, that it changes, and that
// others ask the leader to give way.
func TestObserveProclaimAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := newRoledHost(t, "uid:7 - job=lock,break other=list @ask/job=lock")
		leader, seen, other := h.connect(), h.connect(), h.connect()
		next := func(want string) {
			t.Helper()
			r := seen.next()
			if got := fmt.Sprint(*r.Led, " ", r.Value); r.ID != 5 || got != want {
				t.Errorf("%v, want %s", r, want)
			}
		}
		seen.refused("denied", `{"id":1,"do":"observe","key":"other"}`)
		seen.send(`{"id":5,"do":"observe","key":"job"}`)
		next("false ")
		leader.must(`{"id":1,"do":"lock","key":"job","value":"one"}`)
		next("true one")
		leader.must(`{"id":2,"do":"proclaim","lock":1,"value":"http: two"}`)
		next("true http: two")
		leader.must(`{"id":3,"do":"asked","lock":1}`)
		leader.refused("bad", `{"id":4,"do":"asked","lock":1}`)
		other.must(`{"id":1,"do":"lock","key":"@ask/job","mode":"shared","value":"a deployment"}`)
		if r := leader.next(); r.ID != 3 || r.Reason != "a deployment" {
			t.Errorf("asked: %v", r)
		}
		leader.must(`{"id":5,"do":"unlock","lock":1}`)
		next("false ")
		leader.refused("bad", `{"id":6,"do":"proclaim","lock":1,"value":"late"}`)
		leader.refused("bad", `{"id":7,"do":"asked","lock":1}`)
		leader.refused("bad", `{"id":8,"do":"proclaim","lock":1}`)
		leader.must(`{"id":9,"do":"lock","keys":["job","job2"]}`)
		leader.refused("bad", `{"id":10,"do":"proclaim","lock":9,"value":"of which?"}`)
	})
}

// A session that watches is told who has, had and wants locks, until it ends or may not any
// more.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, of := newRoledHost(t, "uid:7 - app/=lock,list other/=lock")
		a, b := h.connect(), h.connect()
		a.refused("denied", `{"id":1,"do":"watch"}`)
		a.refused("denied", `{"id":1,"do":"watch","key":"other/"}`)
		b.must(`{"id":1,"do":"lock","key":"other/x"}`)
		next := func(want string) {
			t.Helper()
			r := a.next()
			if got := strings.TrimSpace(r.Event + " " + r.Key + " " + r.Owner); r.ID != 2 || got != want {
				t.Errorf("%v: %q, want %q", r, got, want)
			}
		}
		a.send(`{"id":2,"do":"watch","key":"app/"}`)
		next("ready")
		b.must(`{"id":2,"do":"lock","key":"app/x","value":"me"}`)
		next("got app/x me")
		b.must(`{"id":3,"do":"unlock","lock":2}`)
		next("ended app/x me")
		of.set(t, "uid:7 - app/=lock other/=lock")
		if r := a.next(); r.Error != "denied" || r.ID != 2 {
			t.Errorf("got %v", r)
		}
		of.set(t, "uid:7 - =lock,list")
		for i := range maxWatches {
			a.send(`{"id":%d,"do":"watch","key":"none/"}`, 10+i)
			if r := a.next(); r.Event != "ready" {
				t.Errorf("got %v", r)
			}
		}
		b.refused("busy", `{"id":9,"do":"watch","key":"none/"}`)
		if h.server.users[-1].watches.Load() != maxWatches {
			t.Error("the watches are not counted")
		}
	})
}

// An agent without rules and operations says so.
func TestWithoutRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newHost(t, Config{}).connect()
		c.refused("unsupported", `{"id":1,"do":"take","rule":"login","key":"eve"}`)
		c.refused("unsupported", `{"id":2,"do":"once","key":"k"}`)
	})
}

// A client that does not wait for answers is refused beyond a number of them.
func TestAsksAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newFullHost(t)
		c := h.connect()
		h.store.Delay(batontest.Take, time.Second)
		for i := range maxAsks + 5 {
			c.send(`{"id":%d,"do":"take","rule":"login","key":"eve"}`, i+1)
		}
		busy := 0
		for range maxAsks + 5 {
			if c.next().Error == "busy" {
				busy++
			}
		}
		if busy != 5 {
			t.Errorf("%d were refused", busy)
		}
		c.refused("limited", `{"id":1,"do":"take","rule":"login","key":"eve"}`)
	})
}

// The sessions of one user have a bound together.
func TestAsksOfAUserAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newFullHost(t)
		h.store.Delay(batontest.Take, time.Second)
		var all []*client
		for range maxUserAsks/maxAsks + 1 {
			all = append(all, h.connect())
		}
		for _, c := range all {
			for i := range maxAsks {
				c.send(`{"id":%d,"do":"take","rule":"login","key":"eve"}`, i+1)
			}
		}
		busy := 0
		for _, c := range all {
			for range maxAsks {
				if c.next().Error == "busy" {
					busy++
				}
			}
		}
		if busy != maxAsks {
			t.Errorf("%d were refused", busy)
		}
		all[0].refused("limited", `{"id":1,"do":"take","rule":"login","key":"eve"}`)
	})
}

// One client runs an operation, and the others get what it has recorded.
func TestOperationRunsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newFullHost(t)
		a, b := h.connect(), h.connect()
		r := a.must(`{"id":1,"do":"once","key":"op","max_hold_ms":60000}`)
		if !r.Run || r.Attempts != 1 || token(t, r) == 0 || *r.RemainingMS <= 0 || r.MaxHoldMS != 60_000 || r.Result != nil {
			t.Errorf("the first got %v", r)
		}
		if r := b.refused("held", `{"id":1,"do":"once","key":"op","wait_ms":0}`); !strings.Contains(r.Message, "client of this agent") {
			t.Errorf("the message is %q", r.Message)
		}
		release := h.store.Hold(once.LockPrefix+"far", "another host")
		h.connect().must(`{"id":1,"do":"lock","key":"far"}`) // another lock
		if r := b.refused("held", `{"id":1,"do":"once","key":"far","wait_ms":0}`); strings.Contains(r.Message, "client of this agent") {
			t.Errorf("the message is %q", r.Message)
		}
		release()
		a.refused("nested", `{"id":2,"do":"once","key":"op","wait_ms":0}`)
		b.send(`{"id":2,"do":"once","key":"op"}`)
		synctest.Wait()
		a.must(`{"id":3,"do":"check","lock":1}`)
		time.Sleep(3 * ttl)
		a.must(`{"id":4,"do":"finish","lock":1,"result":"paid"}`)
		if r := b.next(); !r.OK || r.Run || r.Result == nil || *r.Result != "paid" {
			t.Errorf("the second got %v", r)
		}
		a.refused("bad", `{"id":5,"do":"finish","lock":1,"result":"again"}`)
		if r := a.must(`{"id":6,"do":"once","key":"op"}`); r.Run || *r.Result != "paid" {
			t.Errorf("later it is %v", r)
		}

		// It has failed for good.
		a.must(`{"id":10,"do":"once","key":"bad"}`)
		a.must(`{"id":11,"do":"finish","lock":10,"failed":"no \u001b such order"}`)
		if r := b.refused("failed", `{"id":10,"do":"once","key":"bad"}`); r.Message != `no \x1b such order` {
			t.Errorf("the message is %q", r.Message)
		}

		// An empty result is one.
		a.must(`{"id":20,"do":"once","key":"empty","request":"r"}`)
		a.must(`{"id":21,"do":"finish","lock":20,"result":""}`)
		if r := b.must(`{"id":20,"do":"once","key":"empty","request":"r"}`); r.Run || r.Result == nil || *r.Result != "" {
			t.Errorf("got %v", r)
		}
		b.refused("other", `{"id":21,"do":"once","key":"empty","request":"s"}`)
	})
}

// A client that dies, gives up, or loses the lock of an attempt leaves it to the next.
func TestAttemptThatIsNotFinished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newFullHost(t)
		a, b := h.connect(), h.connect()
		first := a.must(`{"id":1,"do":"once","key":"op"}`)
		b.send(`{"id":1,"do":"once","key":"op"}`)
		synctest.Wait()
		began := time.Now()
		a.conn.Close() // it dies
		second := b.next()
		if !second.Run || second.Attempts != 2 || token(t, second) <= token(t, first) || time.Since(began) != 0 {
			t.Errorf("after %v: %v", time.Since(began), second)
		}
		c := h.connect()
		c.send(`{"id":1,"do":"once","key":"op"}`)
		synctest.Wait()
		b.must(`{"id":2,"do":"unlock","lock":1}`) // it gives up
		if r := c.next(); !r.Run || r.Attempts != 3 {
			t.Errorf("got %v", r)
		}
		h.store.Lose(once.LockPrefix + "op")
		if r := c.over(); r.Lost != 1 || r.Cause != "gone" {
			t.Errorf("the loss is told by %v", r)
		}
		// One that waits goes away, and nothing is left of it.
		b.must(`{"id":3,"do":"once","key":"op"}`)
		d := h.connect()
		d.send(`{"id":1,"do":"once","key":"op"}`)
		synctest.Wait()
		d.send(`{"id":2,"do":"unlock","lock":1}`)
		synctest.Wait()
		for range 2 {
			if r := d.next(); r.ID == 1 && r.Error != "cancelled" || r.ID == 2 && !r.OK {
				t.Errorf("got %v", r)
			}
		}
		b.must(`{"id":4,"do":"finish","lock":3,"result":"done"}`)
	})
}

// The store is silent while an attempt is finished: the session is not.
func TestFinishWithoutAStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newFullHost(t)
		a := h.connect()
		a.must(`{"id":1,"do":"once","key":"op"}`)
		f := h.store.Fail(batontest.Finish, baton.ErrUnavailable)
		a.send(`{"id":2,"do":"finish","lock":1,"result":"paid"}`)
		synctest.Wait()
		a.must(`{"id":3,"do":"ping"}`)
		f.Stop()
		if r := a.next(); r.ID != 2 || !r.OK {
			t.Errorf("got %v", r)
		}
	})
}

func TestElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newFullHost(t)
		a, b := h.connect(), h.connect()
		if r := b.must(`{"id":1,"do":"leader","key":"api"}`); r.Led == nil || *r.Led {
			t.Errorf("without a leader: %v", r)
		}
		elected := a.must(`{"id":1,"do":"lock","key":"api","value":"a:8080"}`)
		b.send(`{"id":2,"do":"lock","key":"api","value":"b:8080"}`)
		synctest.Wait()
		if r := b.must(`{"id":3,"do":"leader","key":"api"}`); !*r.Led || r.Value != "a:8080" || r.Token != elected.Token {
			t.Errorf("the leader is %v, elected %v", r, elected)
		}
		a.conn.Close()
		if r := b.next(); !r.OK {
			t.Error(r)
		}
		if r := b.must(`{"id":4,"do":"leader","key":"api"}`); r.Value != "b:8080" {
			t.Errorf("the leader is %v", r)
		}
		b.refused("bad", `{"id":5,"do":"lock","key":"x","value":"a\nb"}`)
		b.refused("bad", `{"id":6,"do":"leader","key":""}`)
	})
}
