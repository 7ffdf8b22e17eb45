//go:build unix

package redisstore

import (
	"context"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// No goroutine reads from a connection while it is idle, so it is looked at.
func TestConnectionsAreLookedAt(t *testing.T) {
	t.Parallel()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	addr := server.Addr().String()
	links := newLinks(Server{Addrs: []string{addr}})
	open := func(c net.Conn) bool { // as the client's pool asks
		raw, err := c.(syscall.Conn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		looked, open := false, false
		err = raw.Read(func(fd uintptr) bool {
			looked = true
			_, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
			open = err == syscall.EAGAIN
			return true
		})
		return err == nil && (open || !looked)
	}
	for _, dial := range []func(context.Context, string, string) (net.Conn, error){
		links.connect, Dialer(&redis.Options{DialTimeout: time.Second}),
	} {
		for name, tt := range map[string]struct {
			do   func(net.Conn)
			want bool
		}{
			"nothing happens": {func(net.Conn) {}, true},
			"it is closed":    {func(c net.Conn) { c.Close() }, false},
			"it is reset":     {func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0); c.Close() }, false},
			"something comes": {func(c net.Conn) { _, _ = c.Write([]byte("-ERR\r\n")) }, false},
		} {
			c, err := dial(t.Context(), "tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			other, err := server.Accept()
			if err != nil {
				t.Fatal(err)
			}
			if !open(c) {
				t.Errorf("%s: it is not open before", name)
			}
			tt.do(other)
			if tt.want {
				<-time.After(20 * time.Millisecond) // for what must not happen
				if !open(c) {
					t.Errorf("%s: it is not open", name)
				}
			} else {
				eventually(t, name, 5*time.Second, func() bool { return !open(c) })
			}
			if l, ok := c.(*link); ok && tt.want {
				links.leave()
				if open(c) || l.era == l.peer.era.Load() {
					t.Error("a connection to a server that was left is used")
				}
			}
			c.Close()
			other.Close()
		}
	}
}
