package pagetest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// visit looks at each page, in two tabs at once.
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

// tooWide lists what is wider than the screen, and cannot be scrolled by itself.
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
	Drawn: [...document.querySelectorAll(".vp-doc .diagram svg")].filter((e) => e.checkVisibility()).map((e) => e.querySelector("g").textContent),
	Plots: [...document.querySelectorAll(".vp-doc img.plot")].filter((e) => e.checkVisibility() && getComputedStyle(e).aspectRatio !== "auto").length,
	Title: document.title,
	About: document.querySelector("meta[name=description]").content,
	Twin: [...document.querySelectorAll(".VPNavBarTranslations")].filter((e) => e.checkVisibility()).map((e) => e.querySelector("a").href)[0] ?? "",
	Lang: document.documentElement.lang,
	Foreign: document.documentElement.lang === "en" ? [] : [...document.querySelectorAll("[aria-label], [title], .visually-hidden")]
		.filter((e) => !e.closest(".vp-doc, .VPDocOutlineItem"))
		.flatMap((e) => [e.ariaLabel, e.title, e.matches(".visually-hidden") ? e.textContent.trim() : ""])
		.filter((label) => /[a-z]/i.test(label ?? "") && !/\p{Script=Han}/u.test(label) && label !== "github"),
})`
