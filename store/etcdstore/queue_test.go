package etcdstore

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
)

// A key below another is another lock, and has another queue.
func TestKeysBelowKeys(t *testing.T) {
	t.Parallel()
	testserver.NeedEtcd(t)
	steady(t, func(t testing.TB) {
		s := openOn(t, testserver.SharedEtcd(t), 2)
		below, _ := take(t, s[0], claimOf("a/b", "one"), long, true)
		a, g := take(t, s[1], claimOf("a", "two"), long, true)
		if g.Waiting {
			t.Error("a waits for a/b")
		}
		b, g := take(t, s[0], claimOf("a", "one"), long, true)
		if !g.Waiting {
			t.Error("a is held twice")
		}
		mustRelease(t, s[1], a)
		if r := renewOne(t, s[0], b, long); r.State != driver.Held {
			t.Errorf("the next for a: %v", r.State)
		}
		mustRelease(t, s[0], b)
		mustRelease(t, s[0], below)
	})
}

// A queue that is updated name by name is the same as one that is searched each time.
func TestQueueIndex(t *testing.T) {
	for seed := range uint64(200) {
		dice := rand.New(rand.NewPCG(seed, 0))
		var plain []contender
		l := newQueueIndex(nil)
		for rev := int64(1); rev < 100; rev++ {
			c := contender{name: fmt.Sprint("name ", dice.IntN(12)), rev: rev, mod: rev, lease: dice.Int64N(3)}
			i := slices.IndexFunc(plain, func(e contender) bool { return e.name == c.name })
			var was, gone contender
			if i >= 0 {
				was = plain[i]
			}
			switch dice.IntN(5) {
			case 0, 1: // it goes
				got, ok := l.remove(c.name)
				if i >= 0 {
					gone, plain = was, slices.Delete(plain, i, i+1)
				}
				if got != gone || ok != (i >= 0) {
					t.Fatalf("seed %d: removed %+v (%t), want %+v", seed, got, ok, gone)
				}
			case 2: // it is changed, or comes in the midst of the queue
				if c.rev = dice.Int64N(rev) + 1; i >= 0 {
					c.rev = was.rev
				}
				fallthrough
			default: // it is made, or made again
				got, ok := l.put(c)
				if i >= 0 {
					plain = slices.Delete(plain, i, i+1)
				}
				if i >= 0 && was.rev != c.rev {
					gone = was
				}
				plain = append(plain, c)
				slices.SortFunc(plain, byAge)
				if got != gone || ok != (gone.name != "") {
					t.Fatalf("seed %d: put %+v, which removed %+v (%t), want %+v", seed, c, got, ok, gone)
				}
			}
			if !slices.Equal(l.queue, plain) || len(l.revs) != len(plain) {
				t.Fatalf("seed %d: it is %+v with %v, want %+v", seed, l.queue, l.revs, plain)
			}
			for _, c := range plain {
				if l.revs[c.name] != c.rev {
					t.Fatalf("seed %d: %s is of %d, want %d", seed, c.name, l.revs[c.name], c.rev)
				}
			}
			var last contender
			bare := false
			for _, e := range plain {
				bare = bare || e.lease == 0
				if e.name != c.name {
					last = e
				}
			}
			if bare {
				last = contender{}
			}
			if got, ok := l.last(c.name); got != last || ok != (last.name != "") {
				t.Fatalf("seed %d: the last but %s of %+v is %+v (%t), want %+v", seed, c.name, plain, got, ok, last)
			}
			for i, e := range plain {
				var want contender
				if i > 0 {
					want = plain[i-1]
				}
				if got, ok := l.before(e.rev, e.name); got != want || ok != (i > 0) {
					t.Fatalf("seed %d: before %+v is %+v (%t), want %+v", seed, e, got, ok, want)
				}
			}
		}
	}
}

// Claims of one key that another process has made are found by one listing of its
// queue, however many are asked for.
func TestUnknownClaimsOfOneQueue(t *testing.T) {
	t.Parallel()
	testserver.NeedEtcd(t)
	steady(t, func(t testing.TB) {
		s := openOn(t, testserver.SharedEtcd(t), 4)
		claims := fillQueue(t, s[:3])
		spy := spyOn(s[3])
		want := []driver.State{driver.Held, driver.Waiting, driver.Waiting}
		for i, r := range s[3].Renew(t.Context(), claims, long) {
			if r.State != want[i] {
				t.Errorf("number %d is %v (%v), want %v", i, r.State, r.Err, want[i])
			}
		}
		listings := 0
		for _, op := range spy.about(s[3].dir("k"))[0].Success {
			if op.GetRequestRange() != nil {
				listings++
			}
		}
		if listings != 1 {
			t.Errorf("it listed the line %d times", listings)
		}
	})
}
