package httpguard

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// counted counts its writes.
type counted struct {
	net.Conn
	writes atomic.Int64
}

func (c *counted) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(p)
}

// speaking is a connection that has begun to speak HTTP/2, and its other side.
func speaking(t *testing.T, leave func()) (c *conn, below *counted, other net.Conn) {
	t.Helper()
	ours, other := net.Pipe()
	below = &counted{Conn: ours}
	c = &conn{Conn: below, leave: sync.OnceFunc(leave)}
	preface := []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	go func() { _, _ = other.Write(preface) }()
	if _, err := io.ReadFull(c, make([]byte, len(preface))); err != nil {
		t.Fatal(err)
	}
	return c, below, other
}

// What is written arrives whole and in its order, that of one answer at once, also if the
// connection is closed right after it.
func TestOutboxSendsAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left := make(chan struct{})
		c, below, other := speaking(t, func() { close(left) })
		for _, part := range []string{"header ", "message ", "trailer "} {
			if n, err := c.Write([]byte(part)); n != len(part) || err != nil {
				t.Fatal(n, err)
			}
		}
		var all bytes.Buffer
		got := make(chan struct{})
		go func() {
			defer close(got)
			_, _ = io.Copy(&all, other)
		}()
		synctest.Wait()
		if n := below.writes.Load(); n > 2 { // the first may be under way when the second comes
			t.Errorf("%d writes for one answer", n)
		}
		long := bytes.Repeat([]byte("0123456789abcdef"), 1<<14) // of which only a part may wait
		if _, err := c.Write(long); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte("end")); err != nil {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		<-got
		<-left
		if want := "header message trailer " + string(long) + "end"; all.String() != want {
			t.Errorf("%d bytes arrived, want %d", all.Len(), len(want))
		}
		if _, err := c.Write([]byte("late")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

// A client that does not read has a bounded amount waiting for it, and its connection ends
// in time.
func TestOutboxOfClientThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var ended time.Time
		c, _, other := speaking(t, func() { ended = time.Now() })
		defer other.Close()
		written := 0
		var err error
		for err == nil && written < 100*maxWaiting {
			var n int
			n, err = c.Write(make([]byte, 1000))
			written += n
		}
		if err == nil || written > 2*maxWaiting+2000 {
			t.Errorf("%d bytes were taken, %v", written, err)
		}
		synctest.Wait()
		if d := ended.Sub(began); d != writeTimeout {
			t.Errorf("the connection was closed after %v", d)
		}
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("it can be read")
		}
	})
}

// A client that reads a byte now and then keeps no connection that is to be closed.
func TestOutboxOfSlowClientCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left := make(chan struct{})
		c, _, other := speaking(t, func() { close(left) })
		defer other.Close()
		if _, err := c.Write(make([]byte, maxWaiting)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		began := time.Now()
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		for {
			select {
			case <-left:
				if d := time.Since(began); d > 2*writeTimeout {
					t.Errorf("it is closed after %v", d)
				}
				return
			case <-time.After(writeTimeout / 3):
				if _, err := other.Read(make([]byte, 1)); err != nil && err != io.EOF {
					t.Error(err)
				}
			}
		}
	})
}
