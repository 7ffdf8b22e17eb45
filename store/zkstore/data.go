package zkstore

import (
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/internal/bootclock"
)

// The data of a node are for people, and for Inspect:
//
//	baton/1 ttl=15s host:4711
//	baton/1 held ttl=15s host:4711
//	baton/1 held ttl=15s,since=1764068400000 host:4711
//
// The second is written when a claim was granted after waiting. The third, which a
// Rename makes of it, says when that was, in milliseconds since 1970.

const dataPrefix, atPrefix = "baton/1 ", ",since="

func (c *claim) data(marked bool) []byte {
	return facts{owner: c.owner, ttl: c.ttl, marked: marked}.data()
}

// facts are what a node's data tell.
type facts struct {
	foreign bool
	owner   string
	ttl     time.Duration // 0 if not known
	marked  bool
	at      int64 // when it was marked, by the server's clock; 0 if the node tells
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
	f.ttl, _ = time.ParseDuration(ttl) // it is only shown
	f.at, _ = strconv.ParseInt(at, 10, 64)
	f.owner = owner
	return f
}

// since is when the contender got the lock, by the server's clock. For a claim that has
// just got it after waiting it is when it joined the queue.
func (f facts) since(stat *zk.Stat) int64 {
	switch {
	case f.marked && f.at > 0:
		return f.at
	case f.marked:
		return stat.Mtime
	}
	return stat.Ctime
}

// serverClock knows roughly what time it is on the server, to show to people.
type serverClock struct {
	mu   sync.Mutex
	said int64 // ms since 1970
	at   time.Time
}

func (c *serverClock) set(ms int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said, c.at = ms, bootclock.Coarse()
}

// since is the age of an event of that time, if that is known.
func (c *serverClock) since(ms int64) (time.Duration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.said == 0 {
		return 0, false
	}
	now := c.said + bootclock.Coarse().Sub(c.at).Milliseconds()
	return time.Duration(max(0, now-ms)) * time.Millisecond, true
}
