// Package cli is shared by the commands baton and baton-lab: text that is safe on a
// terminal, tables, JSON, and errors about arguments without their secrets.
package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/batonhq/baton/internal/jsonlist"
	"github.com/batonhq/baton/internal/textwidth"
)

// Safe makes text from a store or a user safe for a terminal: it escapes everything that
// is not printable, including marks that reorder text.
func Safe(s string) string {
	clean := func(r rune) bool { return unicode.IsPrint(r) && r != utf8.RuneError }
	if strings.IndexFunc(s, func(r rune) bool { return !clean(r) }) < 0 {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case clean(r):
			b.WriteString(s[i : i+n])
		default:
			quoted := strconv.QuoteRuneToASCII(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		i += n
	}
	return b.String()
}

// ShellWord quotes a key for a shell.
func ShellWord(s string) string {
	plain := func(r rune) bool {
		return r < utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("_-./:@%+,=", r))
	}
	if s != "" && s[0] != '-' && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(Safe(s), "'", `'\''`) + "'"
}

// Short is a duration for people.
func Short(d time.Duration) string { return shortened(d, time.Duration.Round) }

// ShortUp is Short for a wait, rounded up, so that a process that waits for it is not
// early.
func ShortUp(d time.Duration) string { return shortened(d, roundUp) }

func shortened(d time.Duration, round func(d, to time.Duration) time.Duration) string {
	switch {
	case d < 0:
		return "?"
	case d < time.Second:
		return round(d, time.Millisecond).String()
	case d < time.Minute:
		return round(d, 100*time.Millisecond).String()
	}
	text := round(d, time.Second).String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// Seconds is a duration for JSON, to the millisecond.
func Seconds(d time.Duration) float64 {
	return float64(d.Round(time.Millisecond)) / float64(time.Second)
}

// SecondsUp is Seconds for a wait, rounded up.
func SecondsUp(d time.Duration) float64 { return Seconds(roundUp(d, time.Millisecond)) }

// roundUp rounds up to a multiple of to.
func roundUp(d, to time.Duration) time.Duration {
	down := d.Truncate(to)
	if down < d {
		return down + to
	}
	return down
}

// JSON writes one JSON value and a line feed. A nil slice is []. It escapes characters
// that a terminal obeys or hides: in JSON they occur in strings only.
func JSON(w io.Writer, v any, indent bool) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if indent {
		enc.SetIndent("", "  ")
	}
	if err := enc.Encode(jsonlist.Filled(v)); err != nil {
		return err
	}
	_, err := w.Write(EscapeJSON(b.String()))
	return err
}

// EscapeJSON escapes the characters of JSON that a terminal obeys or hides.
func EscapeJSON(text string) []byte {
	clean := make([]byte, 0, len(text))
	for _, r := range text {
		switch high, low := utf16.EncodeRune(r); {
		case r == '\n' || unicode.IsPrint(r):
			clean = utf8.AppendRune(clean, r)
		case high != utf8.RuneError:
			clean = fmt.Appendf(clean, `\u%04x\u%04x`, high, low)
		default:
			clean = fmt.Appendf(clean, `\u%04x`, r)
		}
	}
	return clean
}

// Table writes rows in columns; the first row is the head. On a narrow terminal it leaves
// out the columns of spare, in that order, and then writes a paragraph for each row.
func Table(w io.Writer, rows [][]string, spare ...int) error {
	columns := 0
	if f, ok := w.(*os.File); ok {
		columns, _, _ = term.GetSize(int(f.Fd()))
	}
	_, err := io.WriteString(w, Layout(rows, columns, spare...))
	return err
}

// Layout is Table for a terminal of that many columns; 0: no limit. Columns are separated
// by two spaces; wide characters take two columns of the terminal.
func Layout(rows [][]string, columns int, spare ...int) string {
	var widths []int
	var told []bool // the column has different cells
	for i, row := range rows {
		for n, cell := range row {
			if n == len(widths) {
				widths, told = append(widths, 0), append(told, false)
			}
			widths[n] = max(widths[n], textwidth.Of(cell))
			told[n] = told[n] || n == 0 || columns == 0 || len(rows) == 1 || i > 0 && cell != "-" && cell != "?"
		}
	}
	var kept []int
	wide := -2
	for n, w := range widths {
		if told[n] {
			kept = append(kept, n)
			wide += w + 2
		}
	}
	all := kept
	for len(spare) > 0 && columns > 0 && wide > columns {
		if at := slices.Index(kept, spare[0]); at >= 0 {
			wide -= widths[spare[0]] + 2
			kept = slices.Delete(slices.Clone(kept), at, at+1)
		}
		spare = spare[1:]
	}
	if columns > 0 && wide > columns {
		return paragraphs(rows, all)
	}
	var b strings.Builder
	for _, row := range rows {
		for i, n := range kept {
			if n >= len(row) {
				break
			}
			b.WriteString(row[n])
			if i < len(kept)-1 && kept[i+1] < len(row) {
				b.WriteString(strings.Repeat(" ", widths[n]-textwidth.Of(row[n])+2))
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// paragraphs writes the first cell of each row on a line, and the others below it, each
// after the head of its column.
func paragraphs(rows [][]string, columns []int) string {
	wide := 0
	for _, n := range columns[1:] {
		wide = max(wide, textwidth.Of(rows[0][n]))
	}
	var b strings.Builder
	for _, row := range rows[1:] {
		b.WriteString(row[0] + "\n")
		for _, n := range columns[1:] {
			if row[n] == "-" || row[n] == "?" {
				continue
			}
			name := strings.ToLower(rows[0][n])
			fmt.Fprintf(&b, "  %s%s  %s\n", name, strings.Repeat(" ", wide-textwidth.Of(name)), row[n])
		}
	}
	return b.String()
}

// Cut shortens a text to n columns.
func Cut(s string, n int) string {
	if textwidth.Of(s) <= n {
		return s
	}
	used := 0
	for i, r := range s {
		if used+textwidth.OfRune(r) > n-1 {
			return s[:i] + "…"
		}
		used += textwidth.OfRune(r)
	}
	return s
}
