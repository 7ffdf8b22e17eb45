package redisstore

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
)

// A script of another program keeps the server busy for so long that it refuses every
// request. A program that has to begin to listen just then survives it, and hears of
// its grant afterwards.
func TestBusyServer(t *testing.T) {
	l := newLab(t, 2)
	holder, _ := take(t, l.stores[0], claimOf(l.key, "a"), time.Minute, false)
	l.do("CONFIG", "SET", "lua-time-limit", "20")
	script := make(chan struct{})
	go func() {
		defer close(script)
		_, _ = l.server.Do("EVAL", "while true do end", "0") // it is killed
	}()
	eventually(t, "a busy server", 10*time.Second, func() bool {
		_, err := l.server.Do("GET", l.key)
		return err != nil && strings.Contains(err.Error(), "BUSY")
	})
	s, c, woken := l.stores[1], claimOf(l.key, "b"), make(chan struct{}, 1)
	defer s.Watch(c, func(driver.Hint) {
		select {
		case woken <- struct{}{}:
		default:
		}
	})()
	s.pushes.waits(c.ID, true) // as if it had a position: a new connection for hints wakes it
	for range 10 {
		_, err := s.Acquire(t.Context(), driver.Request{Claim: c, TTL: time.Minute, Queue: true})
		if !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("a busy server: %v", err)
		}
		<-time.After(20 * time.Millisecond) // it tries to listen, unseen by the test
	}
	if _, err := l.server.Do("SCRIPT", "KILL"); err != nil {
		t.Fatal(err)
	}
	<-script
	<-woken // it listens now
	c, _ = take(t, s, c, time.Minute, true)
	mustRelease(t, l.stores[0], holder)
	eventually(t, "the grant", 10*time.Second, func() bool { return renewOne(t, s, c, time.Minute).State == driver.Held })
	mustRelease(t, s, c)
}
