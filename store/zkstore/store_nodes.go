package zkstore

import (
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/bootclock"
)

// A key is one node below the root. The node's name has %XX for what ZooKeeper cannot
// have: the slash, which would make the lock "a/0" a child of the lock "a"; the percent
// sign itself; the names ".", ".." and "zookeeper"; and all characters from U+D800 on in
// UTF-16, some of which servers refuse.

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

// unescape is the inverse of escape. ok is false for a name that escape never makes.
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

// CheckRoot returns the normalised path of a root, or the reason why it is invalid: "/"
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

// The data of a node are for people, and for Inspect:
//
//	baton/1 ttl=15s host:4711
//	baton/1 held ttl=15s host:4711
//	baton/1 held ttl=15s,since=1764068400000 host:4711
//
// The second is for a claim that was granted after waiting. The third, which Rename makes
// of it, has the time of that, in milliseconds since 1970.

const dataPrefix, atPrefix = "baton/1 ", ",since="

func (c *claim) data(marked bool) []byte {
	return facts{owner: c.owner, ttl: c.ttl, marked: marked}.data()
}

// facts are the content of a node's data.
type facts struct {
	foreign bool
	owner   string
	ttl     time.Duration // 0 if unknown
	marked  bool
	at      int64 // when it was marked, by the server's clock; 0 if the node's own time tells
}

func (f facts) data() []byte {
	b := make([]byte, 0, len(dataPrefix)+64+len(f.owner))
	b = append(b, dataPrefix...)
	if f.marked {
		b = append(b, "held "...)
	}
	b = append(b, "ttl="...)
	b = append(b, f.ttl.String()...)
	if f.at > 0 {
		b = append(b, atPrefix...)
		b = strconv.AppendInt(b, f.at, 10)
	}
	b = append(b, ' ')
	return append(b, f.owner...)
}

func readData(data []byte) facts {
	text, ours := strings.CutPrefix(string(data), dataPrefix)
	if !ours {
		f := facts{foreign: true}
		// kazoo writes its own identifier, Curator the address of its machine.
		if len(text) <= 128 && utf8.ValidString(text) && strings.IndexFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 {
			f.owner = text
		}
		return f
	}
	var f facts
	text, f.marked = strings.CutPrefix(text, "held ")
	ttl, owner, _ := strings.Cut(strings.TrimPrefix(text, "ttl="), " ")
	ttl, at, _ := strings.Cut(ttl, atPrefix)
	f.ttl, _ = time.ParseDuration(ttl) // only for people
	f.at, _ = strconv.ParseInt(at, 10, 64)
	f.owner = owner
	return f
}

// since is when the contender got the lock, by the server's clock; for a claim that has
// just got it after waiting, when it joined the queue.
func (f facts) since(stat *zk.Stat) int64 {
	switch {
	case f.marked && f.at > 0:
		return f.at
	case f.marked:
		return stat.Mtime
	}
	return stat.Ctime
}

// serverClock estimates the time on the server, for people.
type serverClock struct {
	mu   sync.Mutex
	said int64 // ms since 1970
	at   time.Time
}

func (c *serverClock) set(ms int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said, c.at = ms, bootclock.Now()
}

// since is the age of an event at that time, if known.
func (c *serverClock) since(ms int64) (time.Duration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.said == 0 {
		return 0, false
	}
	now := c.said + bootclock.Now().Sub(c.at).Milliseconds()
	return time.Duration(max(0, now-ms)) * time.Millisecond, true
}
