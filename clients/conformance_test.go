//go:build unix

package clients

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// The rows of the table: events that happen to a process of each client. The rows of each are for all
// clients with the needed ability; README.md says why the others lack it. The rows below are about the
// connection to the agent. TestServers has those about servers.
var rows = []struct {
	name string
	run  func(*testing.T, store)
}{
	{"lock, try, unlock", each("", lockAndUnlock)},
	{"kinds and keys", each("", kindsAndKeys)},
	{"numbers that are none", each("", numbers)},
	{"once", each("", onlyOnce)},
	{"limits", each("", limits)},
	{"limits, with a cost that is known later", each(settles, settled)},
	{"leader", each("", leads)},
	{"an error under the lock", each("", raises)},
	{"a wait is interrupted", each(interrupted, interrupts)},
	{"threads", each(threaded, threads)},
	{"the lock is forgotten", each("", forgets)},
	{"what only it has", each("", onlyIts)},
	{"the process forks", each(forked, forks)},
	{"child processes", each(freed, children)},
	{"the lock is broken", broken},
	{"the store is silent", silent},
	{"the store is silent when it ends", ends},
	{"the agent hangs, or the servers", hangs},

	{"the process is stopped", stopped},
	{"the connection is cut", each(freed, cut)},
	{"an answer is lost", each(freed, lostAnswer)},
	{"the agent is killed", agentKilled},
	{"the agent ends", agentEnds},
	{"the agent comes again", each(freed, agentAgain)},
	{"the agent is slow", each(freed, agentSlow)},
	{"the holder is killed", pairs},
}

// TestConformance runs the table on each store.
func TestConformance(t *testing.T) {
	t.Parallel()
	for _, s := range sites {
		t.Run(s.name, func(t *testing.T) {
			s.wanted(t)
			t.Parallel()
			shared := newHost(t, s.make(t).url)
			for _, l := range append(tried(false), tried(true)...) {
				shared.at(l)
			}
			for _, row := range rows {
				t.Run(row.name, func(t *testing.T) {
					t.Parallel()
					own := s.make(t)
					own.shared = shared
					row.run(t, own)
				})
			}
		})
	}
}

// each makes a row about one client at a time, all on a shared host, so each client has its own keys.
func each(needs string, f func(*testing.T, *host, language)) func(*testing.T, store) {
	return func(t *testing.T, s store) {
		h := s.shared
		for _, l := range languages {
			if !l.can(needs) {
				continue // TestTableOfAbilities sees that README.md says so
			}
			t.Run(l.name, func(t *testing.T) {
				l.wanted(t)
				t.Parallel()
				own := *h
				own.t, own.dir = t, folder(t)
				f(t, &own, l)
			})
		}
	}
}

// all starts a process of each client on a host, where each holds the lock of its name. Clients that
// renew only on request come last, because a JVM takes seconds on a busy machine.
func all(t *testing.T, h *host, clients []language) (holders []*process) {
	t.Helper()
	for _, l := range clients {
		holders = append(holders, l.start(t, h.at(l)))
	}
	for _, alone := range []bool{true, false} {
		var some []*process
		for _, p := range holders {
			if p.l.can(renews) == alone {
				p.send("lock %s - - -", p.key())
				some = append(some, p)
			}
		}
		for _, p := range some {
			p.expect("ok", "lock")
		}
	}
	return holders
}

// keep lets the clients renew their locks that renew only on request.
func keep(holders []*process) {
	for _, p := range holders {
		if !p.l.can(renews) {
			p.number("check")
		}
	}
}

// key is the client's name as a key.
func (p *process) key() string { return strings.ReplaceAll(p.l.name, ", ", "-") }

