package pagetest

import (
	"context"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/batonhq/baton/internal/pagecode"
	"github.com/batonhq/baton/internal/testserver"
)

// repository is the target of links that leave docs/.
const repository = "https://github.com/batonhq/baton"

// sizes are a phone and a small screen.
var sizes = []options{{width: 390, height: 844}, {width: 1280, height: 900}}

// pictured are the pages that TestSite draws, in their languages and both sizes.
var pictured = []string{"", "measured", "tutorials/flash-sale", "lab"}

var alreadyBuilt = flag.Bool("built", false, "look at the site that make site made before")

// A built site has its pages by their paths.
type built struct {
	dir   string
	url   string
	pages map[string]*seen

	folders map[string]string // files that redirect from a page's name with a slash
}

// seen is what a browser found on a page.
type seen struct {
	Ids     []string
	Links   []string // absolute
	Code    []string // the blocks
	Title   string
	About   string // the description
	Twin    string // the target of the language switch; "" if there is none
	Lang    string
	Foreign []string // labels that are not in the language
}

// TestSite builds the site like make site, and checks every page.
// BATON_SHOTS=/tmp/shots go test -run Site draws some of them, for people.
func TestSite(t *testing.T) {
	testserver.Chromium(t)
	s := buildSite(t)
	browser := launch(t)
	s.visit(t, browser)
	t.Run("links", s.links)
	t.Run("code", s.code)
	t.Run("heads", s.heads)
	t.Run("folders", func(t *testing.T) { s.slashes(t, browser) })
	t.Run("missing", func(t *testing.T) { s.notThere(t, browser) })
	t.Run("languages", func(t *testing.T) { s.languages(t, browser) })
	t.Run("search", func(t *testing.T) { s.search(t, browser) })
	t.Run("pictures", func(t *testing.T) { s.pictures(t, browser) })
}

// buildSite runs make site, and serves the result.
func buildSite(t *testing.T) *built {
	t.Helper()
	testserver.Npm(t)
	made := exec.CommandContext(t.Context(), "make", "-C", "../..", "site")
	// A make around this test has flags that are not for this make.
	made.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "MAKE") || strings.HasPrefix(v, "MFLAGS") }), "CI=1")
	began := time.Now()
	if !*alreadyBuilt {
		if out, err := made.CombinedOutput(); err != nil {
			t.Fatalf("make site: %v\n%s", err, out)
		}
	}
	s := &built{dir: "../../dist/site", pages: map[string]*seen{}, folders: map[string]string{}}
	root := os.DirFS(s.dir)
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(name, ".html") || name == "404.html" {
			return err
		}
		if page, folder := strings.CutSuffix(name, "/index.html"); folder {
			if _, err := fs.Stat(root, page+".html"); err == nil {
				s.folders["/"+page+"/"] = name
				return nil
			}
		}
		s.pages["/"+strings.TrimSuffix(strings.TrimSuffix(name, ".html"), "index")] = nil
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d pages, built in %v", len(s.pages), time.Since(began).Round(time.Second))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(path.Clean(r.URL.Path), "/")
		if _, page := s.pages[r.URL.Path]; page { // the addresses have no .html
			name = s.file(r.URL.Path)
		} else if file, ok := s.folders[r.URL.Path]; ok {
			name = file
		} else if _, err := fs.Stat(root, name); err != nil && path.Base(name) == missing {
			name = "404.html" // without its status, which the browser would report as an error
		}
		if strings.HasPrefix(name, "assets/") {
			w.Header().Set("Cache-Control", "public, max-age=3600") // their names change with their content
		}
		http.ServeFileFS(w, r, root, name)
	}))
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

// file is the file of a page.
func (s *built) file(page string) string {
	if strings.HasSuffix(page, "/") {
		page += "index"
	}
	return strings.TrimPrefix(page, "/") + ".html"
}

