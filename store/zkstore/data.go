package zkstore

import (
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
//
// The second is written when a claim was granted after waiting.

const dataPrefix = "baton/1 "

func (c *claim) data(marked bool) []byte {
	b := make([]byte, 0, len(dataPrefix)+32+len(c.owner))
	b = append(b, dataPrefix...)
	if marked {
		b = append(b, "held "...)
	}
	b = append(b, "ttl="...)
	b = append(b, c.ttl.String()...)
	b = append(b, ' ')
	return append(b, c.owner...)
}

// facts are what a node's data tell.
type facts struct {
	foreign bool
	owner   string
	ttl     time.Duration // 0 if not known
	marked  bool
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
	f.ttl, _ = time.ParseDuration(ttl) // it is only shown
	f.owner = owner
	return f
}

// since is when the contender got the lock, by the server's clock. For a claim that has
// just got it after waiting it is when it joined the queue.
func (f facts) since(stat *zk.Stat) int64 {
	if f.marked {
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
