package textwidth

import "testing"

func TestOf(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"":               0,
		"order/42 é":     10,
		"e\u0301":        1, // an accent of its own
		"看门狗":            6,
		"（，。）":           8,
		"“…” ─ █":        7, // in the fonts of terminals as wide as letters
		"ﾊﾝｶｸ ＡＢ":        9,
		"잠금":             4,
		"\U0001f512 ⚡ ❌": 8,
	} {
		if got := Of(text); got != want {
			t.Errorf("%q takes %d columns, want %d", text, got, want)
		}
	}
}
