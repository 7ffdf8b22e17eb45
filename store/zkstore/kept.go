package zkstore

import (
	"context"
	"fmt"
	"hash/fnv"
	"iter"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
	"github.com/batonhq/baton/internal/kept"
)

var (
	_ driver.Records      = (*Store)(nil)
	_ driver.RecordLister = (*Store)(nil)
)

// records implements driver.Records and driver.RecordLister. A step takes three requests,
// and every few seconds one more for the time.
type records = kept.Records

// Records are nodes below folders with a name that no key has. There are many folders,
// because a server cannot list one with more than some ten thousand nodes.
const (
	recordsNode   = "%records"
	recordFolders = 4096
)

// Nodes with an expiry are an option of the server that is off by default. So a record
// contains its end, by the server's clock, and counts as gone after it. Processes that
// write records later delete it, a few nodes of some folders at a time.
const (
	sweepOneIn   = 4
	sweepFolders = 8
	sweepLooks   = 16

	// deadFor is how long an expired or forgotten record stays as a node: longer than any
	// session. The versions of a node start again when the node is made again. So a
	// process that reads a node and writes it in the same session cannot meet another
	// node of the same version.
	deadFor = 5 * time.Minute

	// clockAge is the greatest age of the last reading of the server's clock.
	clockAge = 5 * time.Second
)

func (s *Store) recordsRoot() string {
	if s.root == "/" {
		return "/" + recordsNode
	}
	return s.root + "/" + recordsNode
}

func (s *Store) recordFolder(key string) string {
	h := fnv.New32a()
	h.Write([]byte(key))
	return fmt.Sprintf("%s/%03x", s.recordsRoot(), h.Sum32()%recordFolders)
}

func (s *Store) recordPath(key string) string { return s.recordFolder(key) + "/" + escape(key) }

// recordClock is the knowledge of the server's clock.
type recordClock struct {
	mu        sync.Mutex
	said      int64 // ms since 1970
	sent, got time.Time
}

// bounds are the earliest and the latest possible time on the server, in microseconds.
func (c *recordClock) bounds() (from, to int64, age time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := bootclock.Now()
	said := 1000 * c.said
	return said + now.Sub(c.got).Microseconds(), said + 1000 + now.Sub(c.sent).Microseconds(), now.Sub(c.sent)
}

func (c *recordClock) set(said int64, sent time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said, c.sent, c.got = said, sent, bootclock.Now()
}

func (c *recordClock) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent = time.Time{}
}

// recordNow is the time on the server, between two bounds. It asks by a write, because
// the server tells the time only in the answer to one.
func (s *Store) recordNow(ctx context.Context) (from, to int64, err error) {
	for {
		from, to, age := s.recordClock.bounds()
		if age < clockAge {
			return from, to, nil
		}
		stat, t, err := send(ctx, s, true, func(c *zk.Conn) (*zk.Stat, error) { return c.Set(s.recordsRoot(), nil, -1) })
		switch err {
		case nil:
			s.recordClock.set(stat.Mtime, t.sent)
		case zk.ErrNoNode:
			if err := s.makeRecordNode(ctx, s.recordsRoot()); err != nil {
				return 0, 0, err
			}
		default:
			if ctx.Err() == nil {
				err = unavailable(err) // an effect of it does not matter
			}
			return 0, 0, refused("write", s.recordsRoot(), err)
		}
	}
}

// recordNowOf is recordNow at a time when it is certain whether ends has passed, so that
// all processes agree about it: while ends is between the bounds it asks again, for a
// millisecond and a round trip.
func (s *Store) recordNowOf(ctx context.Context, ends int64) (from, to int64, err error) {
	for {
		from, to, err = s.recordNow(ctx)
		if err != nil || from < ends == (to < ends) {
			return from, to, err
		}
		s.recordClock.forget()
	}
}

// makeRecordNode makes a folder, and a missing root.
func (s *Store) makeRecordNode(ctx context.Context, path string) error {
	for {
		_, _, err := send(ctx, s, true, func(c *zk.Conn) (string, error) { return c.Create(path, nil, zk.FlagPersistent, s.acl) })
		switch {
		case err == nil || err == zk.ErrNodeExists:
			return nil
		case err != zk.ErrNoNode:
			return refused("create", path, err)
		}
		if path == s.recordsRoot() {
			err = s.makeRoot(ctx)
		} else {
			err = s.makeRecordNode(ctx, s.recordsRoot())
		}
		if err != nil {
			return err
		}
	}
}

