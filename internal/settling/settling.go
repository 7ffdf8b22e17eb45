// Package settling keeps what follows a fail-over or a lost answer from happening again and
// again: a server that stays read-only is not asked for new connections with each request,
// and one answer does not mean that a server has recovered.
package settling

import (
	"sync/atomic"
	"time"
)

// Time is how long connections are kept that replace those to a wrong server: a fail-over
// takes a while, and late answers come on connections from before.
const Time = time.Second

// A Mark is when something last happened. The zero Mark is ready: it never did. The methods
// are safe for concurrent use.
type Mark struct{ at atomic.Pointer[time.Time] }

// Set says that it happens now.
func (m *Mark) Set() {
	now := time.Now()
	m.at.Store(&now)
}

// TrySet is Set unless it happened within the last Time, and reports whether it was set. Of
// several callers at the same time one sets it.
func (m *Mark) TrySet() bool {
	now, last := time.Now(), m.at.Load()
	return (last == nil || now.Sub(*last) >= Time) && m.at.CompareAndSwap(last, &now)
}

// Recent reports whether it happened within the last Time. If not, m is the zero Mark
// again, and costs callers no look at the clock.
func (m *Mark) Recent() bool {
	last := m.at.Load()
	return last != nil && (time.Since(*last) < Time || !m.at.CompareAndSwap(last, nil))
}

// Since reports whether it happened after t.
func (m *Mark) Since(t time.Time) bool {
	last := m.at.Load()
	return last != nil && t.Before(*last)
}
