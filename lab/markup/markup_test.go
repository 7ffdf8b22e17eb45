package markup

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestWriter(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	w := New(&b)
	w.Inside("g", func() {
		w.Element("title", `<&>"'`)
		w.Empty("rect", "x", 1.5, "class", `a" onload="b`)
	}, "id", 7)
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if want := `<g id="7"><title>&lt;&amp;&gt;&#34;&#39;</title><rect x="1.5" class="a&#34; onload=&#34;b"/></g>`; b.String() != want {
		t.Errorf("it wrote %s, want %s", b.String(), want)
	}
	var read struct {
		Title string `xml:"title"`
		Rect  struct {
			Class string `xml:"class,attr"`
		} `xml:"rect"`
	}
	if err := xml.Unmarshal([]byte(b.String()), &read); err != nil || read.Title != `<&>"'` || read.Rect.Class != `a" onload="b` {
		t.Errorf("it reads as %+v, %v", read, err)
	}
}

func TestWriterFails(t *testing.T) {
	t.Parallel()
	w := New(io.Discard)
	w.Start("g")
	if err := w.Flush(); err == nil {
		t.Error("an element that did not end is no error")
	}
	full := errors.New("full")
	w = New(writer(func([]byte) (int, error) { return 0, full }))
	w.Element("p", strings.Repeat("x", 10_000))
	w.Element("p", "y")
	if err := w.Flush(); !errors.Is(err, full) {
		t.Errorf("the error is %v", err)
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }
