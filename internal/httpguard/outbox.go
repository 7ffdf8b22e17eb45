package httpguard

import (
	"errors"
	"net"
	"os"
	"runtime"
	"sync"
	"time"
)

// An outbox sends what an HTTP/2 connection writes in quick succession at once. net/http
// writes the header, the message and the trailer of an answer one by one, each in a new
// goroutine: that took longer than to decide what the answer says.
//
// A write that returns without an error may fail later, as one that the kernel has taken.
// The connection is closed then.
type outbox struct {
	conn  net.Conn
	leave func() // called when conn is closed

	mu      sync.Mutex
	room    sync.Cond // there may be room in waiting
	waiting []byte
	sending bool // a goroutine sends
	closing bool // and closes conn at its end
	failed  error
}

// maxWaiting is how much waits to be sent before a writer waits, too.
const maxWaiting = 64 << 10

func newOutbox(c net.Conn, leave func()) *outbox {
	o := &outbox{conn: c, leave: leave}
	o.room.L = &o.mu
	return o
}

func (o *outbox) write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.waiting) > maxWaiting && o.failed == nil && !o.closing {
		o.room.Wait()
	}
	switch {
	case o.failed != nil:
		return 0, o.failed
	case o.closing:
		return 0, net.ErrClosed
	}
	o.waiting = append(o.waiting, p...)
	if !o.sending {
		o.sending = true
		go o.send()
	}
	return len(p), nil
}

// send sends until nothing is left.
func (o *outbox) send() {
	runtime.Gosched() // those who are about to write come first
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.waiting) > 0 && o.failed == nil {
		b := o.waiting
		o.waiting = nil
		o.mu.Unlock()
		err := o.sendAll(b)
		o.mu.Lock()
		if o.waiting == nil && cap(b) <= maxWaiting {
			o.waiting = b[:0]
		}
		o.failed = err
		o.room.Broadcast()
	}
	o.sending = false
	if o.closing || o.failed != nil {
		_ = o.conn.Close() // whoever reads hears of it
		o.leave()
	}
}

// sendAll fails if the other side reads nothing for as long as writeTimeout, and if it reads
// too slowly for what is left when the connection is to be closed.
func (o *outbox) sendAll(b []byte) error {
	for {
		if err := o.conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
			return err
		}
		n, err := o.conn.Write(b)
		if b = b[n:]; n == 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		o.mu.Lock()
		closing := o.closing
		o.mu.Unlock()
		if closing {
			return err
		}
	}
}

// close closes the connection once everything is sent, or, to a client that reads slowly, is
// given up.
func (o *outbox) close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closing = true
	o.room.Broadcast()
	if o.sending {
		return nil
	}
	defer o.leave()
	return o.conn.Close()
}
