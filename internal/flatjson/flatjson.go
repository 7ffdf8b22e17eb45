// Package flatjson reads, quickly, objects of JSON of the kind that clients of Baton send.
package flatjson

import "unicode/utf8"

// A Value is a string without escapes, a whole number of at most 16 digits, or true or
// false.
type Value struct {
	Kind   byte // '"', '0', 't' or 'f'
	Text   []byte
	Number int64
}

// Each calls field for each field of an object. It returns false if field does, and for
// every text that may be something else or illegal: another parser must look then. A name
// that occurs twice is passed on twice.
func Each(text []byte, field func(name []byte, v Value) bool) bool {
	if !utf8.Valid(text) || len(text) == 0 || text[0] != '{' {
		return false
	}
	for at := 0; ; {
		name, next, ok := quoted(text, blank(text, at+1))
		if !ok || next >= len(text) || text[next] != ':' {
			return false
		}
		var v Value
		if v, at, ok = value(text, blank(text, next+1)); !ok || at >= len(text) || !field(name, v) {
			return false
		}
		switch text[at] {
		case ',':
		case '}':
			return at+1 == len(text) || string(text[at+1:]) == "\n"
		default:
			return false
		}
	}
}

func value(text []byte, at int) (v Value, end int, ok bool) {
	switch rest := text[at:]; {
	case len(rest) >= 4 && string(rest[:4]) == "true":
		return Value{Kind: 't'}, at + 4, true
	case len(rest) >= 5 && string(rest[:5]) == "false":
		return Value{Kind: 'f'}, at + 5, true
	case len(rest) > 0 && rest[0] == '"':
		v.Kind = '"'
		v.Text, end, ok = quoted(text, at)
		return v, end, ok
	}
	v.Kind = '0'
	for end = at; end < len(text) && '0' <= text[end] && text[end] <= '9'; end++ {
		v.Number = v.Number*10 + int64(text[end]-'0')
	}
	return v, end, end > at && end <= at+16 && (text[at] != '0' || end == at+1)
}

// quoted is a string without escapes, and its end.
func quoted(text []byte, at int) (s []byte, end int, ok bool) {
	if at >= len(text) || text[at] != '"' {
		return nil, 0, false
	}
	for end = at + 1; end < len(text) && text[end] != '"'; end++ {
		if text[end] < ' ' || text[end] == '\\' {
			return nil, 0, false
		}
	}
	return text[at+1 : end], end + 1, end < len(text)
}

// blank skips one blank.
func blank(text []byte, at int) int {
	if at < len(text) && text[at] == ' ' {
		return at + 1
	}
	return at
}
