package redisstore

import (
	"strconv"
	"strings"
	"sync"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
)

// names makes the names of the server's keys.
//
// The lock itself is <prefix><key>, as other programs may know it. Its other data are at
// <prefix>baton:<kind>:<rest>, which in Cluster must share the lock's slot. The rest is
//
//	{<prefix><key>}        usually: the braces make the slot that of the lock
//	{<tag>}:<prefix><key>  if the lock's name has a tag of its own: {user1}.cart
//	{<slot tag>}:<prefix><key>  if it has none, but has a brace that would end
//	                       the tag too soon: a}b or {}x
//	<key>                  if the prefix has a tag, which then decides the slot
//
// Limits and records have only such names, those of the lock with the same key.
//
// These forms never collide: the first has one closing brace, at its end; the others have
// the same tag only for the same lock.
type names struct {
	prefix  string
	own     string // prefix + "baton:"
	fixed   bool   // the prefix has a tag
	cluster bool
	counter string // T and H of all locks, except in Cluster
	high    string
}

// lockNames are the keys of one lock.
type lockNames struct {
	lock, counter, high string

	own                   string
	before, middle, after string // parts of the other names
}

func (n lockNames) queue() string   { return n.own + "q:" + n.before + n.middle + n.after }
func (n lockNames) waiters() string { return n.own + "w:" + n.before + n.middle + n.after }
func (n lockNames) shared() string  { return n.own + "s:" + n.before + n.middle + n.after }
func (n lockNames) info() string    { return n.own + "i:" + n.before + n.middle + n.after }

// limit is the name of the state of the limit with the same key, and id that of a request
// with an ID. An ID has no colon and no brace.
func (n lockNames) limit() string { return n.own + "r:" + n.before + n.middle + n.after }

// record is the name of the operation's record with the same key.
func (n lockNames) record() string { return n.own + "o:" + n.before + n.middle + n.after }

// overrides is the name of the overrides of all limits.
func (n *names) overrides() string { return n.own + "V" }

func (n lockNames) id(id string) string {
	return n.own + "d:" + id + ":" + n.before + n.middle + n.after
}

// full are the keys for the scripts that read all data of a lock.
func (n lockNames) full() []string {
	return []string{n.lock, n.counter, n.high, n.queue(), n.waiters(), n.shared(), n.info()}
}

func newNames(prefix string, cluster bool) (*names, error) {
	n := &names{prefix: prefix, own: prefix + "baton:", cluster: cluster}
	if prefix != "" {
		if err := check.Key(prefix); err != nil {
			return nil, &driver.KeyError{Key: prefix, Reason: "as a prefix: " + strings.TrimPrefix(err.Error(), "bad key ")}
		}
	}
	if strings.Contains(prefix, "baton:") {
		return nil, &driver.KeyError{Key: prefix, Reason: "as a prefix on Redis it may not contain baton:, where programs with another prefix, or none, keep what belongs to their locks"}
	}
	if strings.Contains(prefix, "{") {
		if tag(prefix) == "" {
			return nil, &driver.KeyError{Key: prefix, Reason: "as a prefix it may contain a brace only as a complete hash tag, like {app}:"}
		}
		n.fixed = true
	}
	if !cluster || n.fixed {
		n.counter, n.high = n.own+"T", n.own+"H"
	}
	return n, nil
}

// of returns the keys of one lock. It refuses a key that could collide with the store's
// own names, or those of a program with another prefix.
func (n *names) of(key string) (lockNames, error) {
	l := n.beside(key)
	if reserved(l.lock) {
		return lockNames{}, &driver.KeyError{Key: key, Reason: "on Redis, names with baton: and one of T H V q: w: s: i: r: d: o: are the store's own"}
	}
	l.counter, l.high = n.counter, n.high
	if l.counter == "" {
		slotTag := tagOf(slot(l.lock))
		l.counter, l.high = n.own+"T:{"+slotTag+"}", n.own+"H:{"+slotTag+"}"
	}
	return l, nil
}

// reserved reports whether name would be one of the store's own with some prefix.
func reserved(name string) bool {
	for {
		_, after, found := strings.Cut(name, "baton:")
		if !found {
			return false
		}
		if after != "" && strings.IndexByte("THVqwsirdo", after[0]) >= 0 && (len(after) == 1 || after[1] == ':') {
			return true
		}
		name = after
	}
}

// beside returns the names of the data of a key. A limit or a record may have any key,
// because the key itself is never its name.
func (n *names) beside(key string) lockNames {
	l := lockNames{lock: n.prefix + key, own: n.own}
	switch {
	case n.fixed:
		l.middle = key
	case strings.IndexByte(l.lock, '}') < 0:
		l.before, l.middle, l.after = "{", l.lock, "}"
	default:
		t := tag(l.lock)
		if t == "" {
			t = tagOf(slot(l.lock))
		}
		l.before, l.middle = "{"+t+"}:", l.lock
	}
	return l
}

// keyOf is the key in a name of a kind, such as "q:". ok is false for other names.
func (n *names) keyOf(kind, name string) (string, bool) {
	rest, ok := strings.CutPrefix(name, n.own+kind)
	if !ok {
		return "", false
	}
	if n.fixed {
		return rest, true
	}
	rest, ok = strings.CutPrefix(rest, "{")
	if !ok {
		return "", false
	}
	inner, after, ok := strings.Cut(rest, "}")
	if !ok {
		return "", false
	}
	lock := inner
	if after != "" {
		if lock, ok = strings.CutPrefix(after, ":"); !ok {
			return "", false
		}
	}
	return strings.CutPrefix(lock, n.prefix)
}

// tag is the part of a name that decides its slot, "" if all of it does.
func tag(name string) string {
	_, after, ok := strings.Cut(name, "{")
	if !ok {
		return ""
	}
	inner, _, ok := strings.Cut(after, "}")
	if !ok {
		return ""
	}
	return inner
}

const slots = 16384

func slot(name string) uint16 {
	if t := tag(name); t != "" {
		name = t
	}
	return crc16(name) % slots
}

var crcTable = func() (t [256]uint16) { // CCITT, as the Cluster specification has it
	for i := range t {
		c := uint16(i) << 8
		for range 8 {
			if c&0x8000 != 0 {
				c = c<<1 ^ 0x1021
			} else {
				c <<= 1
			}
		}
		t[i] = c
	}
	return
}()

func crc16(s string) (c uint16) {
	for i := range len(s) {
		c = c<<8 ^ crcTable[byte(c>>8)^s[i]]
	}
	return c
}

// slotTags has for each slot a short text on it. Only Cluster and names with odd braces
// need it, so it is computed at its first use, from some 150 000 texts.
var slotTags = sync.OnceValue(func() *[slots]string {
	var tags [slots]string
	for n, left := 0, slots; left > 0; n++ {
		t := strconv.FormatInt(int64(n), 36)
		if s := crc16(t) % slots; tags[s] == "" {
			tags[s] = t
			left--
		}
	}
	return &tags
})

func tagOf(slot uint16) string { return slotTags()[slot] }