func lockAndUnlock(t *testing.T, h *host, l language) {
	a, b := l.start(t, h.at(l)), l.start(t, h.at(l))
	key := a.key()
	first := a.lock(key)
	a.promise()
	if who := h.who(key); !l.http && (len(who.Locks) != 1 || who.Locks[0].Token != strconv.FormatInt(first, 10)) {
		t.Errorf("the token is %d, the agent says %+v", first, who.Locks)
	}
	if said := b.must("held", "lock %s 0 - -", key); !strings.Contains(said, "the holder is ") && !strings.Contains(said, "is held by ") {
		t.Errorf("it does not name the holder: %s", said)
	}
	if said := b.must("ok", "try %s", key); said != "ok none" {
		t.Errorf("of a lock that is held try says %q", said)
	}
	if said := b.must("held", "lock %s 200 - -", key); !strings.Contains(said, "the wait is over") && !l.http {
		t.Errorf("it does not say that the wait is over: %s", said)
	}
	b.must("error bad", "lock %s -1 - -", key)
	a.must("ok", "unlock")
	a.must("lost", "check")
	if second := b.lock(key); second <= first {
		t.Errorf("the token %d comes after %d", second, first)
	}
	b.must("ok", "unlock")
	a.number("try %s", key)
	a.promise()
	a.must("ok", "unlock")
	if said := l.start(t, nowhere(l)).must("error", "lock %s 0 - -", key); !strings.Contains(said, map[bool]string{false: "BATON_AGENT", true: "BATON_SERVER"}[l.http]) {
		t.Errorf("where nothing listens it does not name the next step: %s", said)
	}
}

// nowhere is an address without a listener.
func nowhere(l language) string {
	if l.http {
		return "http://127.0.0.1:1"
	}
	return "/nowhere/agent.sock"
}

// bad is the code of an invalid request.
func bad(l language) string {
	if l.http {
		return "invalid_argument"
	}
	return "bad"
}

func kindsAndKeys(t *testing.T, h *host, l language) {
	a, b, longest := l.start(t, h.at(l)), l.start(t, h.at(l)), strings.Repeat("é", 256)
	a.lock(longest)
	a.must("ok", "unlock")
	a.must("error "+bad(l), "lock %sx - - -", longest)
	a.must("error "+bad(l), "lock \x1b - - -")
	a.lock(`"\'€𝄞<>&`)
	b.must("held", `lock "\'€𝄞<>& 0 - -`)
	a.must("ok", "unlock")
	readers, permits := "readers-"+a.key(), "permits-"+a.key()
	a.number("lock %s 0 - shared", readers)
	b.number("lock %s 0 - shared", readers)
	b.must("ok", "unlock")
	b.must("held", "lock %s 0 - -", readers)
	a.must("ok", "unlock")
	a.number("lock %s 0 - 2/3", permits)
	b.must("held", "lock %s 0 - 2/3", permits)
	b.number("lock %s 0 - 1/3", permits)
}

func onlyIts(t *testing.T, h *host, l language) {
	p := l.start(t, h.at(l))
	p.must("ok", "api own-%s", p.key())
}

// The child of a fork neither uses nor releases the lock: not by a call, nor at the end of a block, nor
// by a destructor, nor at its exit.
func forks(t *testing.T, h *host, l language) {
	p, other := l.start(t, h.at(l)), h.other()
	key := "forked-" + p.key()
	p.lock(key)
	p.must("ok", "fork")
	if a, err := other.ask(`{"id":1,"do":"lock","key":%q,"wait_ms":0}`, key); err != nil || a.Error != "held" {
		t.Errorf("after the end of a child the lock of its parent is not held: %v, %+v", err, a)
	}
	p.promise()
	p.must("ok", "unlock")
	if a, err := other.ask(`{"id":2,"do":"lock","key":%q,"wait_ms":0}`, key); err != nil || !a.OK {
		t.Errorf("after unlock the lock is not free: %v, %+v", err, a)
	}
	other.conn.Close()
}

// A child that lives on does not keep the lock of its parent.
func children(t *testing.T, h *host, l language) {
	for _, verb := range []string{"spawn", "closed"} {
		if verb == "closed" && l.can(spawned) {
			continue // it needs no such thing
		}
		p, life := l.start(t, h.socket), pipe(t, h)
		key := "parent-" + p.key()
		p.lock(key)
		child := int(p.number("%s %s", verb, life))
		p.kill()
		keeps := verb == "spawn" && !l.can(spawned)
		if keeps {
			<-p.gone
			if who := h.who(key); len(who.Locks) != 1 {
				t.Errorf("a child does not keep the lock, the page says that it does: %+v", who)
			}
		} else {
			h.free(key, "its holder was killed")
		}
		if err := syscall.Kill(child, 0); err != nil {
			t.Errorf("the child does not live: %v", err)
		}
		life.end(t)
		if keeps {
			h.free(key, "the child has ended")
		}
	}
}

