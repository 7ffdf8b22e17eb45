package drivertest

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
)

// oddKeys are different legal keys. For each, some store has confused it with another key
// or with syntax.
var oddKeys = []string{
	"a", "A", "a ", " a", "a  ", "b", "ab",
	"é", "e\u0301", "É", "ß", "ss", // precomposed, combining, and equal in some collations
	"a}b", "{}x", "{a}", "{a}b", "{", "}", "{{a}}",
	"a/b", "a//b", "/a", "a/", ".", "..", "%", "%2F", "a%00", "a_b", "a-b",
	"a:b", "a,b", "a|b", "a;b", "a*", "a?", "[a]", "a\\b", "\\x00", "#", "a&b=c+d",
	`a"b`, "a'b", "a''b", "a`b", "'; DROP TABLE lock; --", "$1", "?1", "NULL", "null", "0", "00", "1e2",
	"🔒", "日本語", "\u200b", "a\u00a0", "\ufeffa", "\ufffd",
	strings.Repeat("k", check.MaxKey), strings.Repeat("k", check.MaxKey-1) + "l", strings.Repeat("k", check.MaxKey-1),
	strings.Repeat("é", check.MaxKey/2), strings.Repeat("{", check.MaxKey-1) + "}",
}

var illegalKeys = map[string]string{
	"empty":               "",
	"NUL":                 "a\x00b",
	"a line feed":         "a\n",
	"DEL":                 "a\x7f",
	"a C1 control":        "a\u0085b",
	"no UTF-8":            "a\xffb",
	"half a character":    "a\xc3",
	"a surrogate":         "\xed\xa0\x80",
	"one byte too long":   strings.Repeat("k", check.MaxKey+1),
	"much too long":       strings.Repeat("k", 1<<16),
	"too long in letters": strings.Repeat("é", check.MaxKey/2) + "k",
}

