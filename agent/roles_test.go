package agent

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/internal/roles"
)

// callers are roles that change.
type callers struct{ atomic.Pointer[roles.Table] }

func (c *callers) set(t *testing.T, text string) {
	t.Helper()
	table, _, err := roles.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	c.Store(table)
}

// find says that the peer of a pipe is user 7, whom the kernel does not know.
func (c *callers) find(uid int64) (Caller, error) {
	if uid < 0 {
		uid = 7
	}
	r, err := c.Load().ByUID(uid)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// newRoledHost is newFullHost with roles for the user of its pipes.
func newRoledHost(t *testing.T, roles string) (*host, *callers) {
	h, of := newFullHost(t), &callers{}
	of.set(t, roles)
	h.server.cfg.Caller = of.find
	return h, of
}

func TestRoles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, of := newRoledHost(t, "uid:7 - app/=lock,list app/secret/= op/=once login:=limit")
		c := h.connect()
		for _, denied := range []string{
			`"do":"lock","key":"other"`,
			`"do":"lock","key":"app/secret/x"`,
			`"do":"lock","key":"once/op/x"`,
			`"do":"lock","keys":["app/x","other"]`,
			`"do":"lock","key":"app/x","mode":"shared"` + `,"key":"other"`, // twice: bad
			`"do":"leader","key":"other"`,
			`"do":"who"`,
			`"do":"who","key":"app/"`,
			`"do":"take","rule":"login","key":"eve"`,
			`"do":"take","rule":"login","key":"eve","cost":0`,
			`"do":"take","rule":"login","key":"login:eve","also":[{"rule":"login","key":"eve"}]`,
			`"do":"take","rule":"login","key":"login:eve","cost":-1`,
			`"do":"take","rule":"login","key":"login:eve","cost":0,"also":[{"rule":"login","key":"login:eve","cost":-1}]`,
			`"do":"once","key":"other"`,
			`"do":"once","key":"app/x"`,
		} {
			want := "denied"
			if strings.Count(denied, `"key"`) > 1 && !strings.Contains(denied, "also") || strings.Contains(denied, `"lock","key":"once/`) {
				want = "bad"
			}
			c.refused(want, `{"id":1,%s}`, denied)
		}
		if n := len(h.server.table.keys); n != 0 || len(h.store.Waiters("other")) != 0 {
			t.Errorf("what was denied has left locks of %d keys", n)
		}
		c.must(`{"id":2,"do":"lock","keys":["app/x","app/y"]}`)
		c.must(`{"id":3,"do":"who","key":"app/x"}`)
		c.must(`{"id":4,"do":"take","rule":"login","key":"login:eve"}`)
		c.must(`{"id":5,"do":"once","key":"op/x"}`)
		c.must(`{"id":6,"do":"check","lock":2}`)
		c.must(`{"id":7,"do":"finish","lock":5,"result":"r"}`)
		c.must(`{"id":8,"do":"leader","key":"app/x"}`)
		c.must(`{"id":9,"do":"unlock","lock":2}`)

		// A user who is unknown is told so, and the session ends.
		of.set(t, "uid:8 - app/=lock")
		stranger := h.connectRaw()
		if r := stranger.over(); r.Error != "denied" || !strings.Contains(r.Message, "user 7") {
			t.Errorf("an unknown user got %v", r)
		}
		c.refused("denied", `{"id":10,"do":"lock","key":"app/x"}`) // an older session, too
	})
}

// A refusal names the holder only to a user who may list the key.
func TestRefusalTellsTheHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newFullHost(t)
		h.store.Hold("seen/x", "payroll of Alice")
		h.store.Hold("hidden/x", "payroll of Alice")
		of := &callers{}
		of.set(t, "uid:7 - seen/=lock,list hidden/=lock")
		h.server.cfg.Caller = of.find
		c := h.connect()
		if r := c.refused("held", `{"id":1,"do":"lock","key":"seen/x","wait_ms":0}`); !strings.Contains(r.Message, "Alice") {
			t.Errorf("a user who may list: %v", r)
		}
		for _, wait := range []int{0, 1000} {
			if r := c.refused("held", `{"id":2,"do":"lock","key":"hidden/x","wait_ms":%d}`, wait); strings.Contains(r.Message, "Alice") || !strings.Contains(r.Message, "hidden/x") {
				t.Errorf("a user who may not list, after %d ms: %v", wait, r)
			}
		}
	})
}

// After a change of the roles a user keeps no lock and no position that the new roles
// deny.
func TestRolesThatChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, of := newRoledHost(t, "uid:7 - a/=lock b/=lock op/=once")
		holder, waiter, runner, other := h.connect(), h.connect(), h.connect(), h.connect()
		holder.must(`{"id":1,"do":"lock","key":"a/x"}`)
		waiter.send(`{"id":1,"do":"lock","key":"a/x"}`)
		runner.must(`{"id":1,"do":"once","key":"op/x"}`)
		other.must(`{"id":1,"do":"lock","key":"b/x"}`)
		synctest.Wait()

		h.server.Recheck()
		synctest.Wait()
		holder.quiet() // nothing has changed
		of.set(t, "uid:7 - a/=list b/=lock")
		h.server.Recheck()
		synctest.Wait()
		for _, c := range []*client{holder, waiter, runner} {
			if r := c.next(); r.ID == 1 && r.Error == "cancelled" {
				continue // its wait has ended first
			} else if r.ID != 0 || r.Error != "denied" {
				t.Errorf("after the roles have changed a client got %v", r)
			}
		}
		other.quiet()
		other.must(`{"id":2,"do":"check","lock":1}`)
		time.Sleep(ttl) // until what the holder was promised is over
		synctest.Wait()
		if n := len(h.server.table.keys); n != 1 {
			t.Errorf("locks of %d keys are left, want that of b/x", n)
		}
		other.refused("denied", `{"id":3,"do":"lock","key":"a/x","wait_ms":0}`)
	})
}

// A request that is under way while the roles change is denied, or its session is ended:
// there is no gap between both.
func TestRolesThatChangeMeanwhile(t *testing.T) {
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			h, of := newRoledHost(t, "uid:7 - a/=lock")
			c := h.connect()
			changed := make(chan struct{})
			go func() {
				defer close(changed)
				of.set(t, "uid:7 - a/=list")
				h.server.Recheck()
			}()
			c.send(`{"id":1,"do":"lock","key":"a/x"}`)
			<-changed
			synctest.Wait()
			time.Sleep(ttl) // what was promised is over
			synctest.Wait()
			if n := len(h.server.table.keys); n != 0 {
				t.Fatalf("locks of %d keys are left", n)
			}
			if n := len(c.lines); n == 0 {
				t.Fatal("the client was told nothing")
			}
		})
	}
}
