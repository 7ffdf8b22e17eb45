package mysqlstore

import (
	"strings"
	"testing"

	"github.com/batonhq/baton/internal/testserver"
)

// However many IDs have expired, and however long their keys are, statements remove
// them that a server takes which does not take long ones.
func TestLimitIDsAreSweptInPieces(t *testing.T) {
	testserver.NeedMariaDB(t)
	t.Parallel()
	d := newDatabase(t, testserver.MariaDB(t, "--max-allowed-packet=1M"))
	s := d.open(t)
	left := func() (n int) {
		if err := d.plain.QueryRow("SELECT COUNT(*) FROM baton_limit_id").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	d.exec(t, "INSERT INTO baton_limit_id (k,id,at,wait,ends) SELECT CONCAT('"+strings.Repeat("k", 500)+"',seq),'id',1,0,'2020-01-01' FROM "+numbers(10_000))
	if n := left(); n != 10_000 {
		t.Fatalf("%d IDs were made", n)
	}
	if _, err := s.sweepLimits(t.Context(), "", 9_900); err != nil {
		t.Fatalf("sweep: %v", err)
	}
	if n := left(); n != 100 {
		t.Errorf("%d of 10 000 IDs are left, want the 100 that were not asked for", n)
	}
}
