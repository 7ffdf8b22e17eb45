//go:build unix

package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/batonhq/baton/internal/clitest"
)

// What a terminal would obey is escaped, and means the same.
func TestJSON(t *testing.T) {
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
		if err := JSON(f, all, indent); err != nil {
			t.Fatal(err)
		}
		f.Close()
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if bad := clitest.Obeyed(string(text)); bad != "" {
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
		if got := Layout(rows, columns, 4); got != want {
			t.Errorf("%d columns:\n%swant\n%s", columns, got, want)
		}
	}
	if got := Layout(rows[:1], 80); got != "KEY  MODE  HELD BY  SINCE  TOKEN\n" {
		t.Errorf("a table without rows is %q", got)
	}
}

func TestFold(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, before, want string }{
		{"one two three four five", "", "one two\nthree four\nfive"},
		{"one two three four five", "  ", "  one two\n  three\n  four\n  five"},
		{"a-word-that-is-wide", "", "a-word-tha\nt-is-wide"},
		{"持有锁的客户端", "", "持有锁的\n客户端"},
		{"锁已经归还，结束", "", "锁已经归\n还，结束"},
		{"锁已归还，结束", "", "锁已归还，\n结束"},
		{"", "", ""},
	} {
		if got := Fold(c.text, c.before, 10); got != c.want {
			t.Errorf("%q: %q, want %q", c.text, got, c.want)
		}
	}
}
