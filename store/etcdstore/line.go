package etcdstore

import "slices"

// A line is one key's queue, updated name by name. An update costs about the same
// whatever the length.
type line struct {
	queue []contender      // in order
	revs  map[string]int64 // when each name was made
	bare  int              // how many names have no lease
}

func newLine(queue []contender) line {
	l := line{queue: queue, revs: make(map[string]int64, len(queue))}
	for _, c := range queue {
		l.count(c, 1)
		l.revs[c.name] = c.rev
	}
	return l
}

func (l *line) count(c contender, n int) {
	if c.lease == 0 {
		l.bare += n
	}
}

// at returns the index of the contender with that age, or where it would be.
func (l *line) at(rev int64, name string) (i int, ok bool) {
	return slices.BinarySearchFunc(l.queue, contender{rev: rev, name: name}, byAge)
}

// before returns the contender right before the one with that age.
func (l *line) before(rev int64, name string) (before contender, ok bool) {
	i, ok := l.at(rev, name)
	if !ok || i == 0 {
		return before, false
	}
	return l.queue[i-1], true
}

// last returns the youngest contender other than the one with that name. ok is false if
// there is none, or if a name of the queue is not a lock.
func (l *line) last(but string) (last contender, ok bool) {
	n := len(l.queue)
	if n > 0 && l.queue[n-1].name == but {
		n--
	}
	if n == 0 || l.bare > 0 {
		return last, false
	}
	return l.queue[n-1], true
}

// remove returns what it has removed, if the name was there.
func (l *line) remove(name string) (gone contender, ok bool) {
	rev, ok := l.revs[name]
	if !ok {
		return gone, false
	}
	i, _ := l.at(rev, name)
	gone = l.queue[i]
	l.count(gone, -1)
	delete(l.revs, name)
	if i == 0 { // the one that leaves is nearly always the first
		l.queue[0] = contender{}
		l.queue = l.queue[1:]
	} else {
		l.queue = slices.Delete(l.queue, i, i+1)
	}
	return gone, true
}

// put notes a name that was made, or whose value or lease has changed. It returns the
// older contender of that name that it replaced, if any.
func (l *line) put(c contender) (gone contender, ok bool) {
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
