package redisstore

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

// rights starts a server whose users may do no more than the rules say.
func rights(t *testing.T, rules ...string) func() *Store {
	t.Helper()
	testserver.NeedRedis(t)
	t.Parallel()
	server := testserver.Redis(t, append([]string{"--user", "default", "on", "nopass"}, rules...)...)
	return func() *Store {
		s, err := Open(t.Context(), Server{Addrs: []string{server.Addr}}, Config{Prefix: "app:"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
}

// Redis 7 gives a new user no channels. Then waiters are not told of their grant, so
// they have to look often; a release is one all the same; and Examine says what is
// missing.
func TestNoChannels(t *testing.T) {
	for name, c := range map[string]struct {
		rules []string
		calls []string // that are refused
	}{
		"none":       {[]string{"~*", "resetchannels", "+@all"}, []string{"PUBLISH", "SUBSCRIBE"}},
		"publishing": {[]string{"~*", "&*", "+@all", "-publish"}, []string{"PUBLISH"}},
	} {
		t.Run(name, func(t *testing.T) {
			open := rights(t, c.rules...)
			a, b := open(), open()
			for n := range 2 * deafAfter {
				held, _ := take(t, a, claimOf("k", "a"), time.Minute, false)
				w := claimOf("k", "b")
				t.Cleanup(b.Watch(w, func(driver.Hint) {}))
				w, g := take(t, b, w, time.Minute, true)
				if n > deafAfter {
					eventually(t, "the waiter knows that it is told nothing", 20*time.Second, b.pushes.deaf)
					r := renewOne(t, b, w, time.Minute)
					if r.State != driver.Waiting || r.Grant.Again > 50*time.Millisecond {
						t.Errorf("round %d: a waiter is to look again after %v, before %v; %+v", n, r.Grant.Again, g.Again, r)
					}
				}
				if err := a.Release(t.Context(), held); err != nil {
					t.Fatalf("round %d: release with a waiter: %v", n, err)
				}
				r := renewOne(t, b, w, time.Minute)
				if r.State != driver.Held {
					t.Fatalf("round %d: the waiter is %+v", n, r)
				}
				w.Ticket = r.Grant.Ticket
				mustRelease(t, b, w)
			}
			all, err := a.Examine(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, call := range c.calls {
				found := false
				for _, f := range all {
					found = found || f.Name == "channels" && strings.Contains(f.What, call) && strings.Contains(f.Mend, "&app:baton:*")
				}
				if !found {
					t.Errorf("no finding says that %s is refused: %+v", call, all)
				}
			}
		})
	}
}

// What a store needs that waits for replicas is missing when it is opened, or not at all.
func TestRightsForReplicas(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	for rights, want := range map[string]string{"-role": "'role'", "-@admin +role": "", "-wait": "'wait'"} {
		server := testserver.Redis(t, append([]string{"--user", "default", "on", "nopass", "~*", "&*", "+@all"}, strings.Fields(rights)...)...)
		s, err := Open(t.Context(), Server{Addrs: []string{server.Addr}}, Config{Replicas: 1})
		if err == nil {
			s.Close()
		}
		if _, denied := errors.AsType[*PermissionError](err); denied != (want != "") || denied && !strings.Contains(err.Error(), want) || err != nil && !denied {
			t.Errorf("%s: %v, want one that names %q", rights, err, want)
		}
	}
}

// A user that may reach the channels is told of a grant, and does not look more often.
func TestChannels(t *testing.T) {
	open := rights(t, "~*", "resetchannels", "&app:baton:*", "+@all")
	a, b := open(), open()
	for n := range 2 * deafAfter {
		held, _ := take(t, a, claimOf("k", "a"), time.Minute, false)
		w, pushed := claimOf("k", "b"), make(chan driver.Grant, 1)
		stop := b.Watch(w, func(h driver.Hint) {
			if h.Granted {
				pushed <- h.Grant
			}
		})
		eventually(t, "the subscription", 20*time.Second, func() bool {
			listening := false
			err := b.client.Primaries(t.Context(), func(node wire.Node) error {
				a, err := node.Do(t.Context(), "PUBSUB", "NUMSUB", b.channel)
				listening = len(list(a)) == 2 && number(list(a)[1]) == 1
				return err
			})
			return err == nil && listening
		})
		w, _ = take(t, b, w, time.Minute, true)
		mustRelease(t, a, held)
		w.Ticket = (<-pushed).Ticket
		if b.pushes.deaf() {
			t.Errorf("round %d: it takes itself for deaf", n)
		}
		stop()
		mustRelease(t, b, w)
	}
	all, err := a.Examine(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if f.Name == "channels" {
			t.Errorf("found although all rights are there: %+v", f)
		}
	}
}

// A key that the user may not touch is refused at once: nothing has happened, and to
// ask again does not help.
func TestForbiddenKeys(t *testing.T) {
	s := rights(t, "~other*", "&*", "+@all")()
	for _, queue := range []bool{false, true} {
		_, err := s.Acquire(t.Context(), driver.Request{Claim: claimOf("k", "a"), TTL: time.Minute, Queue: queue, Retry: queue})
		if !errors.As(err, new(*PermissionError)) || errors.Is(err, driver.ErrUnknown) || errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("acquire, queue %v: %v, want a refusal that is final", queue, err)
		}
	}
	_, err := s.Take(t.Context(), asking("limit", tokens(1, time.Hour, 100), 1))
	if !errors.As(err, new(*PermissionError)) {
		t.Errorf("take: %v", err)
	}
}
