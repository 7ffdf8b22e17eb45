// Package shellword writes words of commands that a person copies into a shell.
package shellword

import "strings"

// Quote is a word that a POSIX shell reads as s, whatever s contains. It is s if no part
// of s has a meaning to a shell.
func Quote(s string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:@%+,="
	if s != "" && strings.Trim(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
