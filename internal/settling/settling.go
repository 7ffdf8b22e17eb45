// Package settling prevents repeated reactions to one failover or lost answer: a server
// that stays read-only does not get new connections with each request, and one answer
// does not mean that a server has recovered.
package settling

import (
	"sync/atomic"
	"time"
)

// Time is how long connections are kept that replace those to a wrong server: a failover
// takes a while, and late answers come on earlier connections.
const Time = time.Second

// A Mark is the time of an event's last occurrence. The zero Mark has none. The methods
// are safe for concurrent use.
type Mark struct{ at atomic.Pointer[time.Time] }

func (m *Mark) Set() {
	now := time.Now()
	m.at.Store(&now)
}

// TrySet is Set unless the event occurred within the last Time, and reports whether it
// has set the mark. Of several concurrent callers one does.
func (m *Mark) TrySet() bool {
	now, last := time.Now(), m.at.Load()
	return (last == nil || now.Sub(*last) >= Time) && m.at.CompareAndSwap(last, &now)
}

// Recent reports whether the event occurred within the last Time. If not, it resets m to
// the zero Mark, so that later calls need not read the clock.
func (m *Mark) Recent() bool {
	last := m.at.Load()
	return last != nil && (time.Since(*last) < Time || !m.at.CompareAndSwap(last, nil))
}

// Since reports whether the event occurred after t.
func (m *Mark) Since(t time.Time) bool {
	last := m.at.Load()
	return last != nil && t.Before(*last)
}
