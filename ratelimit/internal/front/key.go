package front

import (
	"crypto/sha256"
	"encoding/base64"
	"strings"
)

// A key consists of parts separated by "|"; a part is a value, or "name=value". Values
// come from callers that may be hostile: a caller must not get another caller's key, or a
// key that the store refuses.
const (
	maxPart = 100
	maxKey  = 300 // with room for the name of a limit
)

// Part makes a part of a key; without a name it is the value alone. Different values give
// different parts.
func Part(name, value string) string {
	if len(value) <= maxPart {
		if v := escape(value); len(v) <= maxPart {
			return named(name, v)
		}
	}
	return Secret(name, value)
}

// Secret is Part for a value that must not be readable in the key.
func Secret(name, value string) string { return named(name, hash(value)) }

func named(name, value string) string {
	if name == "" {
		return value
	}
	return escape(name) + "=" + value
}

// hash begins with a character that no escaped value contains.
func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return "#" + base64.RawURLEncoding.EncodeToString(sum[:])
}

// Join makes a key of parts.
func Join(parts ...string) string {
	key := strings.Join(parts, "|")
	if len(key) > maxKey {
		return hash(key)
	}
	return key
}

// escape writes as %XX what is not printable ASCII, the delimiters of this package, and
// braces, which choose the slot of a key in a Redis Cluster.
func escape(s string) string {
	const hex = "0123456789ABCDEF"
	n := 0
	for i := range len(s) {
		if !plain(s[i]) {
			n++
		}
	}
	if n == 0 {
		return s
	}
	var b strings.Builder
	b.Grow(len(s) + 2*n)
	for i := range len(s) {
		if c := s[i]; plain(c) {
			b.WriteByte(c)
		} else {
			b.WriteByte('%')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		}
	}
	return b.String()
}

func plain(c byte) bool {
	switch c {
	case '%', '{', '}', '|', '#', '=':
		return false
	}
	return ' ' <= c && c <= '~'
}
