package main

import (
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A messageWriter writes messages, and waits for their reader for readPatience at most: a
// terminal stops reading at Ctrl-S, and a log collector when it hangs, while locks must be
// renewed, clients answered and commands stopped. Until the reader goes on, Write does not
// wait for it again. It keeps maxUnread messages then, and omits and counts the others.
type messageWriter struct {
	out   io.Writer
	begin sync.Once
	queue chan unread
	stuck atomic.Bool

	mu      sync.Mutex
	omitted int // since the last text of the queue
}

// unread is a text that is to be written.
type unread struct {
	text    []byte
	omitted int           // texts before it
	written chan struct{} // closed then
}

const (
	readPatience = 100 * time.Millisecond
	maxUnread    = 1000

	// lastPatience is how long the end of baton waits for the reader.
	lastPatience = time.Second
)

func newMessages(out io.Writer) *messageWriter {
	return &messageWriter{out: out, queue: make(chan unread, maxUnread)}
}

// Write never fails: that nothing reads the messages changes nothing else.
func (m *messageWriter) Write(text []byte) (int, error) {
	one, ok := m.add(text)
	if ok && !m.stuck.Load() && !one.await(readPatience) {
		m.stuck.Store(true)
	}
	return len(text), nil
}

// flush waits for what was written before, within a bound.
func (m *messageWriter) flush(within time.Duration) {
	if one, ok := m.add(nil); ok {
		one.await(within)
	}
}

func (m *messageWriter) add(text []byte) (one unread, ok bool) {
	m.begin.Do(func() { go m.write() })
	one = unread{text: slices.Clone(text), written: make(chan struct{})}
	m.mu.Lock()
	defer m.mu.Unlock()
	one.omitted = m.omitted
	select {
	case m.queue <- one:
		m.omitted = 0
		return one, true
	default:
		m.omitted++
		return one, false
	}
}

func (u unread) await(within time.Duration) bool {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-u.written:
		return true
	case <-timer.C:
		return false
	}
}

// write ends with the process.
func (m *messageWriter) write() {
	for one := range m.queue {
		if one.omitted > 0 {
			fmt.Fprintf(m.out, "baton: %d messages were omitted here: nothing read them\n", one.omitted)
		}
		_, _ = m.out.Write(one.text)
		m.stuck.Store(false)
		close(one.written)
	}
}
