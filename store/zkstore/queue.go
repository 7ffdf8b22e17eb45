package zkstore

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
)

// readQueue reads a queue. Near the end of the numbers it reads the czxid of each
// contender.
func (s *Store) readQueue(ctx context.Context, parent string) (all []*contender, children []string, err error) {
	children, _, err = s.children(ctx, parent)
	if err != nil {
		return nil, nil, err
	}
	all, err = s.ordered(ctx, parent, children)
	return all, children, err
}

func (s *Store) ordered(ctx context.Context, parent string, children []string) ([]*contender, error) {
	all := queueOf(children)
	if nearOverflow(all) {
		left := all[:0]
		for _, c := range all {
			stat, err := s.exists(ctx, parent+"/"+c.lock)
			if err == zk.ErrNoNode {
				continue // it was deleted meanwhile
			} else if err != nil {
				return nil, err
			}
			c.zxid = stat.Czxid
			left = append(left, c)
		}
		all = left
	}
	order(all)
	return all, nil
}

// The queue of a key is the list of its node's children. Their names contain the
// requests, so a listing suffices. An exclusive request has two nodes, made and deleted
// together, because Curator's two recipes look at different names:
//
//	_c_GUID-lock-0000000007      Curator's mutex
//	_c_GUID-__WRIT__0000000008   Curator's read-write lock
//	_c_GUID-__READ__0000000009   a reader
//	_c_GUID-perm.2.10-0000000010 2 of 10 permits
//
// A writer that became a reader keeps the first node and replaces the second by __READ__
// with the same number, so that it keeps its position.
const (
	markLock  = "lock-"
	markWrite = "__WRIT__"
	markRead  = "__READ__"
	markPerm  = "perm."

	// The marks of kazoo's nodes.
	markKazoo     = "__lock__"
	markKazooRead = "__rlock__"
)

// A contender is one request in a queue: of this process, of another one, or of another
// program.
type contender struct {
	id               string   // the part of the name before the mark
	nodes            []string // names; two for an exclusive request
	lock             string   // the node that is deleted when the request ends
	write            string   // the node that is deleted when readers may pass
	weight, capacity int64
	seq              int32
	zxid             int64 // 0 unless it was read
}

func (c *contender) exclusive() bool { return c.weight == driver.Whole }

// factsNode is the node that says since when the contender holds. For an exclusive
// request it is the second: the first one changes only when the lock is released.
func (c *contender) factsNode() string {
	if c.exclusive() {
		return c.write
	}
	return c.lock
}

// ours reports whether Baton made the nodes. In Curator's names the id has dashes.
func ours(id string) bool {
	return len(id) == len("_c_")+32 && strings.HasPrefix(id, "_c_") && !strings.Contains(id, "-")
}

type child struct {
	id, mark         string // id is the part before the mark
	weight, capacity int64
	seq              int32
}

// parse parses a child's name. ok is false if it is not a contender's.
func parse(name string) (c child, ok bool) {
	for _, mark := range []string{markLock, markWrite, markRead, markKazoo, markKazooRead} {
		i := strings.LastIndex(name, mark)
		if i < 0 {
			continue
		}
		if c.seq, ok = number(name[i+len(mark):]); !ok {
			continue
		}
		c.id, c.mark = strings.TrimSuffix(name[:i], "-"), mark
		c.weight, c.capacity = driver.Whole, driver.Whole
		if mark == markRead || mark == markKazooRead {
			c.weight = 1
		}
		return c, true
	}
	i := strings.LastIndex(name, markPerm)
	if i < 0 {
		return c, false
	}
	what, seq, _ := strings.Cut(name[i+len(markPerm):], "-")
	weight, capacity, _ := strings.Cut(what, ".")
	var err1, err2 error
	c.id, c.mark = strings.TrimSuffix(name[:i], "-"), markPerm
	c.weight, err1 = strconv.ParseInt(weight, 10, 64)
	c.capacity, err2 = strconv.ParseInt(capacity, 10, 64)
	c.seq, ok = number(seq)
	return c, ok && err1 == nil && err2 == nil && c.weight > 0 && c.weight <= c.capacity && c.capacity <= check.MaxPermits
}

// number parses the number that a server appends: ten digits, or eleven characters if it
// is negative.
func number(s string) (int32, bool) {
	if len(s) < 10 || len(s) > 11 || s[0] == '+' || len(s) == 11 && s[0] != '-' {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 32)
	return int32(n), err == nil
}

