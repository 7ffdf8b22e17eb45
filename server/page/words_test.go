package page

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func part(t *testing.T, name string) string {
	t.Helper()
	text, err := web.ReadFile("web/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Both languages have the same words, with the same values in them, and the page uses all.
func TestWords(t *testing.T) {
	t.Parallel()
	var words map[string]map[string]string
	if err := json.Unmarshal([]byte(part(t, "words.json")), &words); err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(words)); !slices.Equal(got, languages) {
		t.Fatalf("words of %v, want of %v", got, languages)
	}
	used := usedWords(part(t, "page.html"), part(t, "page.js"))
	value := regexp.MustCompile(`\{\w+\}`)
	en := words[languages[0]]
	for word := range used {
		if en[word] == "" {
			t.Errorf("the page uses %q, which is no word", word)
		}
	}
	for word, text := range en {
		if !used[word] {
			t.Errorf("the page does not use %q", word)
		}
		for _, lang := range languages[1:] {
			other := words[lang][word]
			want, got := value.FindAllString(text, -1), value.FindAllString(other, -1)
			slices.Sort(want)
			slices.Sort(got)
			switch {
			case other == "":
				t.Errorf("%q is missing in %s", word, lang)
			case !slices.Equal(want, got):
				t.Errorf("%q in %s has the values %v, want %v", word, lang, got, want)
			case other == text && regexp.MustCompile(`[a-z]{3}`).MatchString(value.ReplaceAllString(text, "")):
				t.Errorf("%q in %s is not translated: %q", word, lang, text)
			}
		}
	}
	for _, lang := range languages[1:] {
		for word := range words[lang] {
			if en[word] == "" {
				t.Errorf("%q is in %s only", word, lang)
			}
		}
	}
}

// usedWords finds the words in the page and in its script. The beginning of a word that
// the script puts together counts for all words with that beginning.
func usedWords(page, script string) map[string]bool {
	used := map[string]bool{}
	add := func(text, pattern string) {
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			used[m[1]] = true
		}
	}
	add(page, `data-t(?:-label|-hint)?="([^"]+)"`)
	add(script, `\bt\("([\w.]+)"[,)]`)
	add(script, `"(theme(?:Auto|Light|Dark))"`)
	for of, names := range map[string][]string{
		"":     {"locks", "limits", "once", "events", "key", "heldBy", "heldFor", "timeLeft", "waiting", "token", "used", "rate", "fresh", "state", "attempts", "lastBy", "took", "last", "keptFor", "gone", "connecting"},
		"hot.": {"locks", "limits"}, "mode.": {"exclusive", "shared"}, "kind.": {"window", "estimate", "bucket", "several", "unknown"}, "state.": {"begun", "done", "failed", "final"},
		"empty.": {"locks", "limits", "once"}, "order.": slices.Concat([]string{"key"}, orders[kindLocks], orders[kindLimits], orders[kindOnce]),
		"keys.":  {"search", "rows", "open", "pages", "tabs", "order", "ask", "break", "language", "theme", "close", "help"},
		"error.": {"denied", "changed", "free", "stands", "reason", "store", "busy", "bad", "token", "host", "origin", "gone"},
		"event.": {"waiting", "acquired", "failed", "lost", "released", "unrenewed", "degraded", "restored", "began", "finished", "superseded", "broken", "asked"},
		"ask":    {"Title", "About", "Do", "Done"}, "break": {"Title", "About", "Do", "Done"},
	} {
		for _, name := range names {
			used[of+name] = true
		}
	}
	return used
}

// The codes, events and orders of the Go code are those that the test above expects.
func TestWordsOfTheServer(t *testing.T) {
	t.Parallel()
	used := usedWords("", "")
	for _, name := range []string{"recent.go", "act.go", "page.go", "watch.go"} {
		text := goFile(t, name)
		for prefix, pattern := range map[string]string{
			"error.": `refuse\(w, http\.\w+, "(\w+)"`,
			"event.": `(?:lock|operation|fallback)\("(\w+)"|What: "(\w+)"`,
		} {
			for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
				if word := prefix + strings.Join(m[1:], ""); !used[word] {
					t.Errorf("%s says %q, for which there is no word", name, word)
				}
			}
		}
	}
}

// Nothing is loaded from elsewhere, nothing is markup that is made of data, and the whole
// is small.
func TestDocument(t *testing.T) {
	t.Parallel()
	inLanguage, _ := documents()
	for lang, text := range inLanguage {
		if len(text) > 150<<10 {
			t.Errorf("%s: the page has %d bytes", lang, len(text))
		}
		page := string(text)
		if !strings.Contains(page, `<html lang="`+lang+`">`) {
			t.Errorf("%s: the page does not say its language", lang)
		}
		for _, mark := range []string{"/*style*/", "/*script*/", "/*words*/"} {
			if strings.Contains(page, mark) {
				t.Errorf("%s: %s was not replaced", lang, mark)
			}
		}
		own := strings.ReplaceAll(page, "http://www.w3.org/2000/svg", "")
		for _, never := range []string{"http:", "https:", "//cdn", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "@import", "url(", " style=", " onclick=", " onload=", " onerror="} {
			if strings.Contains(own, never) {
				t.Errorf("%s: the page has %q", lang, never)
			}
		}
	}
}

func TestPreferredLanguage(t *testing.T) {
	t.Parallel()
	for accept, want := range map[string]string{
		"": "en", "*": "en", "de": "en", "en-GB,en;q=0.9": "en", "zh": "zh-Hans", "zh-CN,zh;q=0.9,en;q=0.8": "zh-Hans",
		"en;q=0.5, zh-TW;q=0.7": "zh-Hans", "zh;q=0": "en", "zh;q=x, en;q=0.1": "en", "fr, zh;q=0.3, en;q=0.2": "zh-Hans", "ZH-cn": "zh-Hans",
	} {
		if got := preferred(accept); got != want {
			t.Errorf("Accept-Language %q: %s, want %s", accept, got, want)
		}
	}
}
