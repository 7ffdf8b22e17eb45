package rules

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// An Error is one mistake in rules.
type Error struct {
	// File, Line, Column and Source are the place in a file: the line and its character,
	// counted from 1, and the text of the line. Line is 0 for rules from code.
	File         string
	Line, Column int
	Source       string

	Where  string // the rule: `rule "api", tier "pro"`; may be ""
	Reason string
}

// Error is one line, and with a Source two more: the line of the file, and a mark below
// the character. It escapes characters that a terminal obeys.
func (e *Error) Error() string {
	var b strings.Builder
	if e.File != "" {
		b.WriteString(printable(e.File) + ":")
	}
	if e.Line > 0 {
		fmt.Fprintf(&b, "%d:%d:", e.Line, e.Column)
	}
	if b.Len() > 0 {
		b.WriteByte(' ')
	}
	if e.Where != "" {
		b.WriteString(e.Where + ": ")
	}
	b.WriteString(printable(e.Reason))
	if e.Line > 0 && e.Source != "" {
		before, after := e.Source, ""
		if runes := []rune(e.Source); e.Column >= 1 && e.Column <= len(runes) {
			before, after = string(runes[:e.Column-1]), string(runes[e.Column-1:])
		}
		if runes := []rune(before); len(runes) > 60 {
			before = "…" + string(runes[len(runes)-59:])
		}
		if runes := []rune(after); len(runes) > 60 {
			after = string(runes[:59]) + "…"
		}
		mark := strings.Map(func(r rune) rune {
			if r == '\t' {
				return r
			}
			return ' '
		}, printable(before))
		fmt.Fprintf(&b, "\n    %s%s\n    %s^", printable(before), printable(after), mark)
	}
	return b.String()
}

// Errors are all mistakes in rules, in the order of the file.
type Errors []*Error

func (e Errors) Error() string {
	texts := make([]string, len(e))
	for i, one := range e {
		texts[i] = one.Error()
	}
	return strings.Join(texts, "\n")
}

// Unwrap is for errors.As.
func (e Errors) Unwrap() []error {
	all := make([]error, len(e))
	for i, one := range e {
		all[i] = one
	}
	return all
}

// An UnknownError says that a request names something that is not in the rules.
type UnknownError struct {
	Kind string // "rule", "tier", "domain"
	Name string
	Near string // a similar known name, or ""
}

func (e *UnknownError) Error() string {
	text := fmt.Sprintf("rules: there is no %s %q", e.Kind, e.Name)
	if e.Near != "" {
		text += fmt.Sprintf(": did you mean %q?", e.Near)
	}
	return text
}

// A RequestError says that a request is invalid by itself.
type RequestError struct{ Reason string }

func (e *RequestError) Error() string { return "rules: bad request: " + e.Reason }

// printable escapes what is not printable, except tabs and line feeds.
func printable(s string) string {
	clean := func(r rune) bool { return r == '\t' || r == '\n' || unicode.IsPrint(r) && r != utf8.RuneError }
	if strings.IndexFunc(s, func(r rune) bool { return !clean(r) }) < 0 {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if clean(r) {
			b.WriteString(s[i : i+n])
		} else {
			quoted := strconv.QuoteToASCII(s[i : i+n])
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		i += n
	}
	return b.String()
}
