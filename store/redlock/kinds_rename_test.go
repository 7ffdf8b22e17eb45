package redlock_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/driver"
)

// owners are those that the servers show for the one holder of key, "" for none.
func (s *servers) owners(t *testing.T, key string) (all []string) {
	t.Helper()
	for _, node := range s.list {
		info, err := node.store.Inspect(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		owner := ""
		if len(info.Holders) > 0 {
			owner = info.Holders[0].Owner
		}
		all = append(all, owner)
	}
	return all
}

func (s *servers) wantOwner(t *testing.T, what, key, want string) {
	t.Helper()
	for i, owner := range s.owners(t, key) {
		if owner != want {
			t.Errorf("%s: server %d shows %q, want %q", what, i, owner, want)
		}
	}
}

// A server that missed a rename, or had not been asked for the lock yet, shows the new
// owner after the next renewal, though that has the old one.
func TestRenameReachesAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(t, 5)
		l := s.open(1)[0]
		r := l.(driver.Renamer)
		c, _ := acquire(t, l, claimOf("k"), time.Minute)
		if err := r.Rename(t.Context(), c, "early"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // until the other servers were asked
		s.wantOwner(t, "renamed at once", "k", "early")

		s.cut(true, 0, 4)
		if err := r.Rename(t.Context(), c, "new"); err != nil {
			t.Fatal(err)
		}
		if got := s.owners(t, "k"); got[0] != "early" || got[1] != "new" {
			t.Errorf("two servers cut off: %q", got)
		}
		s.cut(false, 0, 4)
		time.Sleep(2 * time.Second) // until they are asked again
		if a := renew(t, l, c, time.Minute); a.State != driver.Held {
			t.Fatalf("renewed: %+v", a)
		}
		synctest.Wait()
		s.wantOwner(t, "renewed", "k", "new")

		s.list[2].restart(time.Hour)
		for range 2 { // lost there, and asked for again
			if a := renew(t, l, c, time.Minute); a.State != driver.Held {
				t.Fatalf("renewed: %+v", a)
			}
			synctest.Wait()
		}
		s.wantOwner(t, "restarted", "k", "new")
	})
}

// Without a majority the outcome is unknown, and the lock is still held. The same rename
// succeeds when the servers answer again.
func TestRenameWithoutAMajority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(t, 3)
		l := s.open(1)[0]
		r := l.(driver.Renamer)
		c, _ := acquire(t, l, claimOf("k"), time.Minute)
		s.cut(true, 0, 1)
		if err := r.Rename(t.Context(), c, "new"); !errors.Is(err, driver.ErrUnknown) {
			t.Errorf("cut off: %v, want driver.ErrUnknown", err)
		}
		s.cut(false, 0, 1)
		time.Sleep(2 * time.Second)
		if a := renew(t, l, c, time.Minute); a.State != driver.Held {
			t.Fatalf("renewed: %+v", a)
		}
		if err := r.Rename(t.Context(), c, "new"); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		s.wantOwner(t, "again", "k", "new")
		if err := l.Release(t.Context(), c); err != nil {
			t.Error(err)
		}
		if err := r.Rename(t.Context(), c, "late"); !errors.Is(err, driver.ErrLost) {
			t.Errorf("released: %v, want driver.ErrLost", err)
		}
	})
}
