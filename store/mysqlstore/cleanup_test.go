package mysqlstore

import (
	"testing"
	"time"

	"github.com/batonhq/baton/internal/testserver"
)

// A command that runs for a moment now and then sweeps what other programs have left,
// before and after the key that it uses.
func TestCommandsSweep(t *testing.T) {
	testserver.NeedMariaDB(t)
	t.Parallel()
	d := shared(t)
	const others = 300
	for _, fill := range []string{
		"INSERT INTO baton_lock (k,last,busy,token,weight,id,owner,since,ends) SELECT CONCAT('key',LPAD(seq,3,'0')),1,0,1,1<<40,'i','o','2020-01-01','2020-01-01'",
		"INSERT INTO baton_limit (k,state,ends) SELECT CONCAT('key',LPAD(seq,3,'0')),'3 1 0 1 1 1','2020-01-01'",
		"INSERT INTO baton_kept (k,text,until) SELECT CONCAT('key',LPAD(seq,3,'0')),'','2020-01-01'",
		"INSERT INTO baton_limit_id (k,id,at,wait,ends) SELECT CONCAT('key',LPAD(seq,3,'0')),'i',1,0,'2020-01-01'",
	} {
		d.exec(t, fill+" FROM "+numbers(others))
	}
	left := func() (n int) {
		if err := d.plain.QueryRow("SELECT (SELECT COUNT(*) FROM baton_lock)+(SELECT COUNT(*) FROM baton_limit)+(SELECT COUNT(*) FROM baton_limit_id)+(SELECT COUNT(*) FROM baton_kept)").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, early := range []bool{false, true} {
		s := d.openWith(t, func(_ *Server, o *options) { o.early, o.sweepEvery = func() bool { return early }, time.Hour })
		c, _ := take(t, s, claimOf("key150", "command"), time.Minute, false)
		mustRelease(t, s, c)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if n := left(); early && n != 1 || !early && n != 4*others {
			t.Errorf("early %v: %d rows are left, of %d", early, n, 4*others)
		}
	}
	early := 0
	for range 1600 {
		if earlyByChance() {
			early++
		}
	}
	if early < 20 || early > 400 {
		t.Errorf("%d of 1600 stores sweep early, want about 100", early)
	}
}
