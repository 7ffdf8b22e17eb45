package etcdstore

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	mvccpb "go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
)

// dir is the prefix of all contenders' names for a key.
func (s *Store) dir(key string) string { return s.prefix + key + "/" }

// dirEnd is the end of the range that begins with dir: "0" follows "/".
func dirEnd(dir string) string { return dir[:len(dir)-1] + "0" }

// keyOf is the inverse of dir: a contender's name has no slash, so the key ends at the
// last slash of the full name.
func (s *Store) keyOf(name string) (key string, ok bool) {
	rest, ok := strings.CutPrefix(name, s.prefix)
	slash := strings.LastIndexByte(rest, '/')
	if !ok || slash < 1 || check.Key(rest[:slash]) != nil {
		return "", false
	}
	return rest[:slash], true
}

// ownName is the process's nth name in the queue of one key. The names are few and are
// reused: every name that was ever used slows the server down until the next compaction.
func (s *Store) ownName(dir string, n int) string {
	if n == 0 {
		return dir + s.process
	}
	return dir + s.process + "-" + strconv.Itoa(n)
}

// value is the content of a contender's name, for people with etcdctl and for other
// processes.
type value struct {
	Baton    int    `json:"baton"` // the format; 1
	Owner    string `json:"owner"`
	Weight   int64  `json:"weight,omitempty"`   // 0: exclusive
	Capacity int64  `json:"capacity,omitempty"` // 0: exclusive, or a reader
	ID       string `json:"id"`
}

func encode(c driver.Claim) string {
	v := value{Baton: 1, Owner: c.Owner, ID: c.ID}
	if !c.Exclusive() {
		v.Weight = c.Weight
	}
	if c.Capacity != driver.Whole {
		v.Capacity = c.Capacity
	}
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // cannot fail
	}
	return string(text)
}

// A contender is one name below a key: a holder or a waiter.
type contender struct {
	driver.Claim
	name    string
	value   string
	rev     int64 // create revision: the order in the queue, and the token
	mod     int64 // mod revision
	lease   int64 // 0: not a lock
	foreign bool  // not Baton's: treated as an exclusive request
}

// contenderOf parses a name below dir. ok is false for a name of another key, which has a
// slash after dir.
func contenderOf(dir, key string, kv *mvccpb.KeyValue) (c contender, ok bool) {
	name := string(kv.Key)
	if strings.Contains(name[len(dir):], "/") {
		return c, false
	}
	c = contender{
		name: name, value: string(kv.Value), rev: kv.CreateRevision, mod: kv.ModRevision, lease: kv.Lease,
		Claim: driver.Claim{Key: key, Weight: driver.Whole, Capacity: driver.Whole},
	}
	var v value
	if json.Unmarshal(kv.Value, &v) != nil || v.Baton != 1 || v.ID == "" {
		c.foreign = true
		return c, true
	}
	c.ID, c.Owner = v.ID, v.Owner
	if v.Weight > 0 {
		c.Weight = v.Weight
	}
	if v.Capacity > 0 {
		c.Capacity = v.Capacity
	}
	return c, true
}

