//go:build unix

package clients

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The rows of the table about abilities of a client. Other rows are about events.

func numbers(t *testing.T, h *host, l language) {
	p := l.start(t, h.at(l))
	key := "numbers-" + p.key()
	bound := "bad" // of no time at all; a wait of 0 is none
	p.number("lock %s 0 - -", key)
	p.must("ok", "unlock")
	p.must("error bad", "lock %s -1 - -", key)
	p.must("error bad", "lock %s - -1 -", key)
	p.must("error "+bound, "lock %s - 0 -", key)
	if l.can(anyNumber) {
		p.number("lock %s 1e15 - -", key)
		p.must("ok", "unlock")
		p.must("error bad", "lock %s NaN - -", key)
		p.must("error bad", "lock %s - NaN -", key)
		p.number("lock %s inf - -", key)
		p.must("ok", "unlock")
		if l.http { // its bound is the ttl
			p.must("error bad", "lock %s - inf -", key)
		} else {
			p.number("lock %s - inf -", key)
			p.must("ok", "unlock")
		}
	}
	p.lock(key)
	p.must("ok", "unlock")
}

func onlyOnce(t *testing.T, h *host, l language) {
	a, b, killed := l.start(t, h.at(l)), l.start(t, h.at(l)), l.start(t, h.at(l))
	key := "once-" + a.key()
	is := func(p *process, want, format string, args ...any) {
		t.Helper()
		if got := p.must("ok", format, args...); got != "ok "+want {
			t.Errorf("%s: it answers %q, want %q", fmt.Sprintf(format, args...), got, want)
		}
	}
	a.must("raised", "once %s - raise x", key)
	is(b, "first 2", "once %s - result first", key)
	is(a, "first 0", "once %s - result second", key)
	is(a, "é\"\\ 1", `once %s-text - result é"\`, key)
	is(b, "é\"\\ 0", "once %s-text - result x", key)
	a.must("error "+bad(l), "once \x1b - result x")
	if l.can(final) {
		a.must("failed declined", "once %s-failed - fail declined", key)
		b.must("failed declined", "once %s-failed - result x", key)
	}

	life := pipe(t, h)
	a.send("once %s-runs - block %s", key, life)
	a.expect("ok runs", "once")
	b.must("held", "once %s-runs 0 result x", key)
	b.must("held", "once %s-runs 200 result x", key)
	b.send("once %s-runs - result x", key)
	life.end(t)
	a.expect(fmt.Sprintf("ok %s 1", life), "once")
	b.expect(fmt.Sprintf("ok %s 0", life), "once")

	killed.send("once %s-killed - block %s", key, pipe(t, h))
	killed.expect("ok runs", "once")
	b.send("once %s-killed - result after", key)
	killed.kill()
	b.expect("ok after 2", "once")
}

// limits uses the rule of rules.yaml: two an hour.
func limits(t *testing.T, h *host, l language) {
	a, b := l.start(t, h.at(l)), l.start(t, h.at(l))
	key := a.key()
	for i, p := range []*process{a, b, a} {
		got := p.must("ok", "take burst %s -", key)
		var retry int
		switch n, err := fmt.Sscanf(got, "ok false 0 %d", &retry); {
		case i < 2 && got != fmt.Sprintf("ok true %d 0", 1-i), i == 2 && (n != 1 || err != nil || retry <= 0 || retry > 3_700_000):
			t.Errorf("take %d of 2 an hour answers %q", i+1, got)
		}
	}
	if got := b.must("ok", "take burst %s-more 3", key); got != "ok false 2 -1" {
		t.Errorf("of a cost above the limit it says %q", got)
	}
	a.must("error "+bad(l), "take none %s -", key)
	if l.can(anyNumber) && l.name != "PHP" && l.name != "PHP, HTTP" { // there it is an int
		a.must("error bad", "take burst %s NaN", key)
		a.must("error bad", "take burst %s inf", key)
	}
}

func settled(t *testing.T, h *host, l language) {
	p := l.start(t, h.at(l))
	if got := p.must("ok", "settle burst settled-%s 2 1", p.key()); got != "ok 0 1 1" {
		t.Errorf("of 2 an hour, 2 reserved and 1 spent, it says %q", got)
	}
}

func leads(t *testing.T, h *host, l language) {
	a, b := l.start(t, h.at(l)), l.start(t, h.at(l))
	key := "leader-" + a.key()
	if got := b.must("ok", "leader %s", key); got != "ok none" {
		t.Errorf("before an election it says %q", got)
	}
	token := a.number("lock %s 0 - - 10.0.0.1:80", key)
	led := b.must("ok 10.0.0.1:80", "leader %s", key)
	if got := strings.TrimPrefix(led, "ok 10.0.0.1:80 "); got != "0" && got != strconv.FormatInt(token, 10) {
		t.Errorf("the leader has the token %d, it says %q", token, led)
	}
	b.must("held", "lock %s 0 - - 10.0.0.2:80", key)
	a.must("ok", "unlock")
	b.number("lock %s 0 - - 10.0.0.2:80", key)
	a.must("ok 10.0.0.2:80", "leader %s", key)
}

// free fails the test unless the process gets key soon.
func (p *process) free(key, why string) {
	p.t.Helper()
	p.send("lock %s %d - -", key, patience.Milliseconds())
	began := time.Now()
	if p.expect("ok", why); time.Since(began) > ttl*3/4 {
		p.t.Errorf("%s: %s: the lock was free after %v", p.l.name, why, time.Since(began))
	}
	p.must("ok", "unlock")
}

func raises(t *testing.T, h *host, l language) {
	if l.name == "bash" {
		return // it has no errors that come out of something
	}
	a, b := l.start(t, h.at(l)), l.start(t, h.at(l))
	a.must("raised", "raise raised-%s", a.key())
	b.free("raised-"+a.key(), "an error came out of the work under it")
}

func interrupts(t *testing.T, h *host, l language) {
	a, b, c := l.start(t, h.at(l)), l.start(t, h.at(l)), l.start(t, h.at(l))
	key := "awaited-" + a.key()
	a.lock(key)
	b.must("ok", "interrupt %s", key)
	a.must("ok", "unlock")
	c.free(key, "a wait for it was interrupted")
	b.lock(key)
	b.promise()
	b.must("ok", "unlock")
}

func threads(t *testing.T, h *host, l language) {
	p := l.start(t, h.at(l))
	p.must("ok", "threads t-%s", p.key())
}

// forgets: a lock that the program forgets is free soon, or stays locked.
func forgets(t *testing.T, h *host, l language) {
	if l.name == "bash" {
		return // it has no variable that is a lock
	}
	a, b := l.start(t, h.at(l)), l.start(t, h.at(l))
	key := "forgotten-" + a.key()
	a.lock(key)
	a.must("ok", "forget")
	if l.can(forgotten) {
		b.free(key, "its holder has forgotten it")
	} else {
		b.must("held", "lock %s 500 - -", key)
	}
}
