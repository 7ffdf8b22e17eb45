package pagetest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/store/memstore"
)

// busy makes a site with many events.
func busy(t *testing.T) *site {
	t.Helper()
	store := memstore.New()
	s := serve(t, store, store, nil)
	owners := []string{"web-1:2041 (checkout)", "web-2:977 (checkout)", "worker-eu-3:18112", "cron@batch-1:551 (nightly report)", "mike@laptop"}
	for i := range 130 {
		lock(t, s.others, fmt.Sprintf("order/%04d", 1000+i*7), baton.Owner(owners[i%len(owners)]))
	}
	lock(t, s.others, "report/nightly", baton.Owner(owners[3]))
	lock(t, s.others, "import/customers", baton.Shared(), baton.Owner(owners[0]))
	lock(t, s.others, "gpu", baton.Permits(2, 4), baton.Owner(owners[2]))
	for i, n := range []int{7, 3, 1} {
		key := []string{"report/nightly", "order/1035", "order/1070"}[i]
		for j := range n {
			l, err := baton.New(store, baton.Config{Owner: owners[j%len(owners)]})
			if err != nil {
				t.Fatal(err)
			}
			go func() { _, _ = l.Lock(t.Context(), key) }()
		}
	}
	for i := range 12 {
		lease := lock(t, s.locks, fmt.Sprintf("invoice/%d", 40+i%3))
		if i < 9 {
			_ = lease.Unlock()
		}
		if i == 9 {
			if _, err := s.others.Break(t.Context(), lease.Key()); err != nil {
				t.Fatal(err)
			}
			<-lease.Done()
			lock(t, s.locks, lease.Key())
		}
	}
	counts, _ := driver.As[limits.Store](driver.Locks(store))
	limiter, err := ratelimit.New(counts, ratelimit.TokenBucket(100, time.Hour, 100), ratelimit.Observe(s.recent.Events().Limits))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 30 {
		for range 3*i + 20 {
			if _, err := limiter.Allow(t.Context(), fmt.Sprintf("tenant-%02d", i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range 6 {
		_, _ = s.once.Do(t.Context(), fmt.Sprintf("pay/%d", i), func(context.Context, once.Attempt) ([]byte, error) {
			if i == 3 {
				return nil, fmt.Errorf("the bank is closed")
			}
			return nil, nil
		})
	}
	return s
}

// TestPictures only draws, for people: BATON_SHOTS=/tmp/shots go test -run Pictures.
func TestPictures(t *testing.T) {
	s := busy(t)
	for _, o := range []struct {
		name string
		options
	}{{"light", options{}}, {"dark-zh", options{dark: true, lang: "zh-CN"}}, {"phone", options{width: 390, height: 844}}, {"phone-dark-zh", options{width: 390, height: 844, dark: true, lang: "zh-CN"}}} {
		tb := browse(t, s.url, o.options)
		tb.until(`document.querySelectorAll("#rows tr").length === 50`)
		tb.shoot(o.name + "-1-locks")
		tb.key("j")
		tb.until(waitedFor)
		tb.do(`(document.querySelector('[data-lock="report/nightly"]') || document.querySelector("#hotList button")).click()`)
		tb.until(`document.querySelectorAll("#waiters li").length > 2`)
		tb.shoot(o.name + "-2-detail")
		tb.key("b")
		tb.shoot(o.name + "-3-break")
		tb.do(`document.getElementById("actCancel").click()`)
		tb.key("2")
		tb.until(`document.querySelectorAll("#rows tr").length === 30`)
		tb.shoot(o.name + "-4-limits")
		tb.key("3")
		tb.until(`document.querySelectorAll("#rows tr").length === 6`)
		tb.shoot(o.name + "-5-once")
		tb.key("4")
		tb.until(`document.querySelectorAll("#eventList li").length > 3`)
		tb.shoot(o.name + "-6-events")
		tb.key("?")
		tb.shoot(o.name + "-7-help")
	}
}

// waitedFor is true in the browser if the locks with waiters are shown.
const waitedFor = `document.querySelector("#hotList button") !== null`

// opened is true in the browser if a lock is shown in detail, and has a holder.
const opened = `document.getElementById("detail").checkVisibility() && document.querySelectorAll("#holders li").length === 1 && !document.getElementById("break").disabled`

// The keyboard alone can use all of the page.
func TestKeyboard(t *testing.T) {
	s := busy(t)
	lease := lock(t, s.others, "aaa")
	tb := browse(t, s.url, options{})
	focused := func() string {
		return eval[string](tb, `document.activeElement.id || document.activeElement.dataset.lock || document.activeElement.tagName`)
	}
	want := func(what, id string) {
		t.Helper()
		if got := focused(); got != id {
			t.Errorf("%s: the focus is on %q, want %q", what, got, id)
		}
	}
	tb.until(`document.querySelectorAll("#rows tr").length === 50`)
	tb.key("j")
	want("j", "aaa")
	tb.key("j")
	want("j again", "gpu")
	tb.key("k")
	want("k", "aaa")
	tb.key(kb.ArrowDown)
	tb.key(kb.ArrowUp)
	want("the arrows", "aaa")
	tb.key(kb.Enter)
	tb.until(`document.activeElement.id === "detail"`)
	tb.until(opened)
	tb.key(kb.Escape)
	tb.until(`document.getElementById("detail").hidden`)
	want("Escape", "aaa")
	tb.key("/")
	want("/", "prefix")
	tb.key("order/1")
	tb.until(`document.querySelectorAll("#rows tr").length > 0 && [...document.querySelectorAll("#rows .key")].every((b) => b.dataset.lock.startsWith("order/1"))`)
	tb.key(kb.Escape)
	tb.until(hasRow("aaa"))
	tb.key("n")
	tb.until(`document.getElementById("range").innerText.startsWith("51–100")`)
	tb.key("p")
	tb.until(hasRow("aaa"))
	for i, tab := range []string{"locks", "limits", "once", "events"} {
		tb.key(fmt.Sprint(i + 1))
		tb.until(fmt.Sprintf(`document.querySelector("[role=tab][aria-selected=true]").id === "tab-%s"`, tab))
	}
	tb.key("?")
	tb.until(`document.getElementById("help").open`)
	tb.key(kb.Escape)
	tb.until(`!document.getElementById("help").open`)
	tb.key("l")
	tb.until(`document.documentElement.lang === "zh-Hans"`)
	tb.key("l")
	for _, theme := range []string{"light", "dark", "undefined"} {
		tb.key("t")
		tb.until(fmt.Sprintf(`String(document.documentElement.dataset.theme) === %q`, theme))
	}
	// Break, with a reason and a confirmation.
	tb.key("1")
	tb.until(hasRow("aaa"))
	tb.key("j")
	tb.key(kb.Enter)
	tb.until(opened)
	tb.key("b")
	tb.until(`document.getElementById("act").open`)
	want("b", "reason")
	tb.key(kb.Enter)
	if !eval[bool](tb, `document.getElementById("act").open`) || lease.Err() != nil {
		t.Fatal("it was broken without a reason")
	}
	tb.key("it hangs")
	tb.key(kb.Enter)
	if !eval[bool](tb, `document.getElementById("act").open`) || lease.Err() != nil {
		t.Fatal("it was broken without a confirmation")
	}
	want("Enter without a confirmation", "sure")
	tb.key(" ")
	tb.key(kb.Tab)
	tb.key(kb.Tab)
	want("Tab", "actDo")
	tb.key(kb.Enter)
	tb.until(`!document.getElementById("act").open`)
	select {
	case <-lease.Done():
	case <-time.After(30 * time.Second):
		t.Fatal("the lock was not broken")
	}
	tb.until(`document.getElementById("holdersTitle").innerText.startsWith("Free")`)
	tb.key("4")
	tb.until(`[...document.querySelectorAll("#eventList li")].some((li) => li.innerText.includes("broken") && li.innerText.includes("aaa") && li.innerText.includes("it hangs"))`)
}

// Break takes the lock from exactly those holders that the person agreed to.
func TestHoldersChange(t *testing.T) {
	store := memstore.New()
	s := serve(t, store, store, nil)
	first := lock(t, s.others, "k")
	asked := first.Asked()
	tb := browse(t, s.url, options{})
	tb.until(hasRow("k", "theirs:2"))
	tb.do(`document.querySelector("#rows .key").click()`)
	tb.until(opened)
	tb.do(`document.getElementById("ask").click(); document.getElementById("reason").value = "deploy 7"; document.getElementById("actDo").click()`)
	select {
	case reason := <-asked:
		if reason != "deploy 7" {
			t.Errorf("the holder was told %q", reason)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the holder was not asked")
	}
	tb.until(`!document.getElementById("act").open && document.getElementById("asked").innerText.includes("deploy 7")`)
	tb.do(`document.getElementById("break").click(); document.getElementById("sure").click(); document.getElementById("reason").value = "r"`)
	_ = first.Unlock()
	second := lock(t, s.locks, "k")
	tb.until(`document.getElementById("actHolders").innerText.includes("ours:1") && !document.getElementById("sure").checked`)
	tb.do(`document.getElementById("actDo").click()`)
	if err := second.Err(); err != nil {
		t.Fatal("it was taken from a holder that nobody had agreed to")
	}
}

// On a phone nothing is wider than the screen, whatever the store says.
func TestPhone(t *testing.T) {
	s := busy(t)
	for _, key := range enemies {
		lock(t, s.others, key, baton.Owner("x"+strings.Repeat("W", 127)))
	}
	for _, width := range []int64{320, 390} {
		for _, lang := range []string{"en", "zh-CN"} {
			tb := browse(t, s.url, options{width: width, height: 700, lang: lang})
			tb.until(`document.querySelectorAll("#rows tr").length === 50`)
			wide := func(what string) {
				t.Helper()
				if got := eval[int64](tb, `Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)`); got > width {
					t.Errorf("%s, %s at %d: the page is %d wide", what, lang, width, got)
					tb.shoot("wide")
				}
			}
			wide("locks")
			tb.key("j")
			tb.key(kb.Enter)
			tb.until(`document.querySelectorAll("#holders li").length === 1`)
			wide("detail")
			tb.do(`document.getElementById("break").click()`)
			wide("break")
			tb.do(`document.getElementById("actCancel").click()`)
			for _, tab := range []string{"2", "3", "4"} {
				tb.key(tab)
				tb.until(`document.querySelectorAll("#rows tr, #eventList li").length > 0`)
				wide("tab " + tab)
			}
		}
	}
}

// enemies are keys that attack readers of the page.
var enemies = []string{
	`<script>window.harmed=1</script>`, `"><img src=x onerror=window.harmed=1>`, `' onfocus=window.harmed=1 autofocus x='`, "javascript:window.harmed=1",
	"a\u202egnp.exe", "b\u2066\u2067\u2069c", strings.Repeat("W", 512), strings.Repeat("é", 256), "__proto__", "constructor", "${window.harmed=1}",
	"z" + strings.Repeat("\u0301", 255), " lead", "two  spaces", "\u200b",
}

// A hostile key is text, which stays in its place.
func TestEnemies(t *testing.T) {
	store := memstore.New()
	s := serve(t, store, store, nil)
	for _, key := range enemies {
		lock(t, s.locks, key, baton.Owner("<b onclick=window.harmed=1>"+strings.Repeat("O", 90)))
	}
	tb := browse(t, s.url, options{})
	tb.until(fmt.Sprintf(`document.querySelectorAll("#rows tr").length === %d && document.querySelectorAll("#eventList li").length >= %d`, len(enemies), len(enemies)))
	for _, key := range enemies {
		tb.do(fmt.Sprintf(`[...document.querySelectorAll("#rows .key")].find((b) => b.dataset.lock === %s).click()`, quote(key)))
		tb.until(fmt.Sprintf(`document.querySelectorAll("#holders li").length === 1 && document.getElementById("detailKey").innerText.length > 0 && document.querySelector("#rows tr.open .key").dataset.lock === %s`, quote(key)))
	}
	tb.shoot("enemies")
	if eval[bool](tb, `"harmed" in window`) {
		t.Error("a key has run as a script")
	}
	if got := eval[int](tb, `document.querySelectorAll("#rows b, #rows img, #rows script, #detail b, #detail img, main script").length`); got != 0 {
		t.Errorf("%d elements were made of a key or an owner", got)
	}
	if text := tb.text("body"); strings.ContainsAny(text, "\u202e\u2066\u2067\u2069\u200b") || !strings.Contains(text, `a\u202egnp.exe`) || !strings.Contains(text, "␣lead") || !strings.Contains(text, "two␣␣spaces") {
		t.Errorf("what cannot be seen is not shown escaped:\n%s", text)
	}
	// Each row keeps to its own height: nothing is drawn over its neighbours.
	if got := eval[int](tb, `[...document.querySelectorAll("#rows tr")].filter((tr) => tr.offsetHeight > 70).length`); got != 0 {
		t.Errorf("%d rows are higher than two lines", got)
	}
}

// The page speaks the language of the browser at first, and then that of the user.
func TestLanguages(t *testing.T) {
	s := busy(t)
	tb := browse(t, s.url, options{lang: "zh-CN,zh;q=0.9"})
	tb.until(`document.querySelectorAll("#rows tr").length === 50 && document.getElementById("head").innerText.includes("持有者")`)
	// Text in English would be an untranslated word. The store's own text is left out.
	english := func(what string) {
		t.Helper()
		for _, text := range eval[[]string](tb, `(() => {
			const found = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
			for (let n; (n = walk.nextNode());) {
				const p = n.parentElement;
				if (/[a-z]{3}/.test(n.data) && p.checkVisibility() && !p.closest("script, .key, .name, .why, .chip, #lang, h1, #age, #hotList, kbd")) found.push(n.data);
			}
			for (const e of document.querySelectorAll("[title], [aria-label], [placeholder]"))
				for (const a of ["title", "aria-label", "placeholder"])
					if (/[a-z]{3}/.test(e.getAttribute(a) ?? "") && !e.closest("#hotList")) found.push(e.getAttribute(a));
			return found;
		})()`) {
			t.Errorf("%s: %q is English", what, text)
		}
	}
	tb.tour(english)
	tb.do(`document.getElementById("help").close(); document.getElementById("lang").click()`)
	tb.until(`document.getElementById("head").innerText.includes("Held by")`)
	tb.do(`location.reload()`)
	tb.until(`document.getElementById("head") && document.getElementById("head").innerText.includes("Held by")`)
}

// All text is readable in both colour schemes: it has the contrast of WCAG 2 (AA).
func TestContrast(t *testing.T) {
	s := busy(t)
	for _, dark := range []bool{false, true} {
		tb := browse(t, s.url, options{dark: dark})
		tb.until(`document.querySelectorAll("#rows tr").length === 50`)
		look := func(what string) {
			t.Helper()
			for _, bad := range eval[[]string](tb, contrast) {
				t.Errorf("dark %v, %s: %s", dark, what, bad)
			}
		}
		look("locks")
		tb.until(waitedFor)
		tb.do(`document.querySelector("#hotList button").click()`)
		tb.until(`document.querySelectorAll("#waiters li").length > 0`)
		look("detail")
		tb.do(`document.getElementById("break").click()`)
		look("break")
		tb.do(`document.getElementById("actCancel").click()`)
		for _, tab := range []string{"2", "3", "4"} {
			tb.tab(tab)
			tb.until(`document.querySelectorAll("#rows tr, #eventList li").length > 0`)
			look("tab " + tab)
		}
	}
}

// contrast lists texts whose contrast with their background is below 4.5.
const contrast = `(async () => {
	await Promise.all(document.getAnimations().map((a) => a.finished.catch(() => {})));
	const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
	const known = new Map(), backs = new Map();
	const rgba = (color) => {
		if (!known.has(color)) { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1); const d = canvas.getImageData(0, 0, 1, 1).data; known.set(color, [d[0], d[1], d[2], d[3] / 255]); }
		return known.get(color);
	};
	const over = (a, b) => [0, 1, 2].map((i) => a[i] * a[3] + b[i] * (1 - a[3])).concat(1);
	const behind = (e) => {
		if (!e) return [255, 255, 255, 1];
		if (!backs.has(e)) backs.set(e, over(rgba(getComputedStyle(e).backgroundColor), e.tagName === "DIALOG" ? [255, 255, 255, 1] : behind(e.parentElement)));
		return backs.get(e);
	};
	const light = (c) => { const [r, g, b] = c.map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
	const bad = new Set(), walk = document.createTreeWalker(document.querySelector("dialog[open]") ?? document.body, NodeFilter.SHOW_TEXT);
	for (let n; (n = walk.nextNode());) {
		const e = n.parentElement;
		if (!n.data.trim() || !e.checkVisibility({ checkVisibilityCSS: true, opacityProperty: true }) || e.closest(":disabled, .hidden, script, select, .skip")) continue;
		const back = behind(e), front = over(rgba(getComputedStyle(e).color), back);
		const [a, b] = [light(front.slice(0, 3)), light(back.slice(0, 3))].sort((x, y) => y - x);
		const ratio = (a + 0.05) / (b + 0.05);
		if (ratio < 4.5) bad.add(n.data.trim().slice(0, 30) + " in " + e.tagName + "." + e.className + ": " + ratio.toFixed(2));
	}
	return [...bad];
})()`

// Every control has a name for screen readers.
func TestNames(t *testing.T) {
	s := busy(t)
	tb := browse(t, s.url, options{})
	tb.until(`document.querySelectorAll("#rows tr").length === 50`)
	tb.until(waitedFor)
	tb.do(`document.querySelector("#hotList button").click()`)
	tb.until(`document.querySelectorAll("#waiters li").length > 0`)
	for _, bad := range eval[[]string](tb, `[...document.querySelectorAll("button, input, select, [role=tab], section, dialog")].filter((e) => {
		const by = e.getAttribute("aria-labelledby");
		const name = e.getAttribute("aria-label") || (by && by.split(" ").map((id) => document.getElementById(id)?.textContent).join("")) || [...(e.labels ?? [])].map((l) => l.textContent).join("") || e.textContent;
		return !name.trim() && e.checkVisibility();
	}).map((e) => e.outerHTML.slice(0, 120))`) {
		t.Errorf("without a name: %s", bad)
	}
	if got := eval[int](tb, `new Set([...document.querySelectorAll("[id]")].map((e) => e.id)).size - document.querySelectorAll("[id]").length`); got != 0 {
		t.Errorf("%d ids are there twice", -got)
	}
}
