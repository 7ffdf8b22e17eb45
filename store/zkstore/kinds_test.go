package zkstore

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// The answer to a downgrade is lost: the next one finds what it did.
func TestDowngradeWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	proxy := faultproxy.New(t, server.Addr)
	s := openOn(t, "", proxy.Addr)
	other := openOn(t, s.root, server.Addr)
	r := writer("k")
	g := hold(t, s, r)
	cut := proxy.CutAfterRequest(func(b []byte) bool { return bytes.Contains(b, []byte(markRead)) })
	if _, err := s.Downgrade(t.Context(), r.Claim, ttl); !errors.Is(err, driver.ErrUnknown) {
		t.Fatalf("downgrade: %v, want driver.ErrUnknown", err)
	}
	<-cut
	var again driver.Grant
	eventually(t, "a repeated downgrade", func() (ok bool) {
		var err error
		again, err = s.Downgrade(t.Context(), r.Claim, ttl)
		return err == nil
	})
	if again.Token != g.Token {
		t.Errorf("token %d became %d", g.Token, again.Token)
	}
	read := reader("k")
	hold(t, other, read)
	release(t, other, read)
	release(t, s, r)
	if left := queueIn(t, plain(t, server.Addr), s, "k"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// A downgrade that got no answer takes effect right before the second one: its reader's
// node belongs to the claim, and is removed with it.
func TestDowngradeComesThroughLate(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	proxy := faultproxy.New(t, server.Addr)
	s := openOn(t, "", proxy.Addr)
	direct := plain(t, server.Addr)
	r := writer("k")
	g := hold(t, s, r)
	c := s.find(r.Claim)
	write := c.nodes[1]
	reader := strings.Replace(write, markWrite, markRead, 1)
	var first sync.Once
	proxy.Rewrite(faultproxy.ToServer, func(request []byte) []byte {
		if bytes.Contains(request, []byte(reader)) {
			first.Do(func() {
				if _, err := direct.Multi(
					&zk.DeleteRequest{Path: c.parent + "/" + write, Version: -1},
					&zk.CreateRequest{Path: c.parent + "/" + reader, Acl: s.acl, Flags: zk.FlagEphemeral},
				); err != nil {
					t.Error(err)
				}
			})
		}
		return request
	})
	if again, err := s.Downgrade(t.Context(), r.Claim, ttl); err != nil || again.Token != g.Token {
		t.Errorf("downgrade: %+v, %v, want token %d", again, err, g.Token)
	}
	if a := renew(t, s, r); a.State != driver.Held {
		t.Errorf("renewed: %+v", a)
	}
	_ = s.Release(t.Context(), r.Claim)
	mustEmpty(t, s, "k")
}
