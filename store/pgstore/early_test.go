package pgstore

import (
	"testing"
	"time"
)

// A command that runs for a moment now and then sweeps what other programs have left,
// before and after the key that it uses.
func TestCommandsSweep(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	plain := openAt(t, url)
	const others = 1200 // more than a page
	exec(t, plain, `INSERT INTO baton_lock SELECT convert_to('key' || lpad(i::text, 4, '0'), 'UTF8'), 1, 1, false, '', 1, 1, 'o', 'n', '2020-01-01', '2020-01-01' FROM generate_series(1, 1200) AS i`)
	for _, early := range []bool{false, true} {
		s := openAt(t, url, func(o *options) { o.early, o.sweep = early, time.Hour })
		release(t, s, hold(t, s, writer("key0600")))
		if early {
			eventually(t, "the sweep", 20*time.Second, func() bool { return rowsOf(t, plain) < others/10 })
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if n := rowsOf(t, plain); !early && n != others {
			t.Errorf("%d rows are left of %d, though it was not early", n, others)
		}
	}
	early := 0
	for range 1600 {
		if defaults().early {
			early++
		}
	}
	if early < 20 || early > 400 {
		t.Errorf("%d of 1600 stores sweep early, want about 100", early)
	}
}
