package sqlstore

import (
	"sync/atomic"
	"time"
)

// settling is how long connections are kept that replace those to a server that refuses
// changes: a fail-over takes a while, and a server that stays read-only is not asked for a
// connection with each request.
const settling = time.Second

// Moved says when a store leaves its connections because the server has become read-only,
// and the address may lead to another one by now. The zero value is ready, and its methods
// are safe for concurrent use.
type Moved struct{ at atomic.Pointer[time.Time] }

// Leave reports whether the connections are to be left now, which is true at most once a
// second.
func (m *Moved) Leave() bool {
	now, last := time.Now(), m.at.Load()
	return (last == nil || now.Sub(*last) >= settling) && m.at.CompareAndSwap(last, &now)
}

// Since reports whether what was begun at t was left since.
func (m *Moved) Since(t time.Time) bool {
	last := m.at.Load()
	return last != nil && t.Before(*last)
}
