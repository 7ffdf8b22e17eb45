package shellword

import (
	"os/exec"
	"testing"
)

func TestQuote(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{
		"":                  "''",
		"/var/lib/locks.db": "/var/lib/locks.db",
		"/srv/a (b)":        "'/srv/a (b)'",
		"it's; $(rm x) `y`": `'it'\''s; $(rm x) ` + "`y`'",
	} {
		got := Quote(s)
		if got != want {
			t.Errorf("%q is %s, want %s", s, got, want)
		}
		out, err := exec.CommandContext(t.Context(), "sh", "-c", "printf %s "+got).Output()
		if err != nil || string(out) != s {
			t.Errorf("a shell takes %s for %q, want %q: %v", got, out, s, err)
		}
	}
}
