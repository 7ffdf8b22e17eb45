package agent

import (
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// A listener that fails for a while, as for want of file descriptors, ends nothing.
func TestListenerThatFailsForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		l := &failing{pipes: p}
		l.left.Store(3)
		h := newHostAt(t, Config{}, l, p.dial)
		began := time.Now()
		h.connect().must(`{"id":1,"do":"ping"}`)
		if took := time.Since(began); took != 35*time.Millisecond { // 5, 10, 20
			t.Errorf("a client was accepted after %v", took)
		}
	})
}

type failing struct {
	*pipes
	left atomic.Int32
}

func (f *failing) Accept() (net.Conn, error) {
	if f.left.Add(-1) >= 0 {
		return nil, syscall.EMFILE
	}
	return f.pipes.Accept()
}

// A listener that was closed ends Serve with an error, and the sessions.
func TestListenerThatIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		h := newHostAt(t, Config{}, p, p.dial)
		c := h.connect()
		c.must(`{"id":1,"do":"lock","key":"k"}`)
		p.Close()
		if last := c.over(); last.Error != "closing" {
			t.Errorf("it was told %v", last)
		}
		if err := <-h.ended; !errors.Is(err, net.ErrClosed) {
			t.Errorf("Serve: %v", err)
		}
		h.ended <- nil
	})
}
