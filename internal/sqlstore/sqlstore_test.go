package sqlstore

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
)

// table is a Tx on a slice, in which a renewal can come between the reading
// of a claim and its deletion, as it can on a server.
type table struct {
	now, wall, floor int64
	keys             map[string]Key
	claims           map[string][]Claim
	renewedMeanwhile map[int64]bool // by ticket
	reads            int
}

func newTable() *table {
	return &table{now: 1_000_000, wall: 5_000_000, keys: map[string]Key{}, claims: map[string][]Claim{}}
}

func (t *table) Now() int64       { return t.now }
func (t *table) Seed() int64      { return t.wall }
func (t *table) Node(bool) string { return "here" }

func (t *table) LockKey(key string) (Key, bool, error) {
	k, found := t.keys[key]
	if !found {
		k = Key{Last: t.floor, Weight: driver.Whole}
	}
	return k, found, nil
}

func (t *table) SaveKey(key string, k Key, _ bool) error {
	t.keys[key] = k
	return nil
}

func (t *table) Claims(key string, after int64, limit int) ([]Claim, error) {
	t.reads++
	var page []Claim
	for _, c := range t.claims[key] {
		if c.Seq > after && len(page) < limit {
			page = append(page, c)
		}
	}
	return page, nil
}

func (t *table) ClaimByID(key, id string) (Claim, bool, error) {
	for _, c := range t.claims[key] {
		if c.ID == id {
			return c, true, nil
		}
	}
	return Claim{}, false, nil
}

func (t *table) InsertClaim(key string, c Claim) error {
	t.claims[key] = append(t.claims[key], c)
	return nil
}

func (t *table) UpdateClaim(key string, c Claim) error {
	for i, old := range t.claims[key] {
		if old.Seq == c.Seq {
			t.claims[key][i] = c
			return nil
		}
	}
	return errors.New("no such claim")
}

func (t *table) RenameClaim(key string, c Claim) error {
	for i, own := range t.claims[key] {
		if own.Seq == c.Seq {
			t.claims[key][i].Owner = c.Owner
			return nil
		}
	}
	return errors.New("no such claim")
}

func (t *table) DeleteClaim(key string, seq int64) error {
	t.claims[key] = slices.DeleteFunc(t.claims[key], func(c Claim) bool { return c.Seq == seq })
	return nil
}

func (t *table) DeleteDead(key string, seq int64) (bool, error) {
	if t.renewedMeanwhile[seq] {
		return false, nil
	}
	return true, t.DeleteClaim(key, seq)
}

func (t *table) CountWaiting(key string) (n int, err error) {
	for _, c := range t.claims[key] {
		if !c.Held && c.Ends > t.now {
			n++
		}
	}
	return n, nil
}

func request(key, id string, weight, capacity int64) driver.Request {
	return driver.Request{
		Claim: driver.Claim{Key: key, ID: id, Owner: id, Weight: weight, Capacity: capacity},
		TTL:   10 * time.Second, Queue: true,
	}
}

func (t *table) acquire(test *testing.T, r driver.Request, fx *Effects) driver.Grant {
	test.Helper()
	g, refused, failed := Acquire(t, r, fx)
	if refused != nil || failed != nil {
		test.Fatalf("acquire %s: %v, %v", r.ID, refused, failed)
	}
	return g
}

// A holder renews just before its end, and the walk has read the old end. A holder that
// the deletion, which looks again, did not remove still holds.
func TestHeldRowIsNotDeadByReading(t *testing.T) {
	tab, fx := newTable(), &Effects{}
	first := tab.acquire(t, request("k", "reader", 1, driver.Whole), fx)
	tab.acquire(t, request("k", "writer", driver.Whole, driver.Whole), fx)
	tab.now += (10 * time.Second).Microseconds()
	tab.claims["k"][1].Ends = tab.now + 1 // the writer goes on waiting
	tab.renewedMeanwhile = map[int64]bool{first.Token: true}
	if err := Serve(tab, "k", fx); err != nil {
		t.Fatal(err)
	}
	if len(fx.Granted) != 0 {
		t.Fatalf("granted %+v while the reader holds", fx.Granted)
	}
	tab.renewedMeanwhile = nil
	if err := Serve(tab, "k", fx); err != nil {
		t.Fatal(err)
	}
	if len(fx.Granted) != 1 || fx.Granted[0].ID != "writer" || fx.Granted[0].TTL != driver.ClaimTTL {
		t.Fatalf("granted %+v, want the writer for %v", fx.Granted, driver.ClaimTTL)
	}
}

