//go:build linux && (amd64 || arm64)

package quick

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// TestQuickIsAConnection: whatever happens to a connection, a quick one reads, writes
// and says what that of package net does.
func TestQuickIsAConnection(t *testing.T) {
	type outcome struct {
		N            int
		Text         string
		EOF, Timeout bool
		Closed       bool
		Type         string
	}
	outcomeOf := func(n int, err error, c net.Conn) outcome {
		o := outcome{N: n, EOF: err == io.EOF, Closed: errors.Is(err, net.ErrClosed)}
		if err != nil {
			o.Type = reflect.TypeOf(err).String()
			o.Text = strings.ReplaceAll(err.Error(), c.LocalAddr().String(), "LOCAL")
			o.Text = strings.ReplaceAll(o.Text, c.RemoteAddr().String(), "REMOTE")
			var ne net.Error
			o.Timeout = errors.As(err, &ne) && ne.Timeout()
		}
		return o
	}
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<19) // 8 MB: no socket takes it at once
	for _, c := range []struct {
		name string
		do   func(t *testing.T, c net.Conn, other net.Conn) (int, error)
		want func(outcome) bool
	}{
		{"reads what is there", func(t *testing.T, c net.Conn, other net.Conn) (int, error) {
			write(t, other, []byte("hello"))
			b := make([]byte, 9)
			n, err := c.Read(b)
			if string(b[:n]) != "hello" {
				t.Errorf("read %q", b[:n])
			}
			return n, err
		}, func(o outcome) bool { return o.N == 5 && o.Text == "" }},
		{"waits for what is to be read", func(t *testing.T, c net.Conn, other net.Conn) (int, error) {
			reads := make(chan int)
			var n int
			var err error
			go func() {
				defer close(reads)
				n, err = c.Read(make([]byte, 9))
			}()
			select {
			case <-reads:
				t.Error("Read did not wait")
			case <-time.After(20 * time.Millisecond):
			}
			write(t, other, []byte("late"))
			<-reads
			return n, err
		}, func(o outcome) bool { return o.N == 4 && o.Text == "" }},
		{"reads nothing into nothing", func(t *testing.T, c net.Conn, other net.Conn) (int, error) {
			return c.Read(nil)
		}, func(o outcome) bool { return o == outcome{} }},
		{"writes more than fits at once", func(t *testing.T, c net.Conn, other net.Conn) (int, error) {
			got := make(chan []byte)
			go func() {
				time.Sleep(20 * time.Millisecond) // the writer is slower or waits, both are right
				b := make([]byte, len(big))
				_, _ = io.ReadFull(other, b)
				got <- b
			}()
			n, err := c.Write(big)
			if !bytes.Equal(<-got, big) {
				t.Error("the other side read something else")
			}
			return n, err
		}, func(o outcome) bool { return o.N == len(big) && o.Text == "" }},
		{"the other side has closed", func(t *testing.T, c net.Conn, other net.Conn) (int, error) {
			other.Close()
			return c.Read(make([]byte, 9))
		}, func(o outcome) bool { return o.EOF }},
		{"the other side is gone while it was written to", func(t *testing.T, c net.Conn, other net.Conn) (int, error) {
			other.Close()
			var err error
			for end := time.Now().Add(10 * time.Second); err == nil && time.Now().Before(end); {
				_, err = c.Write([]byte("x"))
			}
			return 0, err
		}, func(o outcome) bool { return strings.Contains(o.Text, "write") }},
		{"a deadline passes while reading", func(t *testing.T, c net.Conn, other net.Conn) (int, error) {
			_ = c.SetDeadline(time.Now().Add(20 * time.Millisecond))
			return c.Read(make([]byte, 9))
		}, func(o outcome) bool { return o.Timeout }},
		{"a deadline has passed before writing", func(t *testing.T, c net.Conn, other net.Conn) (int, error) {
			_ = c.SetDeadline(time.Unix(1, 0))
			return c.Write([]byte("x"))
		}, func(o outcome) bool { return o.Timeout && o.N == 0 }},
		{"closed while reading", func(t *testing.T, c net.Conn, other net.Conn) (int, error) {
			time.AfterFunc(20*time.Millisecond, func() { c.Close() })
			return c.Read(make([]byte, 9))
		}, func(o outcome) bool { return o.Closed }},
		{"closed before writing", func(t *testing.T, c net.Conn, other net.Conn) (int, error) {
			c.Close()
			return c.Write([]byte("x"))
		}, func(o outcome) bool { return o.Closed }},
	} {
		for _, network := range []string{"tcp", "unix"} {
			t.Run(c.name+"/"+network, func(t *testing.T) {
				var got [2]outcome
				for i, wrap := range []func(net.Conn) net.Conn{func(c net.Conn) net.Conn { return c }, Conn} {
					plain, other := connected(t, network)
					used := wrap(plain)
					if _, ok := used.(*socket); ok != (i == 1) {
						t.Fatalf("Conn returned a %T", used)
					}
					n, err := c.do(t, used, other)
					got[i] = outcomeOf(n, err, plain)
				}
				if !c.want(got[0]) {
					t.Errorf("the case is wrong: net's connection has %+v", got[0])
				}
				if got[0] != got[1] {
					t.Errorf("net has\n%+v\nquick\n%+v", got[0], got[1])
				}
			})
		}
	}
}

// TestQuickWriteStopsInTheMiddle: a write that a deadline ends says how much was written.
func TestQuickWriteStopsInTheMiddle(t *testing.T) {
	plain, other := connected(t, "tcp")
	c := Conn(plain)
	b := make([]byte, 32<<20)
	ended := make(chan error, 1)
	n := 0
	go func() {
		var err error
		n, err = c.Write(b)
		ended <- err
	}()
	if _, err := io.ReadFull(other, make([]byte, 1)); err != nil { // so that it has begun
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Unix(1, 0))
	if err := <-ended; n <= 0 || n >= len(b) || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("wrote %d of %d, %v", n, len(b), err)
	}
}

func write(t *testing.T, c net.Conn, b []byte) {
	t.Helper()
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
}

// connected returns both ends of a connection.
func connected(t *testing.T, network string) (a, b net.Conn) {
	t.Helper()
	at := "127.0.0.1:0"
	if network == "unix" {
		at = filepath.Join(t.TempDir(), "s")
	}
	l, err := net.Listen(network, at)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = net.Dial(network, l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if b, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}
