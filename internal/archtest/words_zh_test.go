package archtest

import (
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/batonhq/baton/internal/pagecode"
)

// TestChinesePagesUseTheGlossary looks in the Chinese pages for things of the glossary that have an English name there, or
// another Chinese one.
func TestChinesePagesUseTheGlossary(t *testing.T) {
	t.Parallel()
	pages, problems, err := checkChinesePages(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	if pages < 40 {
		t.Errorf("only %d pages were found", pages)
	}
	for _, problem := range problems {
		t.Error(problem)
	}
}

func TestChinesePagesCatch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, text, want string }{
		{"sound", "持有者的令牌。", ""},
		{"English", "较小的 token。", `a.md:1: "token" is 令牌`},
		{"in bold", "一个 **token**。", `"token" is 令牌`},
		{"of a pair of words", "续租失败。", `"续租" is 续期`},
		{"beside code", "`token` 和 [token](token.md#token)\n\n```go\ntoken\n```\n", `a.md:1: "token"`},
		{"in code alone", "`token` 和 [令牌](token.md#token)\n\n```go\ntoken\n```\n", ""},
		{"another thing", "语言模型的 token。", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pages, problems, err := checkChinesePages(fstest.MapFS{"docs/zh/a.md": {Data: []byte(c.text)}})
			if all := strings.Join(problems, "\n"); err != nil || pages != 1 || (c.want == "") != (all == "") || !strings.Contains(all, c.want) {
				t.Errorf("of %d pages it says %q, want %q: %v", pages, all, c.want, err)
			}
		})
	}
}

// otherWords are names that pages must not use, with the words of the glossary.
var otherWords = map[string]string{
	"token": "令牌", "tokens": "令牌", "lease": "租约", "leases": "租约", "holder": "持有者", "holders": "持有者", "waiter": "等待者", "waiters": "等待者",
	"permit": "许可", "permits": "许可", "renewal": "续期", "renewals": "续期", "guard": "守卫", "guards": "守卫",
	"协程": "goroutine", "换手": "移交", "续租": "续期", "续约": "续期", "租期": "租约", "租借": "租约", "占有者": "持有者", "持锁者": "持有者", "吊销": "收回",
}

var (
	anotherName = regexp.MustCompile(`协程|换手|续租|续约|租期|租借|占有者|持锁者|吊销|(?:^|[^\w.-])(tokens?|leases?|holders?|waiters?|permits?|renewals?|guards?)(?:$|[^\w=./-])`)
	// otherThings are lines about a token or a lease that is not Baton's, or about a room of that name.
	otherThings = regexp.MustCompile(`语言模型|fencing token|token server|redislock|token 加 metadata|所依据的时钟|^\| guard \|`)
	targets     = regexp.MustCompile(`\]\([^)]*\)|<[^>]*>|"[^"]*"`)
)

// checkChinesePages looks at the prose of all pages but the glossary itself, the page of language models, whose tokens are
// others, those that are made of what the command and the experiments say, and the first page.
func checkChinesePages(repo fs.FS) (pages int, problems []string, err error) {
	err = fs.WalkDir(repo, "docs/zh", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || d.IsDir() || !strings.HasSuffix(name, ".md"):
			return err
		case name == "docs/zh/glossary.md" || name == "docs/zh/budgets.md" || name == "docs/zh/lab.md" || name == "docs/zh/index.md" || strings.HasPrefix(name, "docs/zh/reference/"):
			return nil
		}
		pages++
		raw, err := fs.ReadFile(repo, name)
		if err != nil {
			return err
		}
		for n, line := range strings.Split(pagecode.Prose(string(raw)), "\n") {
			if otherThings.MatchString(line) {
				continue
			}
			line = targets.ReplaceAllString(inlineCode.ReplaceAllString(line, "``"), " ")
			for _, found := range anotherName.FindAllStringSubmatch(line, -1) {
				word := strings.Trim(found[0], " ")
				if found[1] != "" {
					word = found[1]
				}
				problems = append(problems, fmt.Sprintf("%s:%d: %q is %s in the glossary", name, n+1, word, otherWords[word]))
			}
		}
		return nil
	})
	return pages, problems, err
}