// A life is a named pipe, which a child reads from until it ends.
type life string

func pipe(t *testing.T, h *host) life {
	t.Helper()
	name := filepath.Join(h.dir, fmt.Sprintf("life%d", time.Now().UnixNano()))
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if f, err := os.OpenFile(name, os.O_WRONLY|syscall.O_NONBLOCK, 0); err == nil { // a child reads still
			_ = f.Close()
		}
	})
	return life(name)
}

// end ends the pipe, once the child has opened it.
func (l life) end(t *testing.T) {
	t.Helper()
	f, err := os.OpenFile(string(l), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
}

// stopped: a process that is stopped keeps its lock, unless it has bounded that itself.
func stopped(t *testing.T, s store) {
	h := newHost(t, s.url)
	var wg sync.WaitGroup
	for _, l := range tried(false) {
		keeps, bounded := l.start(t, h.socket), l.start(t, h.socket)
		keeps.lock("kept-" + l.name)
		began := time.Now()
		bounded.number("lock bounded-%s - 1000 -", l.name)
		keeps.signal(syscall.SIGSTOP)
		bounded.signal(syscall.SIGSTOP)
		next, o := h.take("bounded-"+l.name), h.other()
		wg.Go(func() {
			if a, err := o.ask(`{"id":1,"do":"lock","key":"kept-%s","wait_ms":%d}`, l.name, (ttl * 5 / 4).Milliseconds()); err != nil || a.Error != "held" {
				t.Errorf("%s: the lock of a process that is stopped: %v, %+v", l.name, err, a)
			}
			if got := <-next; got.err != nil || got.at.Sub(began) < time.Second {
				t.Errorf("%s: the lock that is bounded to a second was taken after %v: %v", l.name, got.at.Sub(began), got.err)
			}
		})
		defer func() {
			keeps.signal(syscall.SIGCONT)
			bounded.signal(syscall.SIGCONT)
			keeps.promise()
			keeps.must("ok", "unlock")
			bounded.must("lost", "check")
			bounded.must("lost", "unlock")
		}()
	}
	wg.Wait()
}

func cut(t *testing.T, h *host, l language) {
	proxy := h.proxied()
	p := l.start(t, proxy.socket)
	key := "cut-" + p.key()
	p.lock(key)
	p.promise()
	proxy.cut()
	h.free(key, "the connection was cut")
	if l.can(told) {
		p.must("lost", "told")
	}
	p.must("lost", "check")
	p.must("lost", "unlock")
	p.lock(key)
	p.must("ok", "unlock")
}

func lostAnswer(t *testing.T, h *host, l language) {
	proxy := h.proxied()
	p := l.start(t, proxy.socket)
	key := "lossy-" + p.key()
	proxy.loseAnswer("lock")
	p.must("lost", "lock %s - - -", key)
	h.free(key, "the answer to lock was lost")
	for _, verb := range []string{"check", "unlock"} {
		p.lock(key)
		proxy.loseAnswer(verb)
		p.must("lost", "%s", verb)
		h.free(key, "the answer to "+verb+" was lost")
	}
}

// broken: the lock is broken by hand. No client can report that in time, but each reports it.
func broken(t *testing.T, s store) {
	h := newHost(t, s.url)
	for _, p := range all(t, h, append(tried(false), tried(true)...)) {
		if out, err := baton(t, "--store", s.url, "break", "--yes", p.key()).CombinedOutput(); err != nil {
			t.Fatalf("break: %v\n%s", err, out)
		}
		if p.l.can(told) {
			p.must("lost", "told")
		}
		p.awaitLoss()
		p.must("lost", "unlock")
	}
}

// outlast lets another host wait for the locks of holders, calls happen, and checks that no lock is
// granted to it before the end that check has told its holder.
func outlast(t *testing.T, holders []*process, elsewhere *host, happen func()) {
	t.Helper()
	got, until := make([]<-chan taken, len(holders)), make([]time.Time, len(holders))
	for i, p := range holders {
		got[i] = elsewhere.take(p.key())
		elsewhere.awaitWaiter(p.key())
		keep(holders)
	}
	for i, p := range holders {
		until[i] = p.promise()
	}
	happen()
	for i, p := range holders {
		next := <-got[i]
		if next.err != nil {
			t.Errorf("%s: elsewhere: %v", p.l.name, next.err)
		} else if next.at.Before(until[i]) {
			t.Errorf("%s: the lock is elsewhere %v before the time is over that check told", p.l.name, until[i].Sub(next.at))
		}
	}
}

func silent(t *testing.T, s store) {
	h, elsewhere := newHost(t, s.behind), newHost(t, s.url)
	holders := all(t, h, append(tried(false), tried(true)...))
	outlast(t, holders, elsewhere, func() {
		heal := s.stop(t)
		var wg sync.WaitGroup
		for _, p := range holders {
			wg.Go(func() {
				for late := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
					p.send("check")
					if got := <-p.out; strings.HasPrefix(got, "lost ") {
						return
					} else if !strings.HasPrefix(got, "ok ") || time.Now().After(late) {
						t.Errorf("%s: while the store is silent check answers %q", p.l.name, got)
						return
					}
				}
			})
		}
		wg.Wait()
		heal()
	})
	for _, p := range holders {
		p.must("lost", "unlock")
	}
}

