package front

import (
	"encoding/base64"
	"strings"
)

// Credentials normalises a value of Authorization: servers accept the name of its scheme
// in any case, with any space around it, and the base64 of Basic with any unused bits.
// Otherwise a client that spelled one token in six ways would have six budgets. A value
// of one word has no scheme, and its case counts.
func Credentials(value string) string {
	words := strings.Fields(value)
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	scheme, rest := strings.ToLower(words[0]), strings.Join(words[1:], " ")
	if scheme == "basic" {
		if raw, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(rest, "=")); err == nil {
			rest = base64.StdEncoding.EncodeToString(raw)
		}
	}
	return scheme + " " + rest
}

// Careful returns chosen, or, if the header has a secret value by its name, Secret.
func Careful(header string, chosen func(name, value string) string) func(name, value string) string {
	switch header {
	case "cookie":
		return Secret
	case "authorization", "proxy-authorization":
		return func(name, value string) string { return Secret(name, Credentials(value)) }
	}
	return chosen
}
