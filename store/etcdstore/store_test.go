package etcdstore

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/internal/testserver"
)

// A member closes a connection that has no stream and is pinged, after half a
// minute, and the client then pings all its connections half as often.
func TestIdleConnectionsAreNotPinged(t *testing.T) {
	t.Parallel()
	if c := clientConfig(Server{}); c.PermitWithoutStream || c.DialKeepAliveTime == 0 {
		t.Errorf("pings every %v, without a stream: %t", c.DialKeepAliveTime, c.PermitWithoutStream)
	}
}

// enableAuth makes a user who may use what is below app/.
func enableAuth(t *testing.T, server *testserver.EtcdServer) {
	t.Helper()
	admin := dial(t, server.Addr)
	ctx := t.Context()
	steps := []func() error{
		func() error { _, err := admin.UserAdd(ctx, "root", "canary-root"); return err },
		func() error { _, err := admin.UserGrantRole(ctx, "root", "root"); return err },
		func() error { _, err := admin.RoleAdd(ctx, "locks"); return err },
		func() error {
			_, err := admin.RoleGrantPermission(ctx, "locks", "app/", "app0", 2)
			return err
		},
		func() error { _, err := admin.UserAdd(ctx, "app", "canary-app"); return err },
		func() error { _, err := admin.UserGrantRole(ctx, "app", "locks"); return err },
		func() error { _, err := admin.AuthEnable(ctx); return err },
	}
	for i, step := range steps {
		if err := step(); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
}

// With a password, and not without.
func TestAuthentication(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t)
	enableAuth(t, server)
	ctx := t.Context()
	for what, cfg := range map[string]Server{
		"no password":    {Endpoints: []string{server.Addr}},
		"wrong password": {Endpoints: []string{server.Addr}, Username: "app", Password: "canary-wrong"},
	} {
		s, err := Open(ctx, cfg, Config{Prefix: "app"})
		if err == nil {
			s.Close()
		}
		if !errors.Is(err, driver.ErrDenied) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", what, err)
		}
	}
	cfg := Server{Endpoints: []string{server.Addr}, Username: "app", Password: "canary-app"}
	if s, err := Open(ctx, cfg, Config{Prefix: "other"}); err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("below another prefix: %v, %v", s, err)
	}
	s, err := Open(ctx, cfg, Config{Prefix: "app"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c, _ := take(t, s, claimOf("k", "me"), long, true)
	if r := renewOne(t, s, c, long); r.State != driver.Held {
		t.Errorf("renew: %v (%v)", r.State, r.Err)
	}
	w, g := take(t, s, claimOf("k", "next"), long, true)
	if !g.Waiting {
		t.Errorf("%+v", g)
	}
	mustRelease(t, s, c)
	if r := renewOne(t, s, w, long); r.State != driver.Held {
		t.Errorf("renew: %v (%v)", r.State, r.Err)
	}
	mustRelease(t, s, w)
	all, err := s.Examine(ctx)
	if err != nil {
		t.Error(err)
	}
	for _, f := range all {
		if f.Name == "auth" || strings.Contains(f.What+f.Mend, "canary") {
			t.Errorf("with authentication: %+v", f)
		}
	}
}

// The tokens of a server with passwords are gone after a restart, or after a while.
func TestAuthenticationSurvivesRestart(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t, "--auth-token-ttl=1")
	enableAuth(t, server)
	s, err := Open(t.Context(), Server{Endpoints: []string{server.Addr}, Username: "app", Password: "canary-app"}, Config{Prefix: "app"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c := claimOf("k", "me")
	hints := hintsOf(t, s, c)
	c, _ = take(t, s, c, long, true)
	check := func(when string) {
		t.Helper()
		eventually(t, "it can be renewed "+when, 30*time.Second, func() bool {
			s.mu.Lock()
			s.leases[seconds(long)].end = s.leases[seconds(long)].end.Add(-time.Second) // so that it is prolonged
			s.mu.Unlock()
			r := renewOne(t, s, c, long)
			if r.State == driver.Lost {
				t.Fatal("lost " + when)
			}
			return r.State == driver.Held
		})
		other, _ := take(t, s, claimOf("other", "me"), long, true)
		mustRelease(t, s, other)
		third, _ := take(t, s, claimOf("third", "me"), 5*time.Second, true) // a new lease
		mustRelease(t, s, third)
	}
	check("at first")
	server.Restart()
	check("after a restart")
	<-time.After(3 * time.Second) // the token ends
	check("with a token that has ended")
	synced(t, s, "k")
	if _, err := s.Break(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	awaitHint(t, "broken", hints, func(h driver.Hint) bool { return !h.Granted })
}

func TestClosedClient(t *testing.T) {
	testserver.NeedEtcd(t)
	t.Parallel()
	client := dial(t, testserver.SharedEtcd(t).Addr)
	drivertest.ClosedClient(t, mustNew(t, client, Config{Prefix: driver.NewID()}), func() { client.Close() })
}
