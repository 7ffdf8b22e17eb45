package zkstore

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"time"

	"github.com/batonhq/baton/internal/bootclock"
)

// Servers that were set back: a restored backup or a lost disk brings back a state
// older than what this process has seen. That may have two effects.
//
// A server hangs up, without a word, on a client that has seen a later transaction than
// its last one. The client would try again with the same number for ever, so the store
// declares its session over: when the session has had no answer for its whole time-out,
// so that it is over by any leader's clock, and the server that has just hung up does
// serve a client that has seen nothing.
//
// Or the numbers of a new leader are higher, and the session goes on, if the state
// knows it. It may then have nodes that we had deleted. They would stay for as long as
// this process lives, so tidy looks for them after an outage.

// hungUp is called when a server ended a connection instead of answering the connect
// request. A follower that lags behind does that, too, and a server without a leader.
func (s *Session) hungUp(network, address string) {
	l := s.link()
	if l.id == 0 {
		return
	}
	s.mu.Lock()
	heard := s.marks[s.newest]
	s.mu.Unlock()
	if l.since.After(heard) {
		heard = l.since
	}
	if bootclock.Now().Sub(heard) >= l.timeout && s.serves(network, address) {
		s.over.Store(l.id)
	}
}

// A connect request, and the beginning of its answer: length, protocol, the last
// transaction seen or nothing, time-out in ms, session, password of 16 bytes.
const (
	connectRequest = 4 + 4 + 8 + 4 + 8 + 4 + 16
	connectAnswer  = 4 + 4 + 4 + 8 + 4 + 16
)

// serves reports whether a server answers a client that has seen nothing. It asks for a
// session that cannot exist, so that the server makes none.
func (s *Session) serves(network, address string) bool {
	const within = time.Second
	c, err := s.connect(network, address, within)
	if err != nil {
		return false
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(within)); err != nil {
		return false
	}
	ask := binary.BigEndian.AppendUint32(nil, connectRequest-4)
	ask = append(ask, make([]byte, 4+8)...)
	ask = binary.BigEndian.AppendUint32(ask, uint32(within/time.Millisecond))
	ask = binary.BigEndian.AppendUint64(ask, 1)
	ask = binary.BigEndian.AppendUint32(ask, 16)
	ask = append(ask, make([]byte, 16)...)
	if _, err := c.Write(ask); err != nil {
		return false
	}
	_, err = io.ReadFull(c, make([]byte, 4))
	return err == nil
}

// connect opens a connection by Dial, if that is set.
func (s *Session) connect(network, address string, within time.Duration) (net.Conn, error) {
	if s.Dial != nil {
		return s.Dial(network, address, within)
	}
	return net.DialTimeout(network, address, within)
}

// expired is a connection to a server that knows no session: it makes the client forget
// its own, and all that it has seen.
func expired() net.Conn {
	client, server := net.Pipe()
	go func() {
		defer server.Close()
		head := make([]byte, 4)
		if _, err := io.ReadFull(server, head); err != nil {
			return
		}
		if _, err := io.CopyN(io.Discard, server, int64(binary.BigEndian.Uint32(head))); err != nil {
			return
		}
		answer := make([]byte, connectAnswer)
		binary.BigEndian.PutUint32(answer, connectAnswer-4)
		binary.BigEndian.PutUint32(answer[connectAnswer-20:], 16)
		_, _ = server.Write(answer) // if the client has not read it, it dials again
	}()
	return client
}

// isHungUp reports whether the server caused the error, rather than a time-out or our
// own Close.
func isHungUp(err error) bool {
	return err != nil && !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, net.ErrClosed)
}

// outage is how long, at least, no server answers while servers are set back: all of
// them have to start. A broken connection is replaced in less.
const outage = time.Second

// tidy deletes the nodes of this process that no claim knows, below the parents that it
// has used, one after the other: other processes may do the same. It returns false if
// the connection was lost before it was done.
func (s *Store) tidy(l *link) (done bool) {
	ctx, cancel := context.WithCancel(s.life)
	defer cancel()
	go func() {
		select {
		case <-l.next:
			cancel()
		case <-ctx.Done():
		}
	}()
	for err := s.sync(ctx); err != nil && !answer(err); err = s.sync(ctx) {
		if !rest(ctx) {
			return false
		}
	}
	type found struct{ parent, node string }
	byGUID := map[string][]found{}
	for _, parent := range s.parents.all() {
		names, _, err := s.children(ctx, parent)
		for err != nil && !answer(err) {
			if !rest(ctx) {
				return false
			}
			names, _, err = s.children(ctx, parent)
		}
		for _, n := range names { // none if it may not be read
			if guid, ok := s.guidOf(n); ok {
				byGUID[guid] = append(byGUID[guid], found{parent, n})
			}
		}
	}
	// Nodes that were made since then are not among those found. Claims that have ended
	// since then have deleted theirs, or will.
	s.mu.Lock()
	var claims []*claim
	for _, c := range s.claims {
		claims = append(claims, c)
	}
	for g := range s.lost {
		delete(byGUID, g.guid)
	}
	s.mu.Unlock()
	for _, c := range claims {
		c.Lock()
		delete(byGUID, c.guid)
		c.Unlock()
	}
	for guid, nodes := range byGUID {
		g := &leftover{parent: nodes[0].parent, guid: guid, session: l.id, done: make(chan struct{})}
		for _, n := range nodes {
			g.nodes = append(g.nodes, n.node)
		}
		s.removeLeftover(g)
	}
	return true
}

// rest pauses before a request that got no answer is repeated.
func rest(ctx context.Context) bool {
	t := time.NewTimer(retryAfter)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
