package pagetest

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// slashes opens pages whose name plus a slash is also a folder.
func (s *built) slashes(t *testing.T, browser context.Context) {
	var at atomic.Value
	tb := s.open(t, browser, &at)
	led := make(chan string, 10)
	if err := chromedp.Listen(tb.ctx, func(e any) {
		if e, ok := e.(*page.EventFrameNavigated); ok {
			led <- strings.TrimPrefix(e.Frame.URL, s.url)
		}
	}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"/coming-from"} {
		if _, ok := s.folders[name+"/"]; !ok {
			t.Errorf("nothing leads from %s/ to %s", name, name)
			continue
		}
		at.Store(name + "/")
		tb.set(chromedp.Do(tb.ctx, chromedp.Navigate(s.url+name+"/")))
		late := time.After(30 * time.Second)
		for to := ""; to != name+".html"; {
			select {
			case to = <-led:
			case <-late:
				t.Fatalf("%s/ leads nowhere", name)
			}
		}
		tb.until(mounted + ` && document.querySelector(".vp-doc h1") !== null`)
	}
}
