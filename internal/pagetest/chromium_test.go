package pagetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/server/page"
)

// A site is a page over a store, on a port of its own.
type site struct {
	url    string
	locks  *baton.Locker // reports its events to the page
	others *baton.Locker // like another process
	once   *once.Runner
	recent *page.Recent
	store  driver.Locks

	stop, start func() // of the server, at the same address
}

// serve serves the page of a store. remote is the store as another process sees it.
func serve(t *testing.T, store, remote driver.Locks, change func(*page.Config)) *site {
	t.Helper()
	s := &site{recent: page.NewRecent(), store: store}
	var err error
	if s.locks, err = baton.New(store, baton.Config{Owner: "ours:1", Events: s.recent.Events().Locks}); err != nil {
		t.Fatal(err)
	}
	if s.others, err = baton.New(remote, baton.Config{Owner: "theirs:2"}); err != nil {
		t.Fatal(err)
	}
	if s.once, err = once.New(store, once.Config{Events: s.recent.Events().Once}); err != nil {
		t.Fatal(err)
	}
	cfg := page.Config{Locks: s.locks, Once: s.once, Recent: s.recent, Hosts: page.Loopback}
	cfg.Limits, _ = driver.As[limits.Lister](store)
	if change != nil {
		change(&cfg)
	}
	p, err := page.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	addr := "127.0.0.1:0"
	s.start = func() {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		addr = l.Addr().String()
		server := &http.Server{Handler: p}
		go func() { _ = server.Serve(l) }() // ends by Close
		s.stop = func() { _ = server.Close() }
	}
	s.start()
	t.Cleanup(func() { p.Close(); s.stop() })
	s.url = "http://" + addr + "/"
	return s
}

// A tab is a tab of a real browser.
type tab struct {
	t   *testing.T
	ctx context.Context
}

// options of a tab.
type options struct {
	lang          string // of Accept-Language
	width, height int64
	dark          bool
}

// browse opens a page in its own browser. Errors in the browser fail the test.
func browse(t *testing.T, url string, o options) *tab {
	t.Helper()
	tb := openTab(t, launch(t), o)
	tb.set(chromedp.Do(tb.ctx, chromedp.Navigate(url)))
	return tb
}

// launch starts a browser, in which openTab opens tabs. The first tab is an empty page.
func launch(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(testserver.Chromium(t)), chromedp.NoSandbox, // tests may run as root
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("lang", "en-US"))...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	return ctx
}

