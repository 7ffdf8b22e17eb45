//go:build unix

package main

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"
)

// Users of the machine, who need no token to connect, do not take all descriptors.
func TestConnectionsToThePageAreBounded(t *testing.T) {
	t.Parallel()
	l, err := (&app{quiet: true}).listenPage("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
		}
	}()
	var last net.Conn
	for range pageConns/2 + 1 {
		if last, err = net.Dial("tcp", l.Addr().String()); err != nil {
			t.Fatal(err)
		}
		defer last.Close()
	}
	_ = last.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := last.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("one connection too many is not closed: %v", err)
	}
}