// contenders are the contenders in a range below dir, in the order of the queue.
func contenders(dir, key string, kvs []*mvccpb.KeyValue) []contender {
	all := make([]contender, 0, len(kvs))
	for _, kv := range kvs {
		if c, ok := contenderOf(dir, key, kv); ok {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, byAge)
	return all
}

// byAge is the order of the queue. Names of one transaction are in the order of the
// names.
func byAge(a, b contender) int {
	return cmp.Or(cmp.Compare(a.rev, b.rev), strings.Compare(a.name, b.name))
}

// holders is how many of the queue hold: its head, and all that fit beside it, up to the
// first that does not. A contender that leaves only makes room, so a holder stays one
// until it leaves.
func holders(queue []contender) int {
	var used int64
	for i, c := range queue {
		if i > 0 && (c.Capacity != queue[0].Capacity || used+c.Weight > c.Capacity) {
			return i
		}
		used += c.Weight
	}
	return len(queue)
}

// find returns the index of the contender with the claim's ID, or -1.
func find(queue []contender, id string) int {
	return slices.IndexFunc(queue, func(c contender) bool { return !c.foreign && c.ID == id })
}

// A queueIndex is one key's queue, updated name by name. An update costs about the same
// at any length.
type queueIndex struct {
	queue        []contender      // in order
	revs         map[string]int64 // when each name was made
	withoutLease int              // names without a lease
}

func newQueueIndex(queue []contender) queueIndex {
	l := queueIndex{queue: queue, revs: make(map[string]int64, len(queue))}
	for _, c := range queue {
		l.count(c, 1)
		l.revs[c.name] = c.rev
	}
	return l
}

func (l *queueIndex) count(c contender, n int) {
	if c.lease == 0 {
		l.withoutLease += n
	}
}

// at returns the index of the contender with that age, or its place.
func (l *queueIndex) at(rev int64, name string) (i int, ok bool) {
	return slices.BinarySearchFunc(l.queue, contender{rev: rev, name: name}, byAge)
}

// before returns the contender right before the one with that age.
func (l *queueIndex) before(rev int64, name string) (before contender, ok bool) {
	i, ok := l.at(rev, name)
	if !ok || i == 0 {
		return before, false
	}
	return l.queue[i-1], true
}

// last returns the youngest contender except but. ok is false if there is none, or if a
// name of the queue is not a lock.
func (l *queueIndex) last(but string) (last contender, ok bool) {
	n := len(l.queue)
	if n > 0 && l.queue[n-1].name == but {
		n--
	}
	if n == 0 || l.withoutLease > 0 {
		return last, false
	}
	return l.queue[n-1], true
}

// remove returns the removed contender, if there was one.
func (l *queueIndex) remove(name string) (gone contender, ok bool) {
	rev, ok := l.revs[name]
	if !ok {
		return gone, false
	}
	i, _ := l.at(rev, name)
	gone = l.queue[i]
	l.count(gone, -1)
	delete(l.revs, name)
	if i == 0 { // usually the first one leaves
		l.queue[0] = contender{}
		l.queue = l.queue[1:]
	} else {
		l.queue = slices.Delete(l.queue, i, i+1)
	}
	return gone, true
}

// put notes a name that was made, or whose value or lease has changed. It returns the
// older contender of that name that it replaced, if any.
func (l *queueIndex) put(c contender) (gone contender, ok bool) {
	if i, ok := l.at(c.rev, c.name); ok {
		l.count(l.queue[i], -1)
		l.count(c, 1)
		l.queue[i] = c
		return gone, false
	}
	gone, ok = l.remove(c.name)
	i, _ := l.at(c.rev, c.name)
	l.count(c, 1)
	l.revs[c.name] = c.rev
	l.queue = slices.Insert(l.queue, i, c)
	return gone, ok
}

func (s *Store) list(ctx context.Context, k *lock) ([]contender, error) {
	resp, err := s.read(ctx, hedgeWithoutTTL, rangeRequest(k.dir))
	if err != nil {
		return nil, readFailure(ctx, err)
	}
	return contenders(k.dir, k.key, resp.Kvs), nil
}

// notLock is the error about a name without a lease, if there is one.
func notLock(key string, queue []contender) error {
	for _, e := range queue {
		if e.lease == 0 {
			return &driver.NotLockError{Key: key, Store: traits.Store, Found: "a name below it without a lease (" + e.name + ")"}
		}
	}
	return nil
}

// differs is the error about a claim with another capacity than the one in use.
func differs(c driver.Claim, queue []contender) error {
	if h := queue[0]; !h.Exclusive() && !c.Exclusive() && h.Capacity != c.Capacity {
		return &driver.CapacityError{Key: c.Key, InUse: h.Capacity, Asked: c.Capacity}
	}
	return nil
}

// fits reports whether a new claim would hold at once.
func fits(queue []contender, c driver.Claim) bool {
	return holders(append(queue[:len(queue):len(queue)], contender{Claim: c})) == len(queue)+1
}
