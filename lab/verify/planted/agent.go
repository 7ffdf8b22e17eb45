package planted

import (
	"errors"
	"io"
	"net"
	"sync"
)

// deafToTheEnd makes connections that never see their end.
func deafToTheEnd(l net.Listener) net.Listener { return deafListener{l} }

type deafListener struct{ net.Listener }

func (l deafListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &deafConn{Conn: c, closed: make(chan struct{})}, nil
}

type deafConn struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
}

func (c *deafConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if errors.Is(err, io.EOF) {
		<-c.closed
	}
	return n, err
}

func (c *deafConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