// A textNode is a text on the server: the times of the write and of the end, in
// microseconds of the server's clock, and the text, separated by spaces. An empty text
// was removed. The text of another program does not end.
type textNode struct {
	text    string
	at      int64 // the latest possible time of the write
	ends    int64
	exists  bool
	version int32
	link    *link // of the session that it was read in
}

func textNodeOf(data []byte) (n textNode, ours bool) {
	numbers := strings.SplitN(string(data), " ", 3)
	if len(numbers) == 3 {
		var errAt, errEnds error
		n.at, errAt = strconv.ParseInt(numbers[0], 10, 64)
		n.ends, errEnds = strconv.ParseInt(numbers[1], 10, 64)
		n.text, ours = numbers[2], errAt == nil && errEnds == nil
	}
	if !ours {
		n = textNode{text: string(data), ends: math.MaxInt64}
	}
	return n, ours
}

// is is the text at a time on the server between two bounds.
func (n textNode) is(key string, from, to int64) kept.Text {
	if n.text == "" || n.ends <= from {
		return kept.Text{}
	}
	// Another process may have written it with a later upper bound than this one's.
	return kept.Text{Key: key, Text: n.text, Left: time.Duration(max(n.ends-max(to, n.at), 0)) * time.Microsecond}
}

// readRecord reads the server's record, after all earlier writes.
func (s *Store) readRecord(ctx context.Context, key string) (k textNode, err error) {
	if s.closed.Load() {
		return k, driver.ErrClosed
	}
	path := s.recordPath(key)
	// A server that lags behind would answer with an old state.
	if err := s.sync(ctx); err != nil && err != zk.ErrNoNode {
		return k, refused("sync", s.root, err)
	}
	n, t, err := send(ctx, s, false, func(c *zk.Conn) (nodeData, error) {
		data, stat, err := c.Get(path)
		return nodeData{data, stat}, err
	})
	if err == nil {
		k, _ = textNodeOf(n.data)
		k.exists, k.version = true, n.stat.Version
	} else if err != zk.ErrNoNode {
		return k, refused("read", path, err)
	}
	k.link = t.link
	return k, nil
}

// swapText reads the text and writes the next one, until the node has not changed in
// between.
func (s *Store) swapText(ctx context.Context, _ kept.Folder, key, old, next string, keep time.Duration) (is kept.Text, swapped bool, err error) {
	for {
		n, err := s.readRecord(ctx, key)
		if err != nil {
			return kept.Text{}, false, err
		}
		from, to, err := s.recordNowOf(ctx, n.ends)
		if err != nil {
			return kept.Text{}, false, err
		}
		if is = n.is(key, from, to); is.Text != old || old == next && next == "" {
			return is, is.Text == old, nil
		}
		ends := to + (keep + time.Microsecond - 1).Microseconds()
		written, err := s.writeRecord(ctx, key, n, fmt.Appendf(nil, "%d %d %s", to, ends, next))
		if err != nil {
			return kept.Text{}, false, err
		}
		if written {
			if rand.N(sweepOneIn) == 0 {
				s.sweepRecords()
			}
			return kept.Text{Text: next, Left: keep}, true, nil
		}
	}
}

// writeRecord replaces the record that was read. It reports whether that was unchanged.
func (s *Store) writeRecord(ctx context.Context, key string, k textNode, text []byte) (bool, error) {
	path := s.recordPath(key)
	if k.link.id != s.session.link().id {
		return false, nil // too late to compare versions
	}
	var err error
	if k.exists {
		_, _, err = send(ctx, s, true, func(c *zk.Conn) (*zk.Stat, error) { return c.Set(path, text, k.version) })
	} else {
		_, _, err = send(ctx, s, true, func(c *zk.Conn) (string, error) { return c.Create(path, text, zk.FlagPersistent, s.acl) })
	}
	switch err {
	case nil:
		return true, nil
	case zk.ErrBadVersion, zk.ErrNodeExists:
		return false, nil
	case zk.ErrNoNode:
		if !k.exists {
			err = s.makeRecordNode(ctx, s.recordFolder(key))
			return false, err
		}
		return false, nil
	}
	return false, refused("write", path, err)
}

// listTexts lists every folder, and yields uncut texts.
func (s *Store) listTexts(ctx context.Context, _ kept.Folder, prefix string) iter.Seq2[kept.Text, error] {
	return func(yield func(kept.Text, error) bool) {
		err := s.listRecords(ctx, prefix, func(is kept.Text) bool { return yield(is, nil) })
		if err != nil {
			yield(kept.Text{}, err)
		}
	}
}