// open opens a tab in which each request that leaves the site or fails, and each error, fails the test.
// what has the page that the tab shows.
func (s *built) open(t *testing.T, browser context.Context, what *atomic.Value) *tab {
	t.Helper()
	tb := openTab(t, browser, sizes[0])
	tb.set(call(tb.ctx, network.Enable, network.EnableParams{}))
	if err := chromedp.Listen(tb.ctx, func(e any) {
		switch e := e.(type) {
		case *network.EventRequestWillBeSent:
			if to := e.Request.URL; !strings.HasPrefix(to, s.url+"/") && !strings.HasPrefix(to, "data:") {
				t.Errorf("%s: it asks for %s", what.Load(), to)
			}
		case *network.EventResponseReceived:
			if e.Response.Status >= 400 {
				t.Errorf("%s: %s is answered with %d", what.Load(), e.Response.URL, e.Response.Status)
			}
		case *runtime.EventConsoleAPICalled:
			if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
				t.Errorf("%s: on the console: %s, with %d arguments", what.Load(), e.Type, len(e.Args))
			}
		case *log.EventEntryAdded:
			t.Errorf("%s: on the console: %s", what.Load(), e.Entry.Text)
		}
	}); err != nil {
		t.Fatal(err)
	}
	return tb
}

// visit checks each page, in two tabs at once.
func (s *built) visit(t *testing.T, browser context.Context) {
	began := time.Now()
	paths := make(chan string, len(s.pages))
	for _, page := range slices.Sorted(maps.Keys(s.pages)) {
		paths <- page
	}
	close(paths)
	var mu sync.Mutex
	var both sync.WaitGroup
	for range 2 {
		at := new(atomic.Value)
		tb := s.open(t, browser, at)
		both.Go(func() {
			for page := range paths {
				at.Store(page)
				p := s.look(tb, page)
				mu.Lock()
				s.pages[page] = p
				mu.Unlock()
			}
		})
	}
	both.Wait()
	t.Logf("%d pages, visited in %v", len(s.pages), time.Since(began).Round(time.Second))
	for page, p := range s.pages {
		if p == nil {
			t.Fatalf("%s was not seen", page)
		}
	}
}

// mounted is true in the browser if the page works.
const mounted = `document.querySelector("#app")?.__vue_app__ && document.readyState === "complete"`

func (s *built) look(tb *tab, page string) *seen {
	tb.look(sizes[0])
	tb.set(chromedp.Do(tb.ctx, chromedp.Navigate(s.url+page)))
	tb.until(mounted)
	tb.do(still)
	for _, size := range sizes {
		tb.look(size)
		tb.until(fmt.Sprintf(`innerWidth === %d || %s.length > 0`, size.width, tooWide))
		for _, bad := range eval[[]string](tb, tooWide) {
			tb.t.Errorf("%s, %d wide: wider than the screen: %s", page, size.width, bad)
		}
	}
	for _, dark := range []bool{false, true} {
		tb.look(options{width: 1280, height: 900, dark: dark})
		tb.until(fmt.Sprintf(`document.documentElement.classList.contains("dark") === %v`, dark))
		for _, bad := range eval[[]string](tb, contrast) {
			tb.t.Errorf("%s, dark %v: hard to read: %s", page, dark, bad)
		}
	}
	p := eval[seen](tb, whatIsThere)
	return &p
}

// still ends all transitions at once.
const still = `document.head.append(Object.assign(document.createElement("style"), { textContent: "* { transition: none !important; animation: none !important }" }))`

// tooWide lists elements that are wider than the screen and cannot be scrolled separately.
const tooWide = `(() => {
	const wide = document.documentElement.clientWidth, found = [];
	if (document.documentElement.scrollWidth > wide) found.push("the page, by " + (document.documentElement.scrollWidth - wide) + " px");
	for (const e of document.querySelectorAll("#VPContent *")) {
		if (!e.checkVisibility() || e.getBoundingClientRect().right <= wide + 1) continue;
		let within = e.parentElement;
		while (within && getComputedStyle(within).overflowX === "visible") within = within.parentElement;
		if (!within || within === document.documentElement || within === document.body) found.push(e.tagName + "." + e.className + " " + e.textContent.trim().slice(0, 40));
	}
	return found.slice(0, 5);
})()`

