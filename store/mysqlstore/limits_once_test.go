package mysqlstore

import (
	"testing"
	"time"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/testserver"
)

// A decision has one clock, whatever becomes of the server's meanwhile.
func TestLimitEndsByTheClockOfItsDecision(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, testserver.MariaDB(t))
	s := d.open(t)
	for key, l := range map[string]limits.Limit{
		"bucket": bucketOf(1, time.Second, 10),
		"fixed":  {Algorithm: limits.FixedWindow, N: 10, Period: time.Hour},
		"log":    {Algorithm: limits.SlidingLog, N: 10, Period: time.Hour},
	} {
		a := takeOne(t, s, key, l, 1)
		var ends int64
		if err := d.plain.QueryRow("SELECT TIMESTAMPDIFF(MICROSECOND,'1970-01-01',ends) FROM baton_limit WHERE k=?", key).Scan(&ends); err != nil {
			t.Fatal(err)
		}
		if want := a.At + a.Limits[0].Reset.Microseconds(); ends != want {
			t.Errorf("%s: kept %d us longer than until it is as new", key, ends-want)
		}
	}
}
