package agent

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
)

// table has all locks that the clients of this agent hold and want, by key.
type table struct {
	mu   sync.Mutex
	keys map[string][]*lock // in the order of their requests
}

// keyed is a lock with one of its keys.
type keyed struct {
	*lock
	key string
}

func (t *table) add(l *lock) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, key := range l.keys {
		t.keys[key] = append(t.keys[key], l)
	}
}

func (t *table) remove(l *lock) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, key := range l.keys {
		all := t.keys[key]
		i := slices.Index(all, l)
		if all = slices.Delete(all, i, i+1); len(all) == 0 {
			delete(t.keys, key)
			continue
		}
		t.keys[key] = all
	}
}

// find returns the locks of a key, or of all keys if key is "".
func (t *table) find(key string) (found []keyed) {
	t.mu.Lock()
	defer t.mu.Unlock()
	add := func(key string) {
		for _, l := range t.keys[key] {
			found = append(found, keyed{l, key})
		}
	}
	if key != "" {
		add(key)
		return found
	}
	for key := range t.keys {
		add(key)
	}
	return found
}

// maxShown is how many locks one answer shows.
const maxShown = 100

// who lists the processes that hold and want key, or any key if it is "". Holders come
// first among those of a key.
func (t *table) who(id int64, key string) whoAnswer {
	now := time.Now()
	a := whoAnswer{ID: id, OK: true, Locks: []party{}}
	var shown []shownLock
	for _, l := range t.find(key) {
		if one, ok := l.show(); ok {
			shown = append(shown, one)
		}
	}
	slices.SortStableFunc(shown, func(a, b shownLock) int {
		return cmp.Or(cmp.Compare(a.of.key, b.of.key), cmp.Compare(a.rank, b.rank), a.since.Compare(b.since))
	})
	if n := len(shown); n > maxShown {
		a.More, shown = n-maxShown, shown[:maxShown]
	}
	for _, one := range shown {
		a.Locks = append(a.Locks, one.party(now))
	}
	return a
}

// holder returns a text that names a client that holds key, for the error of another.
func (t *table) holder(key string) string {
	for _, l := range t.find(key) {
		if one, ok := l.show(); ok && one.rank == 0 {
			p := l.session.peer
			if p.pid == 0 {
				return "; the holder is a client of this agent"
			}
			return fmt.Sprintf("; the holder is %s (pid %d), a client of this agent", driver.Printable(cmp.Or(p.program(), "a process")), p.pid)
		}
	}
	return ""
}

// A shownLock is the state of a lock at one look.
type shownLock struct {
	of    keyed
	rank  int // 0: held, 1: wanted
	since time.Time
	token string
}

// show returns the present state of a lock. ok is false if it is neither held nor wanted.
func (l keyed) show() (one shownLock, ok bool) {
	l.session.mu.Lock()
	defer l.session.mu.Unlock()
	switch l.state {
	case held:
		return shownLock{l, 0, l.since, l.token(l.key)}, true
	case waiting:
		return shownLock{l, 1, l.asked, ""}, true
	}
	return shownLock{}, false
}

func (one shownLock) party(now time.Time) party {
	l, who := one.of, one.of.session.peer
	p := party{
		Key: l.key, State: "held", Mode: l.mode, Token: one.token, ForMS: now.Sub(one.since).Milliseconds(),
		PID: who.pid, Program: driver.Printable(who.program()),
	}
	if one.rank > 0 {
		p.State = "waiting"
	}
	if who.uid >= 0 {
		p.UID = &who.uid
	}
	return p
}
