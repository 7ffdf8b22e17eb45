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
// terminal stops at Ctrl-S, and a log collector may hang, while locks must be renewed,
// clients answered and commands stopped. Until the reader continues, Write does not wait
// for it again: maxUnread messages are kept then, and further ones omitted and counted.
type messageWriter struct {
	out   io.Writer
	begin sync.Once
	queue chan unread
	stuck atomic.Bool

	mu      sync.Mutex
	omitted int // since the last text in the queue
}

// unread is a text to be written.
type unread struct {
	text    []byte
	omitted int           // texts omitted before it
	written chan struct{} // closed when it is written
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

// Write never fails: baton behaves the same if nothing reads its messages.
func (m *messageWriter) Write(text []byte) (int, error) {
	one, ok := m.add(text)
	if ok && !m.stuck.Load() && !one.await(readPatience) {
		m.stuck.Store(true)
	}
	return len(text), nil
}

// flush waits, within a bound, until everything before it is written.
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

// write runs until the process ends.
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
