//go:build unix

package clitest

import "testing"

// The checker finds what is planted.
func TestObeyed(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"\x1b[31m", "a\r", "a\tb", "\x07", "\x7f", "\u009b31m", "\x9b31m", "a\u202eb", "\u2066", "\u200b", "\u2028", "\xff"} {
		if Obeyed("good\n"+bad) == "" {
			t.Errorf("%q passes", bad)
		}
	}
	if bad := Obeyed("good \\x1b \"äöü\" 界 🔒\n\ufffd"); bad != "" {
		t.Errorf("%s", bad)
	}
}