const whatIsThere = `({
	Ids: [...document.querySelectorAll("[id]")].map((e) => e.id),
	Links: [...document.querySelectorAll("a[href]")].filter((a) => !a.closest(".VPNavBarTranslations, .VPNavBarExtra, .VPNavScreen")).map((a) => a.href),
	Code: [...document.querySelectorAll(".vp-doc div[class*=language-] pre code")].map((c) => c.textContent),
	Title: document.title,
	About: document.querySelector("meta[name=description]").content,
	Twin: [...document.querySelectorAll(".VPNavBarTranslations")].filter((e) => e.checkVisibility()).map((e) => e.querySelector("a").href)[0] ?? "",
	Lang: document.documentElement.lang,
	Foreign: document.documentElement.lang === "en" ? [] : [...document.querySelectorAll("[aria-label], [title], .visually-hidden")]
		.filter((e) => !e.closest(".vp-doc, .VPDocOutlineItem"))
		.flatMap((e) => [e.ariaLabel, e.title, e.matches(".visually-hidden") ? e.textContent.trim() : ""])
		.filter((label) => /[a-z]/i.test(label ?? "") && !/\p{Script=Han}/u.test(label) && label !== "github"),
})`

// links follows each link of each page to its target, and to its anchor.
func (s *built) links(t *testing.T) {
	said := map[string]bool{}
	count := 0
	for page, p := range s.pages {
		for _, link := range p.Links {
			count++
			problem := s.follow(link)
			if problem != "" && !said[page+link] {
				said[page+link] = true
				t.Errorf("%s: the link %s %s", page, link, problem)
			}
		}
	}
	if count < 10*len(s.pages) {
		t.Errorf("%d pages have only %d links", len(s.pages), count)
	}
	for _, dead := range []string{s.url + "/nowhere", s.url + "/#nowhere", repository + "/blob/main/nowhere.md", repository + "/blob/main/docs", repository + "/tree/main/README.md", "http://127.0.0.1:1/"} {
		if s.follow(dead) == "" {
			t.Errorf("the link %s is not noticed", dead)
		}
	}
}

// follow returns the error of a link, or "".
func (s *built) follow(link string) string {
	u, err := url.Parse(link)
	if err != nil {
		return err.Error()
	}
	if rest, ours := strings.CutPrefix(link, repository); ours && rest != "" {
		rest, _, _ = strings.Cut(rest, "#")
		kind, name, _ := strings.Cut(strings.TrimPrefix(rest, "/"), "/main/")
		at, err := os.Stat(filepath.Join("../..", filepath.FromSlash(name)))
		switch {
		case err != nil || kind != "blob" && kind != "tree":
			return "leads to nothing in the repository"
		case at.IsDir() != (kind == "tree"):
			return "takes a file for a folder, or a folder for a file"
		}
		return ""
	}
	if !strings.HasPrefix(link, s.url+"/") {
		if u.Scheme != "https" {
			return "is not https"
		}
		return ""
	}
	to, ok := s.pages[u.Path]
	if !ok {
		if at, err := os.Stat(filepath.Join(s.dir, filepath.FromSlash(u.Path))); err == nil && !at.IsDir() {
			return ""
		}
		return "leads to no page"
	}
	if u.Fragment != "" && !slices.Contains(to.Ids, u.Fragment) {
		return "leads to no heading"
	}
	return ""
}

// code compares the blocks of code with those of the page in Markdown.
func (s *built) code(t *testing.T) {
	count := 0
	for page, p := range s.pages {
		source, err := os.ReadFile(filepath.Join("../../.site/docs", strings.TrimSuffix(s.file(page), ".html")+".md"))
		if err != nil {
			t.Error(err)
			continue
		}
		var want []string
		for _, block := range pagecode.All(string(source)) {
			want = append(want, block.Text)
		}
		count += len(want)
		if len(p.Code) != len(want) {
			t.Errorf("%s: it has %d blocks of code, in Markdown %d", page, len(p.Code), len(want))
			continue
		}
		for i := range want {
			if strings.TrimRight(p.Code[i], "\n") != strings.TrimRight(want[i], "\n") {
				t.Errorf("%s: a block of code is\n%s\nin Markdown it is\n%s", page, p.Code[i], want[i])
			}
		}
	}
	if count < 50 {
		t.Errorf("there are only %d blocks of code", count)
	}
}

