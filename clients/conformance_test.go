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

// The rows of the table: what happens, to a process of each language.
var rows = []struct {
	name string
	run  func(*testing.T, store)
}{
	{"lock, try, unlock", each(lockAndUnlock)},
	{"kinds and keys", each(kindsAndKeys)},
	{"what only it has", each(onlyIts)},
	{"child processes", each(children)},
	{"the process is stopped", stopped},
	{"the connection is cut", each(cut)},
	{"an answer is lost", each(lostAnswer)},
	{"the lock is broken", broken},
	{"the store is silent", silent},
	{"the agent is stopped", agentStopped},
	{"the agent is killed", agentKilled},
	{"the agent ends", agentEnds},
	{"the holder is killed", pairs},
}

// TestConformance runs the table on each store.
func TestConformance(t *testing.T) {
	t.Parallel()
	for _, s := range sites {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			for _, row := range rows {
				t.Run(row.name, func(t *testing.T) {
					t.Parallel()
					row.run(t, s.make(t))
				})
			}
		})
	}
}

// each makes a row of what is tried with one language at a time, all on the same host.
func each(f func(*testing.T, *host, language)) func(*testing.T, store) {
	return func(t *testing.T, s store) {
		h := newHost(t, s.url)
		for _, l := range languages {
			t.Run(l.name, func(t *testing.T) {
				l.wanted(t)
				f(t, &host{t: t, dir: folder(t), socket: h.socket}, l)
			})
		}
	}
}

// all starts a process of each language on a host, where each holds the lock of its name.
func all(t *testing.T, h *host) (holders []*process) {
	t.Helper()
	for _, l := range tried() {
		holders = append(holders, l.start(t, h.socket))
	}
	for _, p := range holders {
		p.send("lock %s - - -", p.l.name)
	}
	for _, p := range holders {
		p.expect("ok", "lock")
	}
	return holders
}

func lockAndUnlock(t *testing.T, h *host, l language) {
	key := l.name
	a, b := l.start(t, h.socket), l.start(t, h.socket)
	first := a.lock(key)
	a.promise()
	if who := h.who(key); len(who.Locks) != 1 || who.Locks[0].Token != strconv.FormatInt(first, 10) {
		t.Errorf("the token is %d, the agent says %+v", first, who.Locks)
	}
	if said := b.must("held", "lock %s 0 - -", key); !strings.Contains(said, "the holder is ") {
		t.Errorf("it does not name the holder: %s", said)
	}
	if said := b.must("held", "lock %s 200 - -", key); !strings.Contains(said, "the wait is over") {
		t.Errorf("it does not say that the wait is over: %s", said)
	}
	a.must("ok", "unlock")
	a.must("lost", "check")
	if second := b.lock(key); second <= first {
		t.Errorf("the token %d comes after %d", second, first)
	}
	b.must("ok", "unlock")
}

func kindsAndKeys(t *testing.T, h *host, l language) {
	a, b, longest := l.start(t, h.socket), l.start(t, h.socket), strings.Repeat("é", 256)
	a.lock(longest)
	a.must("ok", "unlock")
	a.must("error bad", "lock %sx - - -", longest)
	a.must("error bad", "lock \x1b - - -")
	if l.can(everyKey) {
		a.lock(`"\'€𝄞<>&`)
		b.must("held", `lock "\'€𝄞<>& 0 - -`)
		a.must("ok", "unlock")
	}
	if !l.can(kinds) {
		return
	}
	a.number("lock readers 0 - shared")
	b.number("lock readers 0 - shared")
	b.must("ok", "unlock")
	b.must("held", "lock readers 0 - -")
	a.must("ok", "unlock")
	a.number("lock permits 0 - 2/3")
	b.must("held", "lock permits 0 - 2/3")
	b.number("lock permits 0 - 1/3")
}

func onlyIts(t *testing.T, h *host, l language) {
	p := l.start(t, h.socket)
	p.must("ok", "api own")
	if l.can(forked) {
		p.lock("forked")
		p.must("ok", "fork")
		p.promise()
		p.must("ok", "unlock")
	}
}

// A child that lives on does not keep the lock of its parent.
func children(t *testing.T, h *host, l language) {
	for _, verb := range []string{"spawn", "closed"} {
		if verb == "closed" && l.can(spawned) {
			continue // it needs no such thing
		}
		p, life := l.start(t, h.socket), pipe(t, h)
		p.lock("parent")
		child := int(p.number("%s %s", verb, life.Name()))
		p.kill()
		keeps := verb == "spawn" && !l.can(spawned)
		if keeps {
			<-p.gone
			if who := h.who("parent"); len(who.Locks) != 1 {
				t.Errorf("a child does not keep the lock, the page says that it does: %+v", who)
			}
		} else {
			h.free("parent", "its holder was killed")
		}
		if err := syscall.Kill(child, 0); err != nil {
			t.Errorf("the child does not live: %v", err)
		}
		_ = life.Close()
		if keeps {
			h.free("parent", "the child has ended")
		}
	}
}

