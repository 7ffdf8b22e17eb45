//go:build unix

package main

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/batonhq/baton/ratelimit"
)

// A caller who comes back at the time that is printed is not too early.
func TestTimesOfLimitsAreNotEarly(t *testing.T) {
	t.Parallel()
	for range 20_000 {
		d := time.Duration(rand.Int64N(int64(3 * time.Hour)))
		d >>= rand.IntN(44)
		j := limitJSON(ratelimit.Result{RetryAfter: d, NextAfter: d, ResetAfter: d})
		for _, s := range []float64{*j.RetryAfter, j.NextAfter, j.ResetAfter} {
			if got := time.Duration(s*1000+0.5) * time.Millisecond; got < d || got >= d+time.Millisecond {
				t.Fatalf("%v is given as %v s", d, s)
			}
		}
		if got, err := time.ParseDuration(shortUp(d)); err != nil || got < d || got > d+d/10+time.Millisecond {
			t.Fatalf("%v is given as %s, %v", d, shortUp(d), err)
		}
	}
	if got := limitJSON(ratelimit.Result{RetryAfter: ratelimit.Never}).RetryAfter; got != nil {
		t.Errorf("never is %v", *got)
	}
}

// What a terminal would obey is escaped, and means the same.
func TestPrintJSON(t *testing.T) {
	t.Parallel()
	var all []string
	for _, r := range []rune{0, '\t', '\n', 0x1b, '"', '\\', 0x7f, 0x80, 0x9b, 0xa0, 0xad, 'ö', 0x200b, 0x2028, 0x202e, 0x2066, 0xfeff, 0xfffd, '界', 0xe000, 0x1f512, 0xe0001, 0x10ffff} {
		all = append(all, "<"+string(r)+">")
	}
	path := filepath.Join(t.TempDir(), "out")
	for _, indent := range []bool{false, true} {
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := printJSON(f, all, indent); err != nil {
			t.Fatal(err)
		}
		f.Close()
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if bad := obeyed(string(text)); bad != "" {
			t.Errorf("%s in %s", bad, text)
		}
		var again []string
		if err := json.Unmarshal(text, &again); err != nil || len(again) != len(all) {
			t.Fatalf("%v: %s", err, text)
		}
		for i := range all {
			if again[i] != all[i] {
				t.Errorf("%q became %q", all[i], again[i])
			}
		}
	}
}

// A terminal that is too narrow for a table gets less of it, or a paragraph for each row.
func TestLayout(t *testing.T) {
	t.Parallel()
	rows := [][]string{{"KEY", "MODE", "HELD BY", "SINCE", "TOKEN"}, {"order:42", "exclusive", "web1:10566 report.sh", "?", "114934923343473984"}, {"界", "read", "-", "?", "7"}}
	for columns, want := range map[int]string{
		0: `KEY       MODE       HELD BY               SINCE  TOKEN
order:42  exclusive  web1:10566 report.sh  ?      114934923343473984
界        read       -                     ?      7
`,
		61: `KEY       MODE       HELD BY               TOKEN
order:42  exclusive  web1:10566 report.sh  114934923343473984
界        read       -                     7
`,
		41: `KEY       MODE       HELD BY
order:42  exclusive  web1:10566 report.sh
界        read       -
`,
		40: `order:42
  mode     exclusive
  held by  web1:10566 report.sh
  token    114934923343473984
界
  mode     read
  token    7
`,
	} {
		if got := layout(rows, columns, 4); got != want {
			t.Errorf("%d columns:\n%swant\n%s", columns, got, want)
		}
	}
	if got := layout(rows[:1], 80); got != "KEY  MODE  HELD BY  SINCE  TOKEN\n" {
		t.Errorf("a table without rows is %q", got)
	}
}

// A prefix without a lock or a record is told as it was typed, escaped once.
func TestPrefixIsQuoted(t *testing.T) {
	t.Parallel()
	for prefix, want := range map[string]string{
		"":              "",
		"job/é":         ` under "job/é"`,
		"\x1b[2J\u202e": ` under "\x1b[2J\u202e"`,
		"\xff\n":        ` under "\xff\n"`,
	} {
		if got := under([]string{prefix}); got != want {
			t.Errorf("%q is told as %s, want %s", prefix, got, want)
		}
	}
}