func (s *Store) listRecords(ctx context.Context, prefix string, show func(kept.Text) bool) error {
	if s.closed.Load() {
		return driver.ErrClosed
	}
	if err := s.sync(ctx); err != nil && err != zk.ErrNoNode {
		return refused("sync", s.root, err)
	}
	folders, _, err := s.children(ctx, s.recordsRoot())
	if err == zk.ErrNoNode {
		return nil // there was never a record
	} else if err != nil {
		return refused("list", s.recordsRoot(), err)
	}
	const page = 4 * parallel // of folders, and of records
	for len(folders) > 0 {
		some := folders[:min(len(folders), page)]
		folders = folders[len(some):]
		names, errs := make([][]string, len(some)), make([]error, len(some))
		each(len(some), func(i int) { names[i], _, errs[i] = s.children(ctx, s.recordsRoot()+"/"+some[i]) })
		var keys []string
		for i, all := range names {
			if errs[i] != nil && errs[i] != zk.ErrNoNode {
				return refused("list", s.recordsRoot()+"/"+some[i], errs[i])
			}
			for _, name := range all {
				if key, ok := unescape(name); ok && strings.HasPrefix(key, prefix) {
					keys = append(keys, key)
				}
			}
		}
		for len(keys) > 0 {
			some := keys[:min(len(keys), page)]
			keys = keys[len(some):]
			if more, err := s.showRecords(ctx, some, show); err != nil || !more {
				return err
			}
		}
	}
	return nil
}

// showRecords shows the records of keys. more is the last result of show.
func (s *Store) showRecords(ctx context.Context, keys []string, show func(kept.Text) bool) (more bool, err error) {
	data, errs := make([]nodeData, len(keys)), make([]error, len(keys))
	each(len(keys), func(i int) { data[i], errs[i] = s.get(ctx, s.recordPath(keys[i])) })
	from, to, err := s.recordNow(ctx)
	if err != nil {
		return false, err
	}
	for i, key := range keys {
		if errs[i] == zk.ErrNoNode {
			continue // it was deleted meanwhile
		} else if errs[i] != nil {
			return false, refused("read", s.recordPath(key), errs[i])
		}
		n, _ := textNodeOf(data[i].data)
		if is := n.is(key, from, to); is.Text != "" && !show(is) {
			return false, nil
		}
	}
	return true, nil
}

// sweepRecords deletes expired records among a few nodes of some folders, in the
// background, unless this process already does.
func (s *Store) sweepRecords() {
	if !s.sweeping.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer s.sweeping.Store(false)
		ctx, cancel := context.WithTimeout(s.life, 10*time.Second)
		defer cancel()
		_ = s.sweepSome(ctx) // the rest is for another time
	}()
}

func (s *Store) sweepSome(ctx context.Context) error {
	folders, _, err := s.children(ctx, s.recordsRoot())
	if err != nil {
		return err
	}
	rand.Shuffle(len(folders), func(i, j int) { folders[i], folders[j] = folders[j], folders[i] })
	looks := 0
	for _, f := range folders[:min(len(folders), sweepFolders)] {
		n, err := s.sweepFolder(ctx, s.recordsRoot()+"/"+f, sweepLooks-looks)
		if looks += n; err != nil || looks == sweepLooks {
			return err
		}
	}
	return nil
}

// sweepFolder looks at no more than most nodes.
func (s *Store) sweepFolder(ctx context.Context, folder string, most int) (looks int, err error) {
	names, _, err := s.children(ctx, folder)
	if err != nil {
		return 0, err
	}
	from, _, err := s.recordNow(ctx)
	if err != nil {
		return 0, err
	}
	rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, name := range names[:min(len(names), most)] {
		looks++
		path := folder + "/" + name
		n, err := s.get(ctx, path)
		if err == zk.ErrNoNode {
			continue
		} else if err != nil {
			return looks, err
		}
		text, ours := textNodeOf(n.data)
		if !ours || text.ends+s.deadFor.Microseconds() > from {
			continue // another program's node
		}
		_, _, err = send(ctx, s, true, func(c *zk.Conn) (struct{}, error) { return struct{}{}, c.Delete(path, n.stat.Version) })
		if err != nil && err != zk.ErrNoNode && err != zk.ErrBadVersion {
			return looks, err
		}
	}
	return looks, nil
}
