package front

import (
	"encoding/base64"
	"strings"
)

// Credentials is a value of Authorization in one spelling: servers accept the name
// of its scheme in any case, with any space around it, and the base64 of Basic with
// any bits that decode to nothing. A client that spelled one token in six ways
// would have six budgets. A value of one word has no scheme, and its case counts.
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

// Careful is how a header becomes a part of a key: as chosen, unless the header's
// name says that its value is a secret.
func Careful(header string, chosen func(name, value string) string) func(name, value string) string {
	switch header {
	case "cookie":
		return Secret
	case "authorization", "proxy-authorization":
		return func(name, value string) string { return Secret(name, Credentials(value)) }
	}
	return chosen
}
