package pagetest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/internal/transcript"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/server/page"
	"github.com/batonhq/baton/store/memstore"
	"github.com/batonhq/baton/store/redisstore"
)

// The server requires a token: the page asks for it, tries it, and is refused or accepted.
func TestToken(t *testing.T) {
	store := memstore.New()
	s := serve(t, store, store, func(c *page.Config) {
		c.Caller = func(r *http.Request) (page.Caller, error) {
			if r.Header.Get("Authorization") != "Bearer right" {
				return nil, errors.New("no")
			}
			return caller{}, nil
		}
	})
	lock(t, s.locks, "k")
	tb := browse(t, s.url, options{})
	tb.until(`document.getElementById("login").open`)
	tb.key("wrong" + kb.Enter)
	tb.until(`document.getElementById("login").open && !document.getElementById("loginError").hidden`)
	tb.key("right" + kb.Enter)
	tb.until(hasRow("k", "ours:1"))
	if got := tb.text("#caller"); got != "ops" {
		t.Errorf("the caller is shown as %q", got)
	}
	tb = browse(t, s.url+"#token=right", options{})
	tb.until(hasRow("k", "ours:1"))
	if got := eval[string](tb, `location.href`); got != s.url {
		t.Errorf("the token stays in the address: %s", got)
	}
}

type caller struct{}

func (caller) Name() string                { return "ops" }
func (caller) May(string, string) error    { return nil }
func (caller) MaySome(string, string) bool { return true }

// The page reports a server that is down, and continues when the server is back.
func TestConnectionLost(t *testing.T) {
	store := memstore.New()
	s := serve(t, store, store, nil)
	lock(t, s.locks, "k")
	tb := browse(t, s.url, options{})
	tb.until(hasRow("k"))
	s.stop()
	tb.until(`document.getElementById("status").classList.contains("gone")`)
	if !strings.Contains(tb.text("#status"), "No connection") || len(tb.rows()) != 1 {
		t.Errorf("the page says %q and has %d rows", tb.text("#status"), len(tb.rows()))
	}
	s.start()
	tb.until(`document.getElementById("status").classList.contains("live")`)
	lock(t, s.locks, "l")
	tb.until(hasRow("l"))
}

// The page of a server without events: every tab draws, and says that it is empty, and that the
// connection is lost. An error of the script fails the test.
func TestNothingHasHappened(t *testing.T) {
	store := memstore.New()
	s := serve(t, store, store, nil)
	tb := browse(t, s.url, options{})
	for _, key := range []string{"1", "2", "3", "4"} {
		tb.tab(key)
		tb.until(`document.getElementById("status").classList.contains("live")`)
		if key == "4" {
			tb.until(`document.getElementById("noEvents").checkVisibility()`)
		} else {
			tb.until(`document.getElementById("empty").checkVisibility() && !document.getElementById("empty").textContent.includes("…")`)
		}
		s.stop()
		tb.until(`document.getElementById("status").classList.contains("gone")`)
		s.start()
		tb.until(`document.getElementById("status").classList.contains("live")`)
	}
}