// The walk ends at the first waiter that does not fit, however many follow.
func TestWalkDoesNotReadTheQueue(t *testing.T) {
	tab, fx := newTable(), &Effects{}
	holder := request("k", "holder", driver.Whole, driver.Whole)
	tab.acquire(t, holder, fx)
	for i := range 1000 {
		tab.acquire(t, request("k", fmt.Sprint("waiter", i), driver.Whole, driver.Whole), fx)
	}
	tab.reads = 0
	if refused, err := Release(tab, holder.Claim, fx); refused != nil || err != nil {
		t.Fatal(refused, err)
	}
	if len(fx.Granted) != 1 || fx.Granted[0].ID != "waiter0" {
		t.Errorf("granted %+v, want the first of the queue", fx.Granted)
	}
	if tab.reads > 2 {
		t.Errorf("%d pages were read", tab.reads)
	}
}

// More holders than one page, then a writer, then a reader that must not pass.
func TestWalkReadsAllHolders(t *testing.T) {
	tab, fx := newTable(), &Effects{}
	const n = 3*page + 1
	for i := range n {
		if g := tab.acquire(t, request("k", fmt.Sprint("reader", i), 1, driver.Whole), fx); g.Waiting {
			t.Fatalf("reader %d waits", i)
		}
	}
	writer := tab.acquire(t, request("k", "writer", driver.Whole, driver.Whole), fx)
	late := tab.acquire(t, request("k", "late", 1, driver.Whole), fx)
	if !writer.Waiting || !late.Waiting {
		t.Fatalf("writer %+v, reader behind it %+v: want both in line", writer, late)
	}
	for i := range n {
		fx = &Effects{}
		if refused, err := Release(tab, driver.Claim{Key: "k", ID: fmt.Sprint("reader", i)}, fx); refused != nil || err != nil {
			t.Fatal(refused, err)
		}
		if granted := len(fx.Granted) == 1; granted != (i == n-1) {
			t.Fatalf("after %d of %d readers left: %+v", i+1, n, fx.Granted)
		}
	}
}

// A counter that ran ahead of the wall clock, or a floor above it, wins.
func TestTicketsRise(t *testing.T) {
	tab, fx := newTable(), &Effects{}
	tab.floor = tab.wall + 100
	r := request("k", "a", driver.Whole, driver.Whole)
	first := tab.acquire(t, r, fx)
	if first.Token != tab.floor+1 {
		t.Errorf("token %d, want %d", first.Token, tab.floor+1)
	}
	if refused, err := Release(tab, r.Claim, fx); refused != nil || err != nil {
		t.Fatal(refused, err)
	}
	tab.wall = 0
	if g := tab.acquire(t, request("k", "b", driver.Whole, driver.Whole), fx); g.Token != first.Token+1 {
		t.Errorf("token %d after %d", g.Token, first.Token)
	}
}

func TestPrefixEnd(t *testing.T) {
	for prefix, want := range map[string]string{"": "", "a": "b", "a/": "a0", "é": "\xc3\xaa", "a\xff": "b", "\xff\xff": ""} {
		if got := string(PrefixEnd(prefix)); got != want {
			t.Errorf("PrefixEnd(%q) = %q, want %q", prefix, got, want)
		}
	}
}

// A hint may come before the answer that tells the position, or belong to an earlier
// position under the same ID: the position goes on being polled.
func TestWatchersKeepThePosition(t *testing.T) {
	var w Watchers
	var watching, waiting int
	w.Changed = func(a, b int) { watching, waiting = a, b }
	hints := 0
	c := driver.Claim{Key: "k", ID: "id"}
	stop := w.Watch(c, func(driver.Hint) { hints++ })
	granted := func(token int64) driver.Hint {
		return driver.Hint{Granted: true, Grant: driver.Grant{Token: token}}
	}
	if !w.Deliver("k", "id", granted(7)) || w.Deliver("other", "id", granted(7)) || hints != 1 {
		t.Errorf("%d hints, want the one for the key", hints)
	}
	w.Waits("k", "id", 9)
	w.Deliver("k", "id", granted(8))
	if p := w.Positions(); len(p) != 1 || p[0].Seq != 9 || waiting != 1 {
		t.Errorf("positions %v after an old hint, %d wait", p, waiting)
	}
	w.Deliver("k", "id", granted(9))
	if p := w.Positions(); len(p) != 0 || waiting != 0 {
		t.Errorf("positions %v after the grant, %d wait", p, waiting)
	}
	w.Waits("k", "id", 10)
	stop()
	stop()
	if watching != 0 || waiting != 0 || w.Deliver("k", "id", granted(11)) {
		t.Errorf("%d watch, %d wait after the end", watching, waiting)
	}
}
