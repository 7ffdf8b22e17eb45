// Package markup writes HTML and SVG. It escapes what it is given, and closes what it opened,
// so that the result is well-formed XML.
//
// html/template does more, and calls methods by names that it finds while it runs: a program
// that has it keeps all exported methods of all its types, a third of the command's size.
package markup

import (
	"bufio"
	"fmt"
	"html"
	"io"
)

// A Writer writes elements, one inside of the other. After an error it writes nothing.
type Writer struct {
	out  *bufio.Writer
	open []string
}

// New returns a Writer to w. Flush ends it.
func New(w io.Writer) *Writer { return &Writer{out: bufio.NewWriter(w)} }

// Raw writes markup as it is: of the program's own, never text that came from elsewhere.
func (w *Writer) Raw(markup string) { _, _ = w.out.WriteString(markup) }

// Text writes text, or a value as fmt.Print does.
func (w *Writer) Text(v any) { w.Raw(html.EscapeString(fmt.Sprint(v))) }

// Start begins an element with attributes: names and values in turn. Names are the program's
// own; values are escaped.
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

// Empty writes an element that has nothing in it.
func (w *Writer) Empty(name string, attributes ...any) {
	w.tag(name, attributes)
	w.Raw("/>")
}

// Element writes an element that has text in it.
func (w *Writer) Element(name string, text any, attributes ...any) {
	w.Start(name, attributes...)
	w.Text(text)
	w.End()
}

// Inside writes an element that has in it what f writes.
func (w *Writer) Inside(name string, f func(), attributes ...any) {
	w.Start(name, attributes...)
	f()
	w.End()
}

// Flush writes what is left, and returns the first error of the whole.
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