// pipe makes a named pipe, which ends when it is closed.
func pipe(t *testing.T, h *host) *os.File {
	t.Helper()
	name := filepath.Join(h.dir, fmt.Sprintf("life%d", time.Now().UnixNano()))
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// stopped: a process that is stopped keeps its lock, unless it has bounded that itself.
func stopped(t *testing.T, s store) {
	h := newHost(t, s.url)
	var wg sync.WaitGroup
	for _, l := range tried() {
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
	p.lock("cut")
	p.promise()
	proxy.cut()
	h.free("cut", "the connection was cut")
	if l.can(told) {
		p.must("lost", "told")
	}
	p.must("lost", "check")
	p.must("lost", "unlock")
	p.lock("cut")
	p.must("ok", "unlock")
}

func lostAnswer(t *testing.T, h *host, l language) {
	proxy := h.proxied()
	p := l.start(t, proxy.socket)
	proxy.loseAnswer("lock")
	p.must("lost", "lock lossy - - -")
	h.free("lossy", "the answer to lock was lost")
	for _, verb := range []string{"check", "unlock"} {
		p.lock("lossy")
		proxy.loseAnswer(verb)
		p.must("lost", "%s", verb)
		h.free("lossy", "the answer to "+verb+" was lost")
	}
}

// broken: the lock is broken by hand, which nobody can promise to tell in time, but it is
// told.
func broken(t *testing.T, s store) {
	h := newHost(t, s.url)
	for _, p := range all(t, h) {
		if out, err := baton(t, "--store", s.url, "break", "--yes", p.l.name).CombinedOutput(); err != nil {
			t.Fatalf("break: %v\n%s", err, out)
		}
		if p.l.can(told) {
			p.must("lost", "told")
		}
		for late := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
			p.send("check")
			if got := p.answer(); strings.HasPrefix(got, "lost ") {
				break
			} else if time.Now().After(late) {
				t.Fatalf("%s: after the loss check answers %q", p.l.name, got)
			}
		}
		p.must("lost", "unlock")
	}
}

// outlast lets another host wait for the locks of holders, calls happen, and sees that no
// lock is granted to it before the time that check has told its holder is over.
func outlast(t *testing.T, holders []*process, elsewhere *host, happen func()) {
	t.Helper()
	got, until := make([]<-chan taken, len(holders)), make([]time.Time, len(holders))
	for i, p := range holders {
		got[i] = elsewhere.take(p.l.name)
		elsewhere.awaitWaiter(p.l.name)
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
	holders := all(t, h)
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

func agentStopped(t *testing.T, s store) {
	h, elsewhere := newHost(t, s.url), newHost(t, s.url)
	holders := all(t, h)
	outlast(t, holders, elsewhere, func() {
		h.freeze()
		for _, p := range holders {
			p.send("check")
		}
	})
	for _, p := range holders {
		select {
		case got := <-p.out:
			t.Errorf("%s: while the agent is stopped check answers %q", p.l.name, got)
		default:
		}
	}
	h.signal(syscall.SIGCONT)
	for _, p := range holders {
		p.expect("lost", "check, when the agent goes on")
	}
}

func agentKilled(t *testing.T, s store) {
	h, elsewhere := newHost(t, s.url), newHost(t, s.url)
	holders := all(t, h)
	if a, err := h.other().ask(`{"id":1,"do":"lock","key":"wanted"}`); err != nil || !a.OK {
		t.Fatalf("%v, %+v", err, a)
	}
	var waiters []*process
	for _, l := range tried() {
		waiters = append(waiters, l.start(t, h.socket))
		waiters[len(waiters)-1].send("lock wanted - - -")
	}
	for late := time.Now().Add(patience); len(h.who("wanted").Locks) < 1+len(waiters); time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatal("they do not wait")
		}
	}
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

// agentEnds: what check has told is true also if the agent ends, as long as the client
// does not close the connection, and it does not do so on its own.
func agentEnds(t *testing.T, s store) {
	h, elsewhere := newHost(t, s.url), newHost(t, s.url)
	holders := all(t, h)
	outlast(t, holders, elsewhere, func() {
		h.signal(syscall.SIGTERM)
		<-h.ended
	})
	for _, p := range holders {
		p.must("lost", "check")
	}
}

// pairs: a process that is killed hands its lock over to the next one, from each language
// to each.
func pairs(t *testing.T, s store) {
	h := newHost(t, s.url)
	var order []language // in which each follows each
	for i, l := range tried() {
		order = append(order, l)
		for _, other := range tried()[i+1:] {
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