// If the store is down, every tab that shows it says so, and continues when it is back.
func TestStoreAway(t *testing.T) {
	server := testserver.Redis(t, "--appendonly", "yes")
	store, err := redisstore.Open(t.Context(), redisstore.Server{Addrs: []string{server.Addr}}, redisstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	s := serve(t, store, store, nil)
	lock(t, s.locks, "k")
	tb := browse(t, s.url, options{})
	tb.until(hasRow("k"))
	for _, key := range []string{"1", "2", "3"} {
		tb.tab(key)
		tb.until(`document.getElementById("status").classList.contains("live")`)
		server.Kill()
		tb.until(`document.getElementById("alarm").checkVisibility() && document.getElementById("status").classList.contains("late")`)
		server.Restart()
		tb.until(`document.getElementById("status").classList.contains("live")`)
	}
}

// Failures, exit codes and durations are visible, and the longest waiter.
func TestFailures(t *testing.T) {
	store := memstore.New()
	s := serve(t, store, store, nil)
	failed := transcript.Transcript{Exit: 3, Pieces: []transcript.Piece{{Stream: 0, Data: []byte("stopped after <b>1s</b>")}}}
	_, _ = s.once.Do(t.Context(), "import", func(context.Context, once.Attempt) ([]byte, error) {
		return nil, errors.New(string(failed.Encode()))
	})
	_, _ = s.once.Do(t.Context(), "pay", func(context.Context, once.Attempt) ([]byte, error) { return nil, errors.New("the bank is closed") })
	lock(t, s.locks, "k")
	go func() { _, _ = s.others.Lock(t.Context(), "k") }()
	tb := browse(t, s.url, options{})
	tb.until(hasRow("k", "1 · "))
	tb.tab("3")
	tb.until(hasRow("import", "failed · exit 3", "stopped after <b>1s</b>") + " && " + hasRow("pay", "failed", "the bank is closed"))
}

// axe-core finds no barrier in the page.
func TestAccessible(t *testing.T) {
	testserver.Npm(t)
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("axe")); err != nil {
		t.Fatal(err)
	}
	install := exec.CommandContext(t.Context(), "npm", "ci", "--no-audit", "--no-fund", "--prefer-offline")
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
	axe, err := os.ReadFile(filepath.Join(dir, "node_modules/axe-core/axe.min.js"))
	if err != nil {
		t.Fatal(err)
	}
	s := busy(t)
	for _, o := range []options{{width: 1280, height: 900}, {width: 390, height: 844, dark: true, lang: "zh-CN"}} {
		tb := browse(t, s.url, o)
		tb.until(`document.querySelectorAll("#rows tr").length === 50`)
		tb.do(string(axe) + "; undefined")
		look := func(what string) {
			t.Helper()
			for _, found := range eval[[]string](tb, `axe.run({ resultTypes: ["violations"] }).then((r) => r.violations.map((v) => v.impact + " " + v.id + ": " + v.help + ": " + v.nodes.map((n) => n.html.slice(0, 160)).join(" | ")))`) {
				t.Errorf("%d px, %s: %s", o.width, what, found)
			}
		}
		tb.tour(look)
	}
}

// A drawer that fails does not keep the others from drawing.
func TestDrawerThatFails(t *testing.T) {
	store := memstore.New()
	s := serve(t, store, store, nil)
	tb := browse(t, s.url, options{})
	tb.until(`document.getElementById("status").classList.contains("live")`)
	// The drawer of the table fails. The browser is told so, which is no failure of this test.
	tb.do(`window.failed = 0; window.addEventListener("error", (e) => { window.failed++; e.preventDefault(); }); document.getElementById("caption").remove()`)
	tb.until(`window.failed > 0`)
	s.stop()
	tb.until(`document.getElementById("status").classList.contains("gone")`)
}

// Hidden tabs leave their connections to visible ones: a browser has six per server.
func TestManyTabs(t *testing.T) {
	store := memstore.New()
	s := serve(t, store, store, nil)
	asked := lock(t, s.others, "k").Asked()
	browser := launch(t)
	const hide = `Object.defineProperty(document, "hidden", { value: %v, configurable: true }); document.dispatchEvent(new Event("visibilitychange"))`
	const live = `document.getElementById("status").classList.contains("live")`
	var tabs []*tab
	for range 9 {
		tb := openTab(t, browser, options{})
		tb.set(chromedp.Do(tb.ctx, chromedp.Navigate(s.url)))
		tb.until(live)
		if tabs = append(tabs, tb); len(tabs) > 2 {
			tb.do(fmt.Sprintf(hide, true))
		}
	}
	first := tabs[0]
	first.until(hasRow("k"))
	first.do(`document.querySelector("#rows .key").click()`)
	first.until(opened)
	first.do(`document.getElementById("ask").click(); document.getElementById("reason").value = "deploy 7"; document.getElementById("actDo").click()`)
	select {
	case <-asked:
	case <-time.After(30 * time.Second):
		t.Fatal("the holder was not asked")
	}
	first.until(`!document.getElementById("act").open && document.getElementById("asked").innerText.includes("deploy 7")`)
	last := tabs[len(tabs)-1]
	last.until(`!(` + live + `)`)
	lock(t, s.others, "l")
	last.do(fmt.Sprintf(hide, false))
	last.until(live + ` && ` + hasRow("l"))
}
