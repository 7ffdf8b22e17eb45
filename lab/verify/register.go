package verify

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"sync"

	"github.com/batonhq/baton/lab/verify/history"
)

// A register is the resource that the locks guard. It records the writes in the order of
// arrival, and whether a resource that checks tokens would have accepted each.
type register struct {
	listener net.Listener
	serving  sync.WaitGroup

	mu     sync.Mutex
	last   map[string]history.Write // accepted, by key
	writes []history.Write
	open   map[net.Conn]struct{} // nil when closed
}

// newRegister listens on a unix socket.
func newRegister(path string) (*register, error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	r := &register{listener: l, last: make(map[string]history.Write), open: make(map[net.Conn]struct{})}
	r.serving.Go(r.accept)
	return r, nil
}

func (r *register) accept() {
	for {
		conn, err := r.listener.Accept()
		if err != nil {
			return // closed
		}
		r.mu.Lock()
		if r.open == nil {
			_ = conn.Close()
		} else {
			r.open[conn] = struct{}{}
			r.serving.Go(func() { r.serve(conn) })
		}
		r.mu.Unlock()
	}
}

func (r *register) serve(conn net.Conn) {
	defer func() {
		_ = conn.Close()
		r.mu.Lock()
		delete(r.open, conn)
		r.mu.Unlock()
	}()
	in := json.NewDecoder(conn)
	for {
		var w history.Write
		if in.Decode(&w) != nil {
			return // the client has ended, or was killed during a write
		}
		answer := "stale\n"
		if r.take(w) {
			answer = "accepted\n"
		}
		if _, err := io.WriteString(conn, answer); err != nil {
			return
		}
	}
}

// take records a write and reports whether a resource that checks tokens accepts it, by the
// rule of package guard.
func (r *register) take(w history.Write) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, ok := r.last[w.Key]
	w.Accepted = !ok || w.Token > last.Token || w.Token == last.Token && w.Op == last.Op
	w.Stale = !w.Accepted
	w.At = history.Now()
	if w.Accepted {
		r.last[w.Key] = w
	}
	r.writes = append(r.writes, w)
	return w.Accepted
}

// close ends the register and returns all writes.
func (r *register) close() []history.Write {
	_ = r.listener.Close()
	r.mu.Lock()
	for conn := range r.open {
		_ = conn.Close()
	}
	r.open = nil
	r.mu.Unlock()
	r.serving.Wait()
	return r.writes
}

// A registrar is a goroutine's connection to the register.
type registrar struct {
	path string
	conn net.Conn
	in   *bufio.Reader
}

// write sends one write and waits for the answer.
func (r *registrar) write(w history.Write) error {
	if r.conn == nil {
		conn, err := net.Dial("unix", r.path)
		if err != nil {
			return err
		}
		r.conn, r.in = conn, bufio.NewReader(conn)
	}
	if err := json.NewEncoder(r.conn).Encode(w); err != nil {
		return err
	}
	_, err := r.in.ReadString('\n')
	return err
}

func (r *registrar) close() {
	if r != nil && r.conn != nil {
		_ = r.conn.Close()
	}
}
