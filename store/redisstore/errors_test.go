package redisstore

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

// Answers by which the server says that it did nothing.
func TestRefusalsHaveNoEffect(t *testing.T) {
	l := newLab(t, 1)
	s := l.stores[0]
	refused := func(what string) {
		t.Helper()
		c := claimOf(l.key, "a")
		_, err := s.Acquire(t.Context(), driver.Request{Claim: c, TTL: time.Minute})
		if !errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrUnknown) {
			t.Errorf("%s: %v, want driver.ErrUnavailable", what, err)
		}
		_, err = s.AcquireAll(t.Context(), several("a", l.key, "another"))
		if !errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrUnknown) {
			t.Errorf("%s, several: %v, want driver.ErrUnavailable", what, err)
		}
		if l.do("EXISTS", l.key, "another") != "0" {
			t.Errorf("%s: and yet a lock was taken", what)
			l.do("DEL", l.key, "another")
		}
	}
	c, _ := take(t, s, claimOf(l.key, "a"), time.Minute, false) // the script is known
	mustRelease(t, s, c)

	l.do("CONFIG", "SET", "maxmemory", "1")
	refused("out of memory")
	l.do("CONFIG", "SET", "maxmemory", "0")

	l.do("CONFIG", "SET", "min-replicas-to-write", "1")
	refused("too few replicas")
	l.do("CONFIG", "SET", "min-replicas-to-write", "0")

	l.do("REPLICAOF", "127.0.0.1", "1")
	refused("demoted to a replica")
	l.do("REPLICAOF", "NO", "ONE")

	l.do("CONFIG", "SET", "lua-time-limit", "1") // the name that Redis 6.2 knows, too
	var stuck sync.WaitGroup
	stuck.Go(func() { l.server.Do("EVAL", "while true do end", "0") })
	eventually(t, "a busy server", 10*time.Second, func() bool {
		_, err := l.server.Do("GET", "x")
		return err != nil && strings.HasPrefix(err.Error(), "BUSY")
	})
	_, err := s.Acquire(t.Context(), driver.Request{Claim: claimOf(l.key, "a"), TTL: time.Minute})
	if !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("busy: %v, want driver.ErrUnavailable", err)
	}
	l.do("SCRIPT", "KILL")
	stuck.Wait()
	take(t, s, claimOf(l.key, "a"), time.Minute, false)
}

func TestErrorCodes(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]error{
		"LOADING Redis is loading the dataset in memory":    driver.ErrUnavailable,
		"MASTERDOWN Link with MASTER is down":               driver.ErrUnavailable,
		"CLUSTERDOWN The cluster is down":                   driver.ErrUnavailable,
		"TRYAGAIN Multiple keys request during rehashing":   driver.ErrUnavailable,
		"MISCONF Redis is configured to save RDB snapshots": driver.ErrUnavailable,
		"NOAUTH Authentication required.":                   driver.ErrDenied,
		// As Redis 6.2 says it: call, pcall, and a command that the user may not run.
		"ERR Error running script (call to f_1): @user_script:7: @user_script: 7: -READONLY You can't write":               driver.ErrUnavailable,
		"@user_script: 62: -NOREPLICAS Not enough good replicas to write.":                                                 driver.ErrUnavailable,
		"ERR Error running script (call to f_1): @user_script:7: @user_script: 7: The user executing the script can't run": driver.ErrDenied,
		"ERR Error running script (call to f_1): @user_script:7: WRONGTYPE Operation against a key":                        driver.ErrUnknown,

		"NOPERM this user has no permissions":     driver.ErrDenied,
		"ERR something in the middle of a script": driver.ErrUnknown,
		"WRONGTYPE Operation against a key":       driver.ErrUnknown,
	} {
		err := failure(&wire.ServerError{Text: answer})
		if !errors.Is(err, want) {
			t.Errorf("%q became %v, want %v", answer, err, want)
		}
	}
}

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