// queueOf returns the contenders of a listing, unordered.
func queueOf(children []string) []*contender {
	byID := make(map[string]*contender, len(children))
	all := make([]*contender, 0, len(children))
	for _, name := range children {
		ch, ok := parse(name)
		if !ok {
			continue
		}
		c := byID[ch.id]
		if c == nil {
			c = &contender{id: ch.id, weight: ch.weight, capacity: ch.capacity, seq: ch.seq}
			byID[ch.id] = c
			all = append(all, c)
		}
		c.nodes = append(c.nodes, name)
		c.weight = min(c.weight, ch.weight) // a reader's node says that a writer has become a reader
		if ch.seq-c.seq < 0 {
			c.seq = ch.seq
		}
		if c.lock == "" || ch.mark == markLock {
			c.lock = name
		}
		if c.write == "" || ch.mark != markLock {
			c.write = name
		}
	}
	return all
}

// nearOverflow reports whether the sequence numbers are so near their end that only
// czxids show the order: at the end the server repeats the last number.
func nearOverflow(all []*contender) bool {
	const end = 1<<31 - 1<<20
	for _, c := range all {
		if c.seq < 0 || c.seq > end {
			return true
		}
	}
	return false
}

func order(all []*contender) {
	slices.SortFunc(all, func(a, b *contender) int {
		if d := cmp.Compare(a.zxid, b.zxid); d != 0 {
			return d
		}
		return cmp.Compare(uint32(a.seq), uint32(b.seq)) // the negative numbers follow the last positive one
	})
}

// fits reports whether c can hold together with the contenders before it, if all of them
// hold.
func fits(earlier []*contender, c *contender) bool {
	sum := c.weight
	for _, e := range earlier {
		if e.capacity != c.capacity {
			return false
		}
		if sum += e.weight; sum > c.capacity {
			return false
		}
	}
	return true
}

// holders returns how many contenders at the head of an ordered queue hold. No contender
// overtakes, so they are the longest prefix that fits together.
func holders(all []*contender) int {
	used := int64(0)
	for i, c := range all {
		if used += c.weight; i > 0 && (c.capacity != all[0].capacity || used > c.capacity) {
			return i
		}
	}
	return len(all)
}

// verdict is the meaning of an ordered queue for one of its contenders.
type verdict struct {
	missing bool
	granted bool
	at      int // its index in the queue

	// gone are the nodes that must all be deleted before it is granted, nearest first:
	// their owners can never hold together with it.
	gone []string

	// tellsRelease says that the nearest of them belongs to an exclusive request of
	// Baton's. Such a node changes when its owner, after waiting, releases the lock; it
	// does not change when its owner stops waiting. A reader's node also changes when it
	// is renewed.
	tellsRelease bool

	// any is set if gone is empty. The contender then waits for permits: until one of
	// these nodes changes or is deleted.
	any []string

	// next says that any is one node, and that the contender waits until that is marked
	// as held.
	next bool
}

// nearestWent notes that the nearest node of gone was deleted. It reports whether the
// queue must be read: one listing replaces a request for each of several nodes.
func (v *verdict) nearestWent() (several bool) {
	v.gone, v.tellsRelease = v.gone[1:], false
	return len(v.gone) > 1
}

// judge returns the verdict for the contender with that id.
func judge(all []*contender, id string) (v verdict) {
	v.at = slices.IndexFunc(all, func(c *contender) bool { return c.id == id })
	if v.at < 0 {
		v.missing = true
		return v
	}
	me, earlier := all[v.at], all[:v.at]
	if v.granted = fits(earlier, me); v.granted {
		return v
	}
	shared := me.capacity == driver.Whole && !me.exclusive()
	for _, e := range slices.Backward(earlier) {
		switch {
		case e.capacity == me.capacity && !e.exclusive() && !me.exclusive():
			// They may hold together.
		case shared:
			v.gone = append(v.gone, e.write) // a reader waits only for the node that is deleted when a writer becomes a reader
		default:
			if v.gone == nil {
				v.tellsRelease = e.exclusive() && len(e.nodes) == 2 && ours(e.id)
			}
			v.gone = append(v.gone, e.lock)
		}
	}
	if v.gone != nil {
		return v
	}
	// Only permits of the same capacity are left. The contender after the last holder
	// watches all holders. Every other one waits until the contender before it has its
	// permits, which is written in that one's node, or gives up.
	if holders(all) == v.at {
		for _, e := range earlier {
			v.any = append(v.any, e.lock)
		}
	} else {
		v.any, v.next = []string{earlier[v.at-1].lock}, true
	}
	return v
}
