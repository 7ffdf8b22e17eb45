package main

import (
	"bytes"
	"net"
	"sync"
	"sync/atomic"
)

// A commandCounter counts the commands that clients send to Redis, at the socket. The
// server's own statistics do not distinguish them from the commands that scripts call.
type commandCounter struct{ n atomic.Int64 }

// wrap returns a connection that counts the commands written to it.
func (c *commandCounter) wrap(conn net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	return &countedConn{Conn: conn, total: &c.n}, nil
}

type countedConn struct {
	net.Conn
	total *atomic.Int64

	mu     sync.Mutex
	parser requestParser
}

func (c *countedConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	if n := c.parser.feed(p); n > 0 {
		c.total.Add(n)
	}
	c.mu.Unlock()
	return c.Conn.Write(p)
}

// requestParser finds the commands in what a client sends: arrays of bulk strings, cut
// anywhere.
type requestParser struct {
	line []byte // the part of a header that is not complete
	skip int    // bytes of a bulk string, with its line end, that are still to come
}

// feed returns how many commands begin in p.
func (r *requestParser) feed(p []byte) (commands int64) {
	for len(p) > 0 {
		if r.skip > 0 {
			n := min(r.skip, len(p))
			r.skip -= n
			p = p[n:]
			continue
		}
		end := bytes.IndexByte(p, '\n')
		if end < 0 {
			r.line = append(r.line, p...)
			return commands
		}
		line := append(r.line, p[:end]...)
		p = p[end+1:]
		switch {
		case len(line) > 0 && line[0] == '*':
			commands++
		case len(line) > 0 && line[0] == '$':
			n := 0
			for _, c := range line[1:] {
				if c >= '0' && c <= '9' {
					n = 10*n + int(c-'0')
				}
			}
			r.skip = n + len("\r\n")
		}
		r.line = line[:0]
	}
	return commands
}
