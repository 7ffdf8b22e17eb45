package zkstore

import (
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/batonhq/baton/driver/check"
)

// A key is one node below the root. A key's name in ZooKeeper has %XX for what
// ZooKeeper cannot carry: the slash, which would make the lock "a/0" a child of the
// lock "a"; the percent sign itself; the names ".", ".." and "zookeeper"; and all
// characters from U+D800 on in UTF-16, some of which servers refuse.

const digits = "0123456789ABCDEF"

// escape returns the name of the key's node.
func escape(key string) string {
	switch key {
	case ".", "..", "zookeeper":
		return percent(key[:1]) + strings.ReplaceAll(key[1:], ".", "%2E")
	}
	clean := true
	for i := 0; clean && i < len(key); i++ {
		clean = key[i] != '/' && key[i] != '%' && key[i] < 0xed
	}
	if clean {
		return key
	}
	var b strings.Builder
	for _, r := range key {
		if r == '/' || r == '%' || r >= 0xd800 {
			b.WriteString(percent(string(r)))
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

func percent(s string) string {
	b := make([]byte, 0, 3*len(s))
	for i := range len(s) {
		b = append(b, '%', digits[s[i]>>4], digits[s[i]&15])
	}
	return string(b)
}

// unescape returns the key of a node's name. ok is false if escape never
// makes that name.
func unescape(name string) (key string, ok bool) {
	key = name
	if strings.Contains(name, "%") {
		b := make([]byte, 0, len(name))
		for i := 0; i < len(name); i++ {
			if name[i] != '%' {
				b = append(b, name[i])
				continue
			}
			if i+3 > len(name) {
				return "", false
			}
			n, err := strconv.ParseUint(name[i+1:i+3], 16, 8)
			if err != nil {
				return "", false
			}
			b = append(b, byte(n))
			i += 2
		}
		key = string(b)
	}
	return key, check.Key(key) == nil && escape(key) == name
}

// CheckRoot returns the path of a root in its plain form, or why it is not valid: "/"
// for all of ZooKeeper, or names between single slashes.
func CheckRoot(root string) (string, error) {
	root = "/" + strings.Trim(root, "/")
	if root == "/" {
		return root, nil
	}
	if !utf8.ValidString(root) {
		return "", errors.New("it is not UTF-8")
	}
	for part := range strings.SplitSeq(root[1:], "/") {
		switch part {
		case "":
			return "", errors.New("it has two slashes in a row")
		case ".", "..":
			return "", errors.New(`ZooKeeper knows no "." and ".."`)
		}
	}
	if root == "/zookeeper" || strings.HasPrefix(root, "/zookeeper/") {
		return "", errors.New("/zookeeper belongs to ZooKeeper itself")
	}
	for _, r := range root {
		if r < ' ' || r >= 0x7f && r <= 0x9f || r >= 0xd800 {
			return "", errors.New("it has a character that ZooKeeper refuses")
		}
	}
	return root, nil
}

// parent returns the path of the key's node.
func (s *Store) parent(key string) string {
	if s.root == "/" {
		return "/" + escape(key)
	}
	return s.root + "/" + escape(key)
}
