package archtest

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/batonhq/baton/internal/catalogue"
)

// The texts of programs in two languages: of the command, of the findings of baton doctor,
// and of the page of the server.
const (
	commandWords = "cmd/baton/words/zh.txt"
	findingWords = "cmd/baton/words/doctor_zh.txt"
	pageWords    = "server/page/web/words.json"
)

// TestCataloguesUseTheGlossary demands of each text of a program that names a thing of the glossary that its
// translation has the glossary's word.
func TestCataloguesUseTheGlossary(t *testing.T) {
	t.Parallel()
	texts, problems, err := checkCatalogues(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	if texts < 600 {
		t.Errorf("only %d texts were found", texts)
	}
	for _, problem := range problems {
		t.Error(problem)
	}
}

func TestCataloguesCatch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, english, chinese, want string }{
		{"sound", "Its holders wait", "它的持有者在等待", ""},
		{"another word", "Its holders wait", "它的拥有者在等待", `"holder" is 持有者 in the glossary`},
		{"one of two", "The holder of the lease", "持有者的租借", `"lease" is 租约 in the glossary`},
		{"break", "Break …", "强制释放 …", `"revoke" is 收回 in the glossary`},
		{"a name", "--store URL", "--store 地址", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for name, text := range map[string]string{
				commandWords: "# a remark\n\n" + c.english + "\n=\n" + c.chinese + "\n",
				findingWords: c.english + "\n=\n" + c.chinese + "\n",
				pageWords:    fmt.Sprintf(`{"en": {"x": %q}, "zh-Hans": {"x": %q}}`, c.english, c.chinese),
			} {
				files := fstest.MapFS{commandWords: {}, findingWords: {}, pageWords: {Data: []byte(`{"en": {}}`)}}
				files[name] = &fstest.MapFile{Data: []byte(text)}
				glossary, err := os.ReadFile("../../docs/zh/glossary.md")
				if err != nil {
					t.Fatal(err)
				}
				files["docs/zh/glossary.md"] = &fstest.MapFile{Data: glossary}
				texts, problems, err := checkCatalogues(files)
				if all := strings.Join(problems, "\n"); err != nil || texts != 1 || (c.want == "") != (all == "") || !strings.Contains(all, c.want) {
					t.Errorf("%s: of %d texts it says %q, want %q: %v", name, texts, all, c.want, err)
				}
			}
		})
	}
}

// meant are the words of the glossary that say in English texts what the glossary says, and nothing else, and how
// they are found. Others, such as "look", are ordinary words, too.
var meant = map[string]*regexp.Regexp{
	"lease":        regexp.MustCompile(`\bleases?\b`),
	"holder":       regexp.MustCompile(`\bholders?\b`),
	"token":        regexp.MustCompile(`\bfencing tokens?\b`),
	"permit":       regexp.MustCompile(`\bpermits?\b`),
	"session":      regexp.MustCompile(`\bsessions?\b`),
	"caller":       regexp.MustCompile(`\bcallers?\b`),
	"access token": regexp.MustCompile(`\baccess tokens?\b`),
	"role":         regexp.MustCompile(`\broles?\b`),
	"read lock":    regexp.MustCompile(`\bread locks?\b`),
	"waiter":       regexp.MustCompile(`\bwaiters?\b`),
	"queue":        regexp.MustCompile(`\bqueues?\b`),
	"position":     regexp.MustCompile(`\bpositions?\b`),
	"grant":        regexp.MustCompile(`\bgrants?\b`),
	"renew":        regexp.MustCompile(`\b(?:un)?renew(?:s|ed|al)?\b`),
	"release":      regexp.MustCompile(`\breleas(?:e|es|ed|ing)\b`),
	"expire":       regexp.MustCompile(`\bexpires?d?\b`),
	"revoke":       regexp.MustCompile(`\b(?:may not break|breaking a lock|break (?:of|the (?:open )?lock)|lock was broken)\b|^break(?: …)?$`),
	"limit":        regexp.MustCompile(`\blimits?\b`),
	"decision":     regexp.MustCompile(`\bdecisions?\b`),
	"refusal":      regexp.MustCompile(`\brefused\b`),
	"override":     regexp.MustCompile(`\b(?:overrid(?:e|es|den))\b`),
	"store":        regexp.MustCompile(`\bstores?\b`),
	"fault":        regexp.MustCompile(`\bfaults?\b`),
	"record":       regexp.MustCompile(`\brecord(?:s|ed)?\b`),
	"attempt":      regexp.MustCompile(`\battempts?\b`),
}