// missing is the name of a page that does not exist.
const missing = "nowhere"

// heads checks the pages' titles and descriptions, which search engines list.
func (s *built) heads(t *testing.T) {
	about := map[string]string{}
	for page, p := range s.pages {
		if other := about[p.About]; other != "" || len(p.About) < 20 {
			t.Errorf("%s: its description is %q, as that of %q", page, p.About, other)
		}
		about[p.About] = page
		if strings.ContainsAny(p.About, "\"<>") { // VitePress writes it as it is
			t.Errorf("%s: its description ends its attribute: %s", page, p.About)
		}
		if home := page == "/" || page == "/zh/"; !home && !strings.HasSuffix(p.Title, " | Baton") || home && strings.Count(p.Title, "Baton") != 1 {
			t.Errorf("%s: its title is %q", page, p.Title)
		}
	}
}

// notThere checks the page for missing pages, in each language.
func (s *built) notThere(t *testing.T, browser context.Context) {
	for _, c := range []struct{ page, says, home string }{{"/" + missing, "There is no such page", "/"}, {"/zh/" + missing, "没有这个页面", "/zh/"}} {
		var at atomic.Value
		at.Store(c.page)
		tb := s.open(t, browser, &at)
		tb.set(chromedp.Do(tb.ctx, chromedp.Navigate(s.url+c.page)))
		tb.until(mounted)
		tb.until(`document.querySelector(".NotFound")?.innerText.includes(` + quote(c.says) + `)`)
		if got := eval[string](tb, `document.querySelector(".NotFound a").pathname`); got != c.home {
			t.Errorf("%s: it leads to %s, want %s", c.page, got, c.home)
		}
		tb.shoot("missing" + strings.ReplaceAll(c.home, "/", "-"))
	}
}

// languages compares the targets of the language switch with the existing pages, and uses it once.
func (s *built) languages(t *testing.T, browser context.Context) {
	for page, p := range s.pages {
		twin, lang := "/zh"+page, "en"
		if rest, chinese := strings.CutPrefix(page, "/zh/"); chinese {
			twin, lang = "/"+rest, "zh-Hans"
		}
		if _, ok := s.pages[twin]; ok {
			twin = s.url + twin
		} else {
			twin = ""
		}
		if len(p.Foreign) > 0 {
			t.Errorf("%s: these labels are not Chinese: %q", page, p.Foreign)
		}
		if p.Twin != twin || p.Lang != lang {
			t.Errorf("%s: its language is %q, and the other leads to %q, want %q and %q", page, p.Lang, p.Twin, lang, twin)
		}
	}
	const from = "/fencing"
	var at atomic.Value
	at.Store(from)
	tb := s.open(t, browser, &at)
	for _, size := range sizes {
		tb.look(size)
		tb.set(chromedp.Do(tb.ctx, chromedp.Navigate(s.url+from)))
		tb.until(mounted)
		if size.width < 500 {
			tb.do(`document.querySelector(".VPNavBarHamburger").click()`)
			tb.until(`document.querySelector(".VPNavScreenTranslations button")?.checkVisibility()`)
			tb.do(`document.querySelector(".VPNavScreenTranslations button").click()`)
			tb.until(`document.querySelector(".VPNavScreenTranslations a")?.checkVisibility()`)
			tb.do(`document.querySelector(".VPNavScreenTranslations a").click()`)
		} else {
			tb.do(`document.querySelector(".VPNavBarTranslations a").click()`)
		}
		tb.until(`location.pathname === "/zh/fencing" && document.documentElement.lang === "zh-Hans"`)
	}
	tb.do(`document.querySelector(".VPSidebar").ariaLabel = "Pages"`)
	if got := eval[seen](tb, whatIsThere).Foreign; !slices.Contains(got, "Pages") {
		t.Errorf("an English label is not noticed among %q", got)
	}
}

