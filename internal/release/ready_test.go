package main

import (
	"cmp"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReady(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, version, changes, kept, want string
	}{
		{"all is there", "v0.1.0", "## 0.1.0, 2026-12-01\n", "names\n", ""},
		{"a candidate", "v0.1.0-rc1", "", "", ""},
		{"no version", "0.1", "## 0.1.0, 2026-12-01\n", "names\n", "it has the form v1.2.3"},
		{"no day", "v0.1.0", "## 0.1.0, not released yet\n", "names\n", `no line "## 0.1.0, YEAR-MONTH-DAY"`},
		{"another version", "v0.1.0", "## 0.1.01, 2026-12-01\n## 0x1.0, 2026-12-01\n", "names\n", `no line "## 0.1.0, YEAR-MONTH-DAY"`},
		{"no names", "v0.1.0", "## 0.1.0, 2026-12-01\n", "", "cp api/next.txt api/v0.1.0.txt"},
		{"other names", "v0.1.0", "## 0.1.0, 2026-12-01\n", "others\n", "cp api/next.txt api/v0.1.0.txt"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			top := t.TempDir()
			write := func(name, text string) {
				file := filepath.Join(top, name)
				if err := cmp.Or(os.MkdirAll(filepath.Dir(file), 0o777), os.WriteFile(file, []byte(text), 0o666)); err != nil {
					t.Fatal(err)
				}
			}
			write("CHANGELOG.md", "# Changelog\n\n"+c.changes)
			write("api/next.txt", "names\n")
			if c.kept != "" {
				write("api/v0.1.0.txt", c.kept)
			}
			err := ready(top, c.version)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("the error is %v, want %q", err, c.want)
			}
		})
	}
}