// asNames are the parts of a text that are names: they stay as they are.
var asNames = regexp.MustCompile("`[^`]*`|\"[^\"]*\"|" + `--?[a-z][\w-]*|\$?\b[A-Z_]{2,}\b|[\w/.-]+[/.=_:][\w/.*-]+|baton \w+(?: \w+)?|\{\w+\}|rate limits?`)

// checkCatalogues compares the words of the catalogues with those of the glossary.
func checkCatalogues(repo fs.FS) (texts int, problems []string, err error) {
	chinese, err := glossaryWords(repo)
	if err != nil {
		return 0, nil, err
	}
	catalogues, err := readCatalogues(repo)
	if err != nil {
		return 0, nil, err
	}
	for name, words := range catalogues {
		for _, text := range words {
			texts++
			english, other := text[0], text[1]
			plain := strings.ToLower(asNames.ReplaceAllString(strings.Join(strings.Fields(english), " "), " "))
			whole := strings.ReplaceAll(other, "\n", "")
			for term, pattern := range meant {
				if len(chinese[term]) == 0 {
					problems = append(problems, fmt.Sprintf("docs/zh/glossary.md has no word for %q", term))
				}
				inside := pattern.MatchString(other) // a name, such as that of a field
				if pattern.MatchString(plain) && !inside && !slices.ContainsFunc(chinese[term], func(word string) bool { return strings.Contains(whole, word) }) {
					problems = append(problems, fmt.Sprintf("%s: %q is %s in the glossary, but not in the translation of %q:\n%s",
						name, term, strings.Join(chinese[term], " or "), english, other))
				}
			}
		}
	}
	slices.Sort(problems)
	return texts, slices.Compact(problems), nil
}

// glossaryWords reads the Chinese words of the glossary, by the English ones.
func glossaryWords(repo fs.FS) (map[string][]string, error) {
	raw, err := fs.ReadFile(repo, "docs/zh/glossary.md")
	if err != nil {
		return nil, err
	}
	words := map[string][]string{}
	for _, row := range regexp.MustCompile(`(?m)^\| ([\w ,-]+)（([^）]+)）`).FindAllStringSubmatch(string(raw), -1) {
		english, chinese := strings.Split(row[1], ", "), strings.Split(row[2], "、")
		for i, term := range english {
			words[term] = append(words[term], chinese[min(i, len(chinese)-1)])
		}
	}
	return words, nil
}

// readCatalogues reads the texts of programs: English, and Chinese.
func readCatalogues(repo fs.FS) (map[string][][2]string, error) {
	all := map[string][][2]string{}
	for _, name := range []string{commandWords, findingWords} {
		text, err := fs.ReadFile(repo, name)
		if err != nil {
			return nil, err
		}
		for english, other := range catalogue.All(string(text)) {
			all[name] = append(all[name], [2]string{english, other})
		}
	}
	raw, err := fs.ReadFile(repo, pageWords)
	if err != nil {
		return nil, err
	}
	var page map[string]map[string]string
	if err := json.Unmarshal(raw, &page); err != nil {
		return nil, fmt.Errorf("%s: %w", pageWords, err)
	}
	for word, english := range page["en"] {
		all[pageWords] = append(all[pageWords], [2]string{english, page["zh-Hans"][word]})
	}
	return all, nil
}
