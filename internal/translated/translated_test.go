package translated

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the twins")

func TestTwinsAreFresh(t *testing.T) {
	t.Parallel()
	repository := os.DirFS("../..")
	for _, page := range Pages {
		want, problems, err := Twin(repository, page)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s", page, p)
		}
		if *update {
			if err := Write("../..", page); err != nil {
				t.Fatal(err)
			}
		}
		if have, err := os.ReadFile("../../" + nameOf(page)); err != nil || string(have) != want {
			t.Errorf("%s is stale (%v): go generate ./internal/translated", nameOf(page), err)
		}
	}
}

func TestTranslation(t *testing.T) {
	t.Parallel()
	const catalogue = "It takes 15 s and `f02`, see [b](b.md), 3 times.\n=\n3 次，需要 15 s 和 `f02`，见 [b](b.md)。\n\nTop\n=\n顶\n\nwait 5\n=\n等 5\n\nas it is\nRedis\n\nrun # x\n=\nrun # 运行\n\nunused\n=\n没用\n"
	const page = "# Top\n\nIt takes 1.5 s and `f07`,\nsee [b](b.md), 4 times.\n\n```sh\nrun # x\nTop x\n```\n\n- Top\n  wait\n- wait 9\n\n| Top | `a` | 7 | Redis |\n|---|---|---|---|\n| wait 8 | New | | a\\|b |\n| 4, Redis, wait 7 | Redis, New | f07 stop | old-times, x-y |\n"
	const want = "# 顶\n\n4 次，需要 1.5 s 和 `f07`，见 [b](x/b.md)。\n\n```sh\nrun # 运行\nTop x\n```\n\n- Top wait\n- 等 9\n\n| 顶 | `a` | 7 | Redis |\n|---|---|---|---|\n| 等 8 | New | | a\\|b |\n| 4，Redis，等 7 | Redis, New | f07 stop | old-times, x-y |\n"
	tr := &translation{words: make(map[string]entry), used: make(map[string]bool), link: func(target string) string { return "x/" + target }}
	tr.read(catalogue)
	if got := tr.page(page); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got, want := strings.Join(tr.problems, "; "), `no translation of: Top wait; no translation of: New; no translation of: a\|b; no translation of: Redis, New`; got != want {
		t.Errorf("it finds %q, want %q", got, want)
	}
	if tr.used["unused"] || !tr.used["Top"] {
		t.Errorf("it used %v", tr.used)
	}
}

// An entry that would put a wrong figure on the page is noticed.
func TestFigures(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ catalogue, want string }{
		{"a 1 b 2\n=\n甲 2 乙 1\n\na 3 b 4\n=\n甲 4 乙 3", ""},
		{"a 1\n=\n甲 2", "the figure 2 is not in: a 1"},
		{"a 1 2\n=\n甲 2", "a figure is missing in the translation of: a 1 2"},
		{"a 1\n=\n甲 1\n\na 2\n=\n乙 2", "two translations, by the figures, of: a 2"},
	} {
		tr := &translation{words: make(map[string]entry), used: make(map[string]bool)}
		tr.read(c.catalogue)
		if got := strings.Join(tr.problems, "; "); got != c.want {
			t.Errorf("%q: it finds %q, want %q", c.catalogue, got, c.want)
		}
	}
}