// ends: a store that answers again soon has released what was unlocked
// meanwhile, and recorded what was done.
func ends(t *testing.T, s store) {
	h, elsewhere := newHost(t, s.behind), newHost(t, s.url)
	clients := append(tried(false), tried(true)...)
	var runs []*process
	var lives []life
	for _, l := range clients {
		runs, lives = append(runs, l.start(t, h.at(l))), append(lives, pipe(t, h))
	}
	holders := all(t, h, clients)
	for i, p := range runs {
		p.send("once %s - block %s", p.key(), lives[i])
	}
	for _, p := range runs {
		p.expect("ok runs", "once")
		keep(holders)
	}
	heal := s.stop(t)
	for i, p := range holders {
		p.send("unlock")
		lives[i].end(t)
	}
	time.Sleep(ttl / 4) // the store is silent for that time
	heal()
	for i, p := range holders {
		p.expect("ok", "unlock while the store was silent")
		runs[i].expect(fmt.Sprintf("ok %s 1", lives[i]), "once while the store was silent")
		elsewhere.free(p.key(), "it was unlocked while the store was silent")
	}
}

// hangs: every call ends, even without any answer. The answers of check stay true.
func hangs(t *testing.T, s store) {
	h, elsewhere := newHost(t, s.url), newHost(t, s.url)
	clients := tried(false)
	if s.behind != s.url && os.Getenv("BATON_LONG") == "1" { // a server of SQLite that is stopped in a transaction stops all hosts
		clients = append(clients, tried(true)...)
	}
	checks := all(t, h, clients)
	if a, err := elsewhere.other().ask(`{"id":1,"do":"lock","key":"wanted"}`); err != nil || !a.OK {
		t.Fatalf("%v, %+v", err, a)
	}
	var unlocks, waits, begins []*process
	for _, p := range checks {
		unlock, wait := p.l.start(t, h.at(p.l)), p.l.start(t, h.at(p.l))
		unlock.lock("unlocked-" + p.key())
		wait.send("lock wanted %s - -", map[bool]string{false: "-", true: "8000"}[p.l.http])
		unlocks, waits, begins = append(unlocks, unlock), append(waits, wait), append(begins, p.l.start(t, h.at(p.l)))
		keep(checks)
		keep(unlocks)
	}
	h.awaitWaiters("wanted", len(tried(false)))
	outlast(t, checks, elsewhere, func() {
		keep(unlocks)
		h.freeze()
		for i, p := range checks {
			p.send("check")
			unlocks[i].send("unlock")
			begins[i].send("lock new 1000 - -")
		}
	})
	for i, p := range checks {
		none := "error agent"
		if p.l.http {
			none = "error unavailable"
			p.expect("ok", "check asks no server")
			p.must("lost", "check")
			unlocks[i].expect(none, "unlock")
			waits[i].expect(none, "a wait")
		} else {
			p.expect("lost", "check")
			unlocks[i].expect("lost", "unlock")
			waits[i].expect("lost", "a wait")
		}
		begins[i].expect(none, "lock")
	}
}

