package suggest

import "testing"

func TestNearest(t *testing.T) {
	t.Parallel()
	words := []string{"prefix", "password-file", "db", "timeout", "ca", "cert", "insecure", "redis+sentinel"}
	for _, c := range []struct{ word, want string }{
		{"prefx", "prefix"},
		{"prefix", "prefix"},
		{"perfix", "prefix"},
		{"time", "timeout"},
		{"tiemout", "timeout"},
		{"insecur", "insecure"},
		{"redis-sentinel", "redis+sentinel"},
		{"password-fiel", "password-file"},
		{"carrot", ""},
		{"", ""},
		{"zz", ""}, // two edits would make it anything of two letters
	} {
		if got := Nearest(c.word, words); got != c.want {
			t.Errorf("Nearest(%q) = %q, want %q", c.word, got, c.want)
		}
	}
}

func TestDistance(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"abc", "abc", 0}, {"abc", "acb", 1}, {"kitten", "sitting", 3}} {
		if got := distance(c.a, c.b); got != c.want {
			t.Errorf("distance(%q, %q) = %d, want %d", c.a, c.b, got, c.want)
		}
		if got := distance(c.b, c.a); got != c.want {
			t.Errorf("distance(%q, %q) = %d, want %d", c.b, c.a, got, c.want)
		}
	}
}
