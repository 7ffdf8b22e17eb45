package rules

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf8"
)

// longestKey is the length of the longest key of a descriptor in a store that is not a
// hash.
const longestKey = 400

// storeKey is the key in the store of a request's entries: {shop}/path=/api,user=alice
// and for a limit with a name #day after that. The braces keep a domain in one slot of a
// Redis Cluster. A long key is a hash.
func storeKey(prefix string, entries []string, limit string) string {
	key := strings.Join(entries, ",")
	if len(key) > longestKey-len(prefix)-len(limit) {
		sum := sha256.Sum256([]byte(key))
		key = "#" + hex.EncodeToString(sum[:])
	}
	if limit != "" {
		key += "#" + escape(limit)
	}
	return prefix + key
}

// escape escapes characters that are illegal or have a meaning in a key.
func escape(s string) string { return escaped(s, "%,=#*{}") }

// escapePattern leaves the stars, which no escaped value has.
func escapePattern(s string) string { return escaped(s, "%,=#{}") }

func escaped(s, special string) string {
	clean := true
	for i := range len(s) {
		if b := s[i]; b < 0x20 || b >= 0x7f || strings.IndexByte(special, b) >= 0 {
			clean = false
			break
		}
	}
	if clean {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 || r < 0x20 || r >= 0x7f && r <= 0x9f || r < 0x7f && strings.IndexByte(special, byte(r)) >= 0 {
			for _, c := range []byte(s[i : i+n]) {
				fmt.Fprintf(&b, "%%%02X", c)
			}
		} else {
			b.WriteString(s[i : i+n])
		}
		i += n
	}
	return b.String()
}