func agentKilled(t *testing.T, s store) {
	h, elsewhere := newHost(t, s.url), newHost(t, s.url)
	holders := all(t, h, tried(false))
	if a, err := h.other().ask(`{"id":1,"do":"lock","key":"wanted"}`); err != nil || !a.OK {
		t.Fatalf("%v, %+v", err, a)
	}
	var waiters []*process
	for _, l := range tried(false) {
		waiters = append(waiters, l.start(t, h.socket))
		waiters[len(waiters)-1].send("lock wanted - - -")
	}
	h.awaitWaiters("wanted", len(waiters))
	outlast(t, holders, elsewhere, func() { h.signal(syscall.SIGKILL) })
	for _, p := range waiters {
		p.expect("lost", "while it waits")
	}
	for _, p := range holders {
		if p.l.can(told) {
			p.must("lost", "told")
		}
		p.must("lost", "check")
		p.must("lost", "unlock")
		p.must("error agent", "lock %s - - -", p.l.name)
	}
}

// agentEnds: the answers of check are true even if the agent ends, as long as the client does not close
// the connection, and it does not do so by itself.
func agentEnds(t *testing.T, s store) {
	h, elsewhere := newHost(t, s.url), newHost(t, s.url)
	holders := all(t, h, tried(false))
	outlast(t, holders, elsewhere, func() {
		h.signal(syscall.SIGTERM)
		<-h.ended
	})
	for _, p := range holders {
		p.must("lost", "check")
	}
}

// agentAgain: a process that reconnects to the agent has lost its lock, and gets others at once.
func agentAgain(t *testing.T, h *host, l language) {
	own := newHost(t, h.store)
	p := l.start(t, own.socket)
	p.lock("again-" + p.key())
	own.signal(syscall.SIGKILL)
	<-own.ended
	p.must("lost", "check")
	p.must("error agent", "lock other - - -")
	own.start()
	p.lock("another-" + p.key())
	p.promise()
	p.must("ok", "unlock")
	p.number("lock again-%s %d - -", p.key(), patience.Milliseconds()) // once its TTL is over
	p.must("ok", "unlock")
}

// agentSlow: check counts the time that answers take.
func agentSlow(t *testing.T, h *host, l language) {
	proxy := h.proxied()
	proxy.delay.Store(int64(500 * time.Millisecond))
	a, b := l.start(t, proxy.socket), l.start(t, h.socket)
	key := "slow-" + a.key()
	a.lock(key)
	asked := time.Now()
	left := time.Duration(a.number("check")) * time.Millisecond
	if left <= 0 || left > ttl-time.Since(asked) {
		t.Errorf("after %v check tells %v of a TTL of %v", time.Since(asked), left, ttl)
	}
	b.must("held", "lock %s 0 - -", key)
	a.must("ok", "unlock")
	b.free(key, "it was unlocked")
}

// pairs: a killed process's lock is granted to the next one, from each language to each.
func pairs(t *testing.T, s store) {
	h := newHost(t, s.url)
	var order []language // in which each follows each
	for i, l := range tried(false) {
		order = append(order, l)
		for _, other := range tried(false)[i+1:] {
			order = append(order, l, other)
		}
	}
	order = append(order, order[0])
	first := order[0].start(t, h.socket)
	last := first.lock("baton")
	var longest time.Duration
	for _, l := range order[1:] {
		second := l.start(t, h.socket)
		second.send("lock baton - - -")
		h.awaitWaiter("baton")
		first.kill()
		killed := time.Now()
		got := second.expect("ok", "the holder was killed")
		longest = max(longest, time.Since(killed))
		if time.Since(killed) > ttl/2 {
			t.Errorf("%s to %s took %v", first.l.name, l.name, time.Since(killed))
		}
		token, err := strconv.ParseInt(strings.TrimPrefix(got, "ok "), 10, 64)
		if err != nil || token <= last {
			t.Errorf("%s to %s: the token %s comes after %d", first.l.name, l.name, got, last)
		}
		first, last = second, token
	}
	t.Logf("%d hand-overs, the longest took %v", len(order)-1, longest)
}
