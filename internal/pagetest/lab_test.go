package pagetest

import (
	"context"
	"net/http/httptest"
	"testing"

	"github.com/chromedp/chromedp/kb"

	"github.com/batonhq/baton/internal/lab/live"
	"github.com/batonhq/baton/internal/lab/questions"
	"github.com/batonhq/baton/internal/testserver"
)

// TestLaboratory makes an experiment by the button of its question, in both languages and on
// a phone, and sees its picture grow.
func TestLaboratory(t *testing.T) {
	testserver.NeedRedis(t)
	ctx, cancel := context.WithCancel(t.Context())
	p := live.New(ctx, questions.All(), "secret", []string{"baton"})
	s := httptest.NewServer(p)
	t.Cleanup(func() {
		cancel()
		p.Wait()
		s.Close()
	})
	const result = `document.querySelector("#delete-without-compare .result")`
	for _, c := range []struct {
		lang, lost string
		width      int64
	}{{"en", "the lock of A has expired", 1280}, {"zh", "A 的锁已过期", 390}} {
		tb := browse(t, s.URL+"/secret/?lang="+c.lang, options{width: c.width, height: 800})
		tb.do(`document.querySelector("[data-run=delete-without-compare]").click()`)
		tb.until(`document.querySelector("#delete-without-compare").classList.contains("running") && [...document.querySelectorAll("[data-run]")].every((b) => b.getAttribute("aria-disabled") === "true")`)
		tb.until(result + `.querySelectorAll("svg rect.holds").length > 0 && !` + result + `.querySelector("table")`) // it grows
		tb.until(`!document.querySelector("#delete-without-compare").classList.contains("running") && ` + result + `.querySelector("table")`)
		tb.until(result + `.textContent.includes(` + quote(c.lost) + `)`)
		tb.until(`[...document.querySelectorAll("[data-run]")].every((b) => b.getAttribute("aria-disabled") === "false")`)
		if got := eval[int64](tb, `document.documentElement.scrollWidth`); got > c.width {
			t.Errorf("at %d the page is %d wide", c.width, got)
		}
		tb.do(result + `.scrollIntoView()`)
		tb.shoot("lab-" + c.lang)
	}
}

// TestLaboratoryByKeyboard makes an experiment without a pointer: the focus stays on the
// button. A page that is still open when the laboratory ends says so.
func TestLaboratoryByKeyboard(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p := live.New(ctx, questions.All(), "secret", []string{"baton"})
	s := httptest.NewServer(p)
	end := func() {
		cancel()
		p.Wait()
		s.CloseClientConnections()
		s.Close()
	}
	t.Cleanup(end)
	tb := browse(t, s.URL+"/secret/?lang=en", options{width: 1280, height: 800})
	const button = `document.querySelector("[data-run=fixed-window-edge]")`
	tb.do(button + `.focus()`)
	tb.key(kb.Enter)
	tb.until(`document.querySelector("#fixed-window-edge table")`)
	tb.until(button + `.getAttribute("aria-disabled") === "false"`)
	if !eval[bool](tb, `document.activeElement === `+button) {
		t.Errorf("the focus is on %s", eval[string](tb, `document.activeElement.outerHTML.slice(0, 200)`))
	}
	if said := tb.text(".connection"); said != "" {
		t.Errorf("while it is connected the page says %q", said)
	}
	end()
	tb.until(`document.querySelector(".connection").textContent.includes("baton lab serve")`)
	if eval[string](tb, button+`.getAttribute("aria-disabled")`) != "true" {
		t.Error("the buttons of a laboratory that has ended can be pressed")
	}
	tb.do(`scrollTo(0, 0)`)
	tb.shoot("lab-ended")
}