// openTab opens an empty tab.
func openTab(t *testing.T, browser context.Context, o options) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser)
	t.Cleanup(cancel)
	if o.lang == "" {
		o.lang = "en-US"
	}
	tb := &tab{t, ctx}
	if err := chromedp.Listen(ctx, func(e any) {
		switch e := e.(type) {
		case *runtime.EventExceptionThrown:
			t.Errorf("the script failed: %+v", *e.ExceptionDetails)
		case *log.EventEntryAdded:
			// The browser logs answers with an error status, which tests ask for.
			if e.Entry.Source != log.EntrySourceNetwork {
				t.Errorf("the browser complains: %s %s", e.Entry.Source, e.Entry.Text)
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	tb.set(call(ctx, emulation.SetUserAgentOverride, emulation.SetUserAgentOverrideParams{UserAgent: "baton-test", AcceptLanguage: o.lang}))
	tb.look(o)
	return tb
}

// look gives the tab the size and the colours of options.
func (tb *tab) look(o options) {
	tb.t.Helper()
	if o.width == 0 {
		o.width, o.height = 1360, 900
	}
	scheme := "light"
	if o.dark {
		scheme = "dark"
	}
	tb.set(
		call(tb.ctx, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: o.width, Height: o.height, DeviceScaleFactor: 1, Mobile: o.width < 500}),
		call(tb.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}),
	)
}

func call[P, R any](ctx context.Context, command cdp.Command[P, R], params P) error {
	_, err := chromedp.Call(ctx, command, params)
	return err
}

// set fails the test if one of the settings could not be made.
func (tb *tab) set(errs ...error) {
	tb.t.Helper()
	if err := errors.Join(errs...); err != nil {
		tb.t.Fatal(err)
	}
}

// eval evaluates an expression, and waits for it if it is a promise.
func eval[T any](tb *tab, expression string) T {
	tb.t.Helper()
	ctx, cancel := context.WithTimeout(tb.ctx, time.Minute)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		tb.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// do is eval for an expression without a result.
func (tb *tab) do(expression string) {
	tb.t.Helper()
	eval[chromedp.Void](tb, expression)
}

// text is the text of a visible element, or "".
func (tb *tab) text(selector string) string {
	tb.t.Helper()
	return eval[string](tb, fmt.Sprintf(`(() => { const e = document.querySelector(%s); return e && e.checkVisibility() ? e.innerText : "" })()`, quote(selector)))
}

func quote(text string) string {
	b, _ := json.Marshal(text)
	return string(b)
}

// until waits until an expression is true in the browser, which evaluates it continuously.
func (tb *tab) until(expression string) {
	tb.t.Helper()
	if !eval[bool](tb, fmt.Sprintf(`new Promise((resolve) => {
		const end = performance.now() + 30000;
		const look = () => (%s) ? resolve(true) : performance.now() > end ? resolve(false) : setTimeout(look, 10);
		look();
	})`, expression)) {
		tb.shoot("failed")
		tb.t.Fatalf("never true: %s; the page says:\n%.800s", expression, tb.text("body"))
	}
}

// shoot writes a picture of the page to the folder BATON_SHOTS, if there is one.
func (tb *tab) shoot(name string) {
	tb.t.Helper()
	dir := os.Getenv("BATON_SHOTS")
	if dir == "" {
		return
	}
	png, err := chromedp.Run(tb.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		tb.t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/"+name+".png", png, 0o644); err != nil {
		tb.t.Error(err)
	}
}

// rows are the texts of the cells of the table.
func (tb *tab) rows() [][]string {
	tb.t.Helper()
	return eval[[][]string](tb, `[...document.querySelectorAll("#rows tr")].map((tr) => [...tr.children].map((td) => td.innerText.trim()))`)
}

func lock(t *testing.T, l *baton.Locker, key string, opts ...baton.Option) *baton.Lease {
	t.Helper()
	lease, err := l.TryLock(t.Context(), key, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lease.Unlock() })
	return lease
}

// hasRow is true in the browser if a row has the key, and all the texts.
func hasRow(key string, texts ...string) string {
	return fmt.Sprintf(`[...document.querySelectorAll("#rows tr")].some((tr) => tr.querySelector(".key").dataset.lock === %s && [%s].every((s) => tr.innerText.includes(s)))`, quote(key), strings.Join(quoted(texts), ","))
}

func quoted(texts []string) (all []string) {
	for _, t := range texts {
		all = append(all, quote(t))
	}
	return all
}

// key presses keys, one after the other, like a keyboard: if the page handles a key, no character is
// typed.
func (tb *tab) key(keys string) {
	tb.t.Helper()
	for _, r := range keys {
		events := kb.Encode(r)
		if len(events) == 3 { // down, character, up
			events[0].Type, events[0].Text = input.DispatchKeyEventTypeKeyDown, events[1].Text
			events = append(events[:1], events[2])
		}
		for _, e := range events {
			tb.set(call(tb.ctx, input.DispatchKeyEvent, *e))
		}
	}
}

// tab opens the tab of a number by the keyboard, and waits until it is drawn: until then the page shows
// the previous one.
func (tb *tab) tab(number string) {
	tb.t.Helper()
	tb.key(number)
	tb.until(`document.body.dataset.tab === ["locks", "limits", "once", "events"][` + number + ` - 1]`)
}

// tour calls look at each tab of a busy site, at a lock in detail, and at both dialogs.
func (tb *tab) tour(look func(what string)) {
	tb.t.Helper()
	for _, tab := range []string{"4", "3", "2", "1"} {
		tb.tab(tab)
		tb.until(`document.querySelectorAll("#rows tr, #eventList li").length > 0`)
		look("tab " + tab)
	}
	tb.until(waitedFor)
	tb.do(`document.querySelector("#hotList button").click()`)
	tb.until(`document.querySelectorAll("#waiters li").length > 0`)
	look("detail")
	tb.do(`document.getElementById("break").click()`)
	look("break")
	tb.do(`document.getElementById("actCancel").click(); document.getElementById("keys").click()`)
	look("help")
}
