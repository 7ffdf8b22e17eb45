package zkstore

import (
	"testing"

	"github.com/batonhq/baton/internal/testserver"
)

// Permits that are granted by the first listing are marked, too: a contender behind
// them may have looked before those ahead went.
func TestPermitsGrantedAtOnceAreMarked(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	s := longWaiting(openOn(t, "", server.Addr))
	other := longWaiting(openOn(t, s.root, server.Addr))
	first, r, behind := permits("k", 3, 4), permits("k", 2, 4), permits("k", 1, 4)
	hold(t, other, first)
	c, m := makeNodes(t, s, r)
	queue(t, other, behind)
	release(t, other, first)
	if g, err := c.queue(t.Context(), r, m.trip, nil); err != nil || g.Waiting {
		t.Fatalf("%+v, %v, want it held", g, err)
	}
	eventually(t, "a mark", func() bool {
		d, err := s.get(t.Context(), c.parent+"/"+c.nodes[0])
		return err == nil && readData(d.data).marked
	})
}

// The contender before got its permits between the listing and the watch on its node,
// which will not change any more.
func TestPermitsMarkedBeforeTheWatch(t *testing.T) {
	t.Parallel()
	s := longWaiting(openOn(t, "", testserver.SharedZooKeeper(t).Addr))
	before, r := permits("k", 2, 4), permits("k", 1, 4)
	hold(t, s, before)
	b := s.find(before.Claim)
	b.mark(t.Context())

	c, m := makeNodes(t, s, r)
	own, err := s.watchNode(t.Context(), c.parent+"/"+c.nodes[0])
	if err != nil {
		t.Fatal(err)
	}
	changed := make(chan struct{})
	c.changed = changed
	if _, err := c.wait(m.trip.link, own, verdict{at: 2, any: b.nodes[:1], next: true}); err != nil {
		t.Fatal(err)
	}
	<-changed
	if c.is() != held {
		t.Error("it waits for a change that has come already")
	}
}