// search types words, and finds the pages that have them. A case may name the first result.
func (s *built) search(t *testing.T, browser context.Context) {
	tabs := map[string]*tab{}
	for _, c := range []struct{ page, word, first string }{
		{"/", "fencing", ""},
		{"/", "renews", ""},
		{"/", "lock lost", ""},
		{"/", "Redis Cluster", ""},
		{"/", "exit code 75", ""},
		{"/", "token bucket", ""},
		{"/", "cron mail", ""},
		{"/zh/", "看门狗", ""},
		{"/zh/", "续期失败", ""}, // between other words
		{"/zh/", "漏桶", ""},
		{"/zh/", "Redlock", ""},
		{"/zh/", "令牌", ""},
		{"/zh/", "超卖", ""},
		{"/zh/", "限流", ""},
		{"/zh/", "退出码 75", ""},
	} {
		tb := tabs[c.page]
		if tb == nil {
			var at atomic.Value
			at.Store(c.page)
			tb = s.open(t, browser, &at)
			tabs[c.page] = tb
			tb.look(sizes[1])
			tb.set(chromedp.Do(tb.ctx, chromedp.Navigate(s.url+c.page)))
			tb.until(mounted)
			tb.do(`document.querySelector(".VPNavBarSearchButton, .DocSearch-Button, #local-search button").click()`)
			tb.until(`document.querySelector(".VPLocalSearchBox input") === document.activeElement`)
		}
		// The list is empty between two words.
		for _, word := range []string{"", c.word} {
			tb.do(fmt.Sprintf(`(() => { const i = document.querySelector(".VPLocalSearchBox input"); i.value = %s; i.dispatchEvent(new Event("input", {bubbles: true})) })()`, quote(word)))
			tb.until(fmt.Sprintf(`(document.querySelector(".VPLocalSearchBox .result, .VPLocalSearchBox .no-results") !== null) === %v`, word != ""))
		}
		found := eval[[]string](tb, `[...document.querySelectorAll(".VPLocalSearchBox a.result")].map((a) => a.getAttribute("href"))`)
		tb.shoot("search-" + c.word)
		t.Logf("%s: %q", c.word, found[:min(4, len(found))])
		right := 0
		for _, link := range found {
			to, _, _ := strings.Cut(link, "#")
			text, err := os.ReadFile(filepath.Join(s.dir, s.file(to)))
			if err != nil {
				t.Error(err)
			}
			if strings.Contains(strings.ToLower(string(text)), strings.ToLower(strings.Fields(c.word)[0])) {
				right++
			}
		}
		if right == 0 || !containsAny(c.page, found) {
			t.Errorf("%s: the search for %q finds %q, of which %d have the word", c.page, c.word, found, right)
		}
		if c.first != "" && (len(found) == 0 || !strings.HasPrefix(found[0], c.first)) {
			t.Errorf("%s: the search for %q finds %q, want %s first", c.page, c.word, found, c.first)
		}
	}
}

// containsAny reports whether one of the links leads to a page in the language of page.
func containsAny(page string, links []string) bool {
	return slices.ContainsFunc(links, func(l string) bool { return strings.HasPrefix(l, page) })
}

// pictures draws pages for people to look at.
func (s *built) pictures(t *testing.T, browser context.Context) {
	dir := os.Getenv("BATON_SHOTS")
	if dir == "" {
		return
	}
	var at atomic.Value
	at.Store("pictures")
	tb := s.open(t, browser, &at)
	for _, name := range pictured {
		for _, lang := range []string{"", "zh/"} {
			if _, ok := s.pages["/"+lang+name]; !ok {
				if lang == "" {
					t.Errorf("there is no page %s", name)
				}
				continue
			}
			for _, size := range sizes {
				for _, dark := range []bool{false, true} {
					size.dark = dark
					tb.look(size)
					tb.set(chromedp.Do(tb.ctx, chromedp.Navigate(s.url+"/"+lang+name)))
					tb.until(mounted)
					file := strings.ReplaceAll(fmt.Sprintf("site-%s%s-%d", lang, name, size.width), "/", "-")
					if dark {
						file += "-dark"
					}
					tb.shoot(file)
				}
			}
		}
	}
}
