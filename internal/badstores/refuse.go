package badstores

import (
	"time"

	"github.com/batonhq/baton/driver"
)

func (s *Store) heldError(key string, l *lock) error {
	holders, waiters := l.split()
	e := &driver.HeldError{Key: key, Waiting: len(waiters)}
	if len(holders) > 0 {
		h := holders[0]
		e.Owner, e.Age, e.Remaining = h.Owner, time.Since(h.since), max(time.Until(h.end), 0)
		if s.bug == RefusalShowsID {
			e.Owner += " as " + h.ID
		}
	}
	return e
}

// full refuses a request that may not wait. Nil lets it wait.
func (s *Store) full(l *lock, r driver.Request) error {
	holders, waiters := l.split()
	n := len(waiters)
	switch s.bug {
	case LetsOneMoreWait:
		n--
	case CountsTheDead:
		n += l.dead
	case BoundsTheFree:
		n += len(holders)
	}
	if r.MaxWaiting == 0 || n < r.MaxWaiting {
		return nil
	}
	return &driver.QueueFullError{Key: r.Key, Waiting: n}
}