var requestCases = []testCase{
	{
		name: "odd keys are different locks",
		why:  "two keys that differ in one byte must never be one lock, and no key may break the store's syntax",
		run: func(t *test) {
			holders := map[string]*seat{}
			var all []*seat
			for _, key := range oddKeys {
				s := t.writer(0, key).hold()
				holders[key] = s
				all = append(all, s)
			}
			if len(holders) != len(oddKeys) {
				t.Fatalf("%d keys are %d different ones", len(oddKeys), len(holders))
			}
			t.held(all...)
			for _, key := range oddKeys {
				t.writer(1, key).refused()
			}
			if i, ok := driver.As[driver.Inspector](t.locks[1]); ok {
				t.sameKeys("", oddKeys)
				for _, key := range oddKeys {
					if info, err := i.Inspect(t.ctx, key); err != nil || info.Key != key || len(info.Holders) != 1 {
						t.Errorf("inspect %q: %+v, %v, want one holder", key, info, err)
					}
				}
			}
			for _, s := range all {
				s.leave()
			}
			for _, s := range all {
				s.gone()
			}
		},
	},
	{
		name:  "odd keys have queues of their own",
		why:   "what a store keeps beside the lock must be found under every key, and under no other",
		needs: []need{fifo},
		run: func(t *test) {
			for _, key := range oddKeys {
				h := t.writer(0, key).hold()
				a := t.writer(1, key).join()
				h.leave()
				a.mustBe(driver.Held)
				b := t.writer(2, key).join()
				b.leave()
				a.leave()
				t.free(key)
			}
		},
	},
	{
		name:  "odd keys have readers and permits of their own",
		why:   "what a store keeps beside the lock must be found under every key, and under no other",
		needs: []need{shared, permits},
		run: func(t *test) {
			for _, key := range oddKeys {
				r := t.reader(0, key).hold()
				t.writer(1, key).refused()
				if d, ok := driver.As[driver.Downgrader](t.locks[0]); ok {
					r.leave()
					r = t.writer(0, key).hold()
					if _, err := d.Downgrade(t.ctx, r.Claim, r.ttl); err != nil {
						t.Fatalf("%s: downgrade: %v", r.name, err)
					}
					r.Weight = 1
				}
				r2 := t.reader(1, key).hold()
				r.leave()
				r2.leave()
				t.permits(2, key, 2, 3).hold().leave()
				t.free(key)
			}
		},
	},
	{
		name:  "odd keys can be broken",
		why:   "the key that nobody can type is the one that has to be broken some day",
		needs: []need{inspector},
		run: func(t *test) {
			var all []*seat
			for _, key := range oddKeys {
				all = append(all, t.writer(0, key).hold())
			}
			for i, s := range all {
				if n, err := ability[driver.Inspector](t.locks[1]).Break(t.ctx, s.Key); n != 1 || err != nil {
					t.Errorf("break %q: %d holders, %v, want 1", s.Key, n, err)
				}
				if i+1 < len(all) {
					all[i+1].mustBe(driver.Held)
				}
			}
			t.sameKeys("", nil)
		},
	},
	{
		name:  "a prefix is compared byte by byte",
		why:   "a prefix is not a pattern: % and _ and * and [ mean themselves",
		needs: []need{inspector},
		run: func(t *test) {
			for _, key := range oddKeys {
				t.writer(0, key).hold()
			}
			for _, prefix := range []string{"a", "A", "a ", "a*", "a?", "a_", "%", "_", "[", "[a]", "{", "{a}", "é", "e", "\\", "'", `a"`, "k", "🔒", "none"} {
				var want []string
				for _, key := range oddKeys {
					if strings.HasPrefix(key, prefix) {
						want = append(want, key)
					}
				}
				t.sameKeys(prefix, want)
			}
		},
	},
	{
		name: "illegal keys are refused",
		why:  "one store could keep them and the next could not, or would cut them: then two keys were one lock",
		run: func(t *test) {
			check := func(verb, what string, err error) {
				t.Helper()
				if _, ok := errors.AsType[*driver.KeyError](err); !ok {
					t.Errorf("%s with a key that is %s: %v, want a *driver.KeyError", verb, what, outcome(err))
				}
			}
			for what, key := range illegalKeys {
				s := t.writer(0, key)
				check("acquire", what, s.acquire(false, false))
				check("acquire with a place", what, s.acquire(true, false))
				check("release", what, s.release())
				if d, ok := driver.As[driver.Downgrader](s.l()); ok {
					_, err := d.Downgrade(t.ctx, s.Claim, s.ttl)
					check("downgrade", what, err)
				}
				if i, ok := driver.As[driver.Inspector](s.l()); ok {
					_, err := i.Inspect(t.ctx, key)
					check("inspect", what, err)
					_, err = i.Break(t.ctx, key)
					check("break", what, err)
				}
			}
			if _, ok := driver.As[driver.Inspector](t.locks[0]); ok {
				t.sameKeys("", nil)
			}
		},
	},
	{
		name: "bad requests are refused",
		why:  "a request that makes no sense must fail before it changes anything, on every store alike",
		run: func(t *test) {
			day := 24 * time.Hour
			bad := map[string]func(*driver.Request){
				"ttl:zero":           func(r *driver.Request) { r.TTL = 0 },
				"ttl:negative":       func(r *driver.Request) { r.TTL = -time.Second },
				"ttl:endless":        func(r *driver.Request) { r.TTL = 1<<63 - 1 },
				"id:empty":           func(r *driver.Request) { r.ID = "" },
				"id:too long":        func(r *driver.Request) { r.ID = strings.Repeat("x", 65) },
				"id:a space":         func(r *driver.Request) { r.ID = "a b" },
				"id:a colon":         func(r *driver.Request) { r.ID = "a:b" },
				"id:a letter é":      func(r *driver.Request) { r.ID = "é" },
				"owner:too long":     func(r *driver.Request) { r.Owner = strings.Repeat("x", 129) },
				"owner:control":      func(r *driver.Request) { r.Owner = "a\x1b[2J" },
				"owner:no UTF-8":     func(r *driver.Request) { r.Owner = "\xff" },
				"weight:zero":        func(r *driver.Request) { r.Weight, r.Capacity = 0, 3 },
				"weight:negative":    func(r *driver.Request) { r.Weight, r.Capacity = -1, 3 },
				"weight:more":        func(r *driver.Request) { r.Weight, r.Capacity = 4, 3 },
				"weight:no capacity": func(r *driver.Request) { r.Weight, r.Capacity = 1, 0 },
				"weight:huge":        func(r *driver.Request) { r.Weight, r.Capacity = 1, check.MaxPermits+1 },
				"weight:beyond":      func(r *driver.Request) { r.Weight, r.Capacity = 1, driver.Whole+1 },
				"waiting:negative":   func(r *driver.Request) { r.MaxWaiting = -1 },
				"weight:two readers": func(r *driver.Request) { r.Weight, r.Capacity = 2, driver.Whole },
			}
			if t.traits.MinTTL > 1 {
				bad["ttl:too short"] = func(r *driver.Request) { r.TTL = t.traits.MinTTL - 1 }
			}
			if t.traits.MaxTTL > 0 && t.traits.MaxTTL < 1000*day {
				bad["ttl:too long"] = func(r *driver.Request) { r.TTL = t.traits.MaxTTL + 1 }
			}
			if t.traits.MaxTTL == 0 {
				delete(bad, "ttl:endless")
			}
			for what, spoil := range bad {
				field, _, _ := strings.Cut(what, ":")
				r := t.writer(0, "k").request(true, false)
				spoil(&r)
				_, err := t.locks[0].Acquire(t.ctx, r)
				e, ok := errors.AsType[*driver.RequestError](err)
				if !ok || e.Field != field || e.Key != "k" || e.Reason == "" {
					t.Errorf("%s: %v, want a *driver.RequestError about the %s", what, outcome(err), field)
				}
				if ok && r.ID != "" && strings.Contains(e.Error(), r.ID) {
					t.Errorf("%s: the error shows the ID: %v", what, e)
				}
			}
			t.free("k")
		},
	},
	{
		name: "a bad TTL changes nothing",
		why:  "a renewal that makes no sense must neither end nor prolong the lock",
		run: func(t *test) {
			a := t.writer(0, "k").hold()
			bad := []time.Duration{0, -time.Second}
			if t.traits.MinTTL > 1 {
				bad = append(bad, t.traits.MinTTL-1)
			}
			if t.traits.MaxTTL > 0 {
				bad = append(bad, t.traits.MaxTTL+1)
			}
			for _, ttl := range bad {
				got := a.l().Renew(t.ctx, []driver.Claim{a.Claim}, ttl)[0]
				if _, ok := errors.AsType[*driver.RequestError](got.Err); got.State != driver.Unknown || !ok {
					t.Errorf("renew with a TTL of %v: %v (%v), want unknown with a *driver.RequestError", ttl, got.State, got.Err)
				}
				if d, ok := driver.As[driver.Downgrader](a.l()); ok {
					_, err := d.Downgrade(t.ctx, a.Claim, ttl)
					if _, ok := errors.AsType[*driver.RequestError](err); !ok {
						t.Errorf("downgrade with a TTL of %v: %v, want a *driver.RequestError", ttl, outcome(err))
					}
				}
			}
			if t.traits.Shared {
				t.reader(1, "k").refused()
			}
			a.mustBe(driver.Held)
			a.leave()
			t.free("k")
		},
	},
	{
		name: "requests at the limits are granted",
		why:  "what the contract allows must work on every store",
		run: func(t *test) {
			try := func(what string, s *seat) {
				t.Helper()
				if err := s.acquire(false, false); err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				s.mustBe(driver.Held)
				s.leave()
			}
			s := t.writer(0, "k")
			s.ID = "azAZ09-_" + strings.Repeat("x", 56)
			try("an ID of 64 characters", s)
			s = t.writer(0, "k")
			s.ID = "-"
			try("an ID of one character", s)
			s = t.writer(0, "k")
			s.Owner = ""
			try("no owner", s)
			s = t.writer(0, "k")
			s.Owner = strings.Repeat("ö|", 42) + "\"'"
			try("an owner of 128 bytes", s)
			if t.traits.MaxTTL > 0 {
				try("the longest TTL", t.writer(0, "k").lasting(t.traits.MaxTTL))
			}
			if t.traits.Permits {
				try("all permits", t.permits(0, "k", check.MaxPermits, check.MaxPermits))
				try("one of one", t.permits(0, "k", 1, 1))
			}
			s = t.writer(0, "k").lasting(max(t.traits.MinTTL, 1))
			if err := s.acquire(false, false); err != nil {
				t.Fatalf("the shortest TTL: %v", err)
			}
		},
	},
	{
		name: "what a store lacks is refused",
		why:  "a missing ability must be an error that errors.Is finds, never something weaker in its place",
		run: func(t *test) {
			for _, x := range []struct {
				has bool
				s   *seat
			}{{t.traits.Shared, t.reader(0, "k")}, {t.traits.Permits, t.permits(0, "k", 1, 3)}} {
				err := x.s.acquire(false, false)
				if x.has && err != nil || !x.has && !errors.Is(err, errors.ErrUnsupported) {
					t.Errorf("%s on a store with %+v: %v", x.s.name, t.traits, outcome(err))
				}
				if err == nil {
					x.s.leave()
				}
			}
			if t.traits.Store == "" {
				t.Errorf("the store has no name")
			}
			if a, b := t.locks[0].Traits(), t.locks[1].Traits(); a != b || a != t.traits {
				t.Errorf("traits are not constant: %+v, %+v", a, b)
			}
		},
	},
}

