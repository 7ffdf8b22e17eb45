package httpguard

import (
	"errors"
	"net"
	"os"
	"runtime"
	"sync"
	"time"
)

// An outbox joins writes of an HTTP/2 connection in quick succession into one. net/http
// writes the header, the message and the trailer of an answer one by one, each in a new
// goroutine: that took longer than to decide the answer.
//
// A write that returned no error may fail later, as one that the kernel has accepted. Then
// the connection is closed.
type outbox struct {
	conn  net.Conn
	leave func() // called when conn is closed

	mu      sync.Mutex
	room    sync.Cond // signalled when waiting shrinks, or closing or failed is set
	waiting []byte
	sending bool // send runs
	closing bool // close was called: send closes conn at its end
	failed  error
}

// maxWaiting is how many bytes may wait before write waits, too.
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

// send writes until no bytes wait.
func (o *outbox) send() {
	runtime.Gosched() // goroutines that are about to write come first
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
		_ = o.conn.Close() // ends a Read under way
		o.leave()
	}
}

// sendAll writes b. It fails if the client reads nothing for writeTimeout or, once close
// was called, does not read all of b within that time.
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

// close closes the connection after the waiting bytes, unless the client reads too slowly:
// see sendAll.
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
