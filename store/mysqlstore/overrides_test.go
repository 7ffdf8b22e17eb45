package mysqlstore

import (
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/testserver"
)

// A database that is older than overrides goes on with locks, limits and records, also by
// users who may not change it. Overrides say what to do.
func TestOverridesInAnOldDatabase(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, testserver.SharedMariaDB(t))
	d.exec(t, "DROP TABLE baton_override")
	user := "u" + strings.ToLower(rand.Text()[:10])
	d.exec(t, "CREATE USER "+user)
	d.exec(t, "GRANT SELECT,INSERT,UPDATE,DELETE ON "+d.name+".* TO "+user)
	s := d.openWith(t, func(c *Server, _ *options) { c.User = user })
	c, _ := take(t, s, claimOf("k", "a"), time.Minute, false)
	mustRelease(t, s, c)
	takeOne(t, s, "k", bucketOf(1, time.Hour, 5), 1)
	beginRecord(t, s, "k", 1)
	o := limits.Override{Key: "k", N: 5}
	_, errLook := s.Overrides(t.Context())
	for what, err := range map[string]error{"set": s.SetOverride(t.Context(), o, time.Hour), "removed": s.SetOverride(t.Context(), o, 0), "looked up": errLook} {
		if !errors.Is(err, ErrSchema) || !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "baton schema apply") {
			t.Errorf("%s without the table: %v", what, err)
		}
	}
	if found := examine(t, s); len(found) != 1 || found[0] != "schema" {
		t.Errorf("found %q", found)
	}
	owner := d.open(t) // makes the table
	if err := owner.SetOverride(t.Context(), o, time.Hour); err != nil {
		t.Error(err)
	}
	if all, err := s.Overrides(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("%+v, %v", all, err)
	}
}