// sameKeys asserts that List shows exactly the given keys, once each.
func (t *test) sameKeys(prefix string, want []string) {
	t.Helper()
	missing := map[string]bool{}
	for _, key := range want {
		missing[key] = true
	}
	seen := map[string]bool{}
	for info, err := range ability[driver.Inspector](t.locks[1]).List(t.ctx, prefix) {
		if err != nil {
			t.Fatalf("list %q: %v", prefix, err)
		}
		t.noID(info)
		switch {
		case seen[info.Key]:
			t.Errorf("list %q shows %q twice", prefix, info.Key)
		case !missing[info.Key]:
			t.Errorf("list %q shows %q", prefix, info.Key)
		case len(info.Holders)+len(info.Waiters) == 0:
			t.Errorf("list %q shows %q, which nobody holds or waits for", prefix, info.Key)
		}
		seen[info.Key] = true
		delete(missing, info.Key)
	}
	for key := range missing {
		t.Errorf("list %q does not show %q", prefix, key)
	}
}

// noID asserts that what people see contains no ID: with an ID they could act as the
// holder.
func (t *test) noID(shown any) {
	t.Helper()
	text := fmt.Sprintf("%+v %#v %v", shown, shown, shown)
	t.mu.Lock()
	shows := false
	for id := range t.ids {
		shows = shows || strings.Contains(text, id)
	}
	t.mu.Unlock()
	if shows {
		t.Errorf("an ID is shown in %s", text)
	}
}
