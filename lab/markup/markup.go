// Package markup writes HTML and SVG. It escapes texts and closes elements, so the result is
// well-formed XML.
//
// html/template can do more, but it calls methods by names that it finds at run time: a
// program with it keeps all exported methods of all its types, a third of the command's size.
package markup

import (
	"bufio"
	"fmt"
	"html"
	"io"
)

// A Writer writes nested elements. After an error it writes nothing more.
type Writer struct {
	out  *bufio.Writer
	open []string
}

// New returns a Writer to w. Flush ends it.
func New(w io.Writer) *Writer { return &Writer{out: bufio.NewWriter(w)} }

// Raw writes markup unchanged. It must be the program's own, never text from elsewhere.
func (w *Writer) Raw(markup string) { _, _ = w.out.WriteString(markup) }

// Text writes text, or a value as by fmt.Print, escaped.
func (w *Writer) Text(v any) { w.Raw(html.EscapeString(fmt.Sprint(v))) }

// Start begins an element with attributes: names and values in turn. Names must be the
// program's own; values are escaped.
func (w *Writer) Start(name string, attributes ...any) {
	w.tag(name, attributes)
	w.Raw(">")
	w.open = append(w.open, name)
}

// End ends the element that began last.
func (w *Writer) End() {
	last := len(w.open) - 1
	w.Raw("</" + w.open[last] + ">")
	w.open = w.open[:last]
}

// Empty writes an element without content.
func (w *Writer) Empty(name string, attributes ...any) {
	w.tag(name, attributes)
	w.Raw("/>")
}

// Element writes an element with a text.
func (w *Writer) Element(name string, text any, attributes ...any) {
	w.Start(name, attributes...)
	w.Text(text)
	w.End()
}

// Inside writes an element whose content f writes.
func (w *Writer) Inside(name string, f func(), attributes ...any) {
	w.Start(name, attributes...)
	f()
	w.End()
}

// Flush writes what is buffered, and returns the first error of all writes.
func (w *Writer) Flush() error {
	if len(w.open) > 0 {
		return fmt.Errorf("markup: %q did not end", w.open)
	}
	return w.out.Flush()
}

func (w *Writer) tag(name string, attributes []any) {
	w.Raw("<" + name)
	for i := 0; i < len(attributes); i += 2 {
		w.Raw(" " + attributes[i].(string) + `="`)
		w.Text(attributes[i+1])
		w.Raw(`"`)
	}
}
