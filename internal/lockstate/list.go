package lockstate

// list is a doubly linked list. The links are within the claims, so removal costs the
// same everywhere.
type list struct {
	link        func(*claim) *link
	first, last *claim
	len         int
}

type link struct{ prev, next *claim }

func (l *list) push(c *claim) {
	*l.link(c) = link{prev: l.last}
	if l.last == nil {
		l.first = c
	} else {
		l.link(l.last).next = c
	}
	l.last = c
	l.len++
}

func (l *list) remove(c *claim) {
	at := l.link(c)
	if at.prev == nil {
		l.first = at.next
	} else {
		l.link(at.prev).next = at.next
	}
	if at.next == nil {
		l.last = at.prev
	} else {
		l.link(at.next).prev = at.prev
	}
	*at = link{}
	l.len--
}

// all iterates in order. The current claim may be removed.
func (l *list) all(yield func(*claim) bool) {
	for c := l.first; c != nil; {
		next := l.link(c).next
		if !yield(c) {
			return
		}
		c = next
	}
}
