// Package served makes the store of one process available to other processes of the machine, over TCP.
// So stores in memory, and stores with defects, can be verified like servers, with clients that are
// killed and stopped and connections that are cut. It is only for that: any process that can connect
// has full access.
package served

import (
	"bufio"
	"context"
	"encoding/gob"
	"net"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
)

// A request is one message from a client.
type request struct {
	ID      uint64 // of the answer, or of the watch
	Do      do
	Acquire *driver.Request
	Claim   *driver.Claim
	Claims  []driver.Claim
	TTL     time.Duration
	Key     string // or prefix
	Grants  []string
	Take    *limits.Request
}

type do string

const (
	doTraits    do = "traits"
	doAcquire   do = "acquire"
	doRenew     do = "renew"
	doRelease   do = "release"
	doDowngrade do = "downgrade"
	doInspect   do = "inspect"
	doList      do = "list"
	doBreak     do = "break"
	doTake      do = "take"
	doWatch     do = "watch"
	doUnwatch   do = "unwatch"
)

// An answer is one message to a client.
type answer struct {
	ID       uint64
	Err      *failure
	Traits   *traits
	Grant    *driver.Grant
	Renewals []renewal
	Infos    []driver.KeyInfo
	Holders  int
	Taken    *limits.Taken
	Hint     *driver.Hint // of the watch ID
}

type traits struct {
	driver.Traits
	Limits bool // the store has limits
}

type renewal struct {
	State driver.State
	Grant driver.Grant
	Err   *failure
}

// A Server serves a store. It does not close the store.
type Server struct {
	store   driver.Locks
	ln      net.Listener
	serving sync.WaitGroup
	ctx     context.Context
	stop    context.CancelFunc
}

// Serve serves a store until Close, to every process that connects to Addr. Besides driver.Locks it
// serves driver.Watcher, driver.Downgrader, driver.Inspector and limits.Store if the store implements
// them.
func Serve(store driver.Locks) (*Server, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &Server{store: store, ln: ln}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.serving.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return // closed
			}
			s.serving.Go(func() { s.serve(c) })
		}
	})
	return s, nil
}

// Addr is its address: "127.0.0.1:port".
func (s *Server) Addr() string { return s.ln.Addr().String() }

// Close ends all connections and returns after their last request.
func (s *Server) Close() {
	s.stop()
	_ = s.ln.Close() // an error has no effect
	s.serving.Wait()
}

// serve answers one client. It carries a request out even if the connection has ended meanwhile, like
// any server.
func (s *Server) serve(c net.Conn) {
	end := context.AfterFunc(s.ctx, func() { c.Close() })
	defer end()
	defer c.Close()
	out := &writer{enc: gob.NewEncoder(c)}
	watches := map[uint64]func(){}
	defer func() {
		for _, stop := range watches {
			stop()
		}
	}()
	in := gob.NewDecoder(bufio.NewReader(c))
	for {
		var q request
		if in.Decode(&q) != nil {
			return
		}
		switch q.Do {
		case doWatch:
			if w, ok := s.store.(driver.Watcher); ok && q.Claim != nil {
				watches[q.ID] = w.Watch(*q.Claim, func(h driver.Hint) {
					go out.write(answer{ID: q.ID, Hint: &h}) // a wake must not block
				})
			}
		case doUnwatch:
			if stop := watches[q.ID]; stop != nil {
				stop()
				delete(watches, q.ID)
			}
		default:
			out.write(s.call(q)) // in order: a release comes after the calls that it follows
		}
	}
}

// A writer writes complete answers. An answer that cannot be written is lost with its connection.
type writer struct {
	mu  sync.Mutex
	enc *gob.Encoder
}

func (w *writer) write(a answer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.enc.Encode(a)
}

func (s *Server) call(q request) (a answer) {
	a.ID = q.ID
	var err error
	switch {
	case q.Do == doTraits:
		_, limits := s.store.(limits.Store)
		a.Traits = &traits{s.store.Traits(), limits}
		a.Traits.Processes = true
	case q.Do == doAcquire && q.Acquire != nil:
		a.Grant, err = pointer(s.store.Acquire(s.ctx, *q.Acquire))
	case q.Do == doRenew:
		for _, r := range s.store.Renew(s.ctx, q.Claims, q.TTL) {
			a.Renewals = append(a.Renewals, renewal{r.State, r.Grant, pack(r.Err)})
		}
	case q.Do == doRelease && q.Claim != nil:
		err = s.store.Release(s.ctx, *q.Claim)
	default:
		err = s.extra(q, &a)
	}
	a.Err = pack(err)
	return a
}

// extra makes the calls that only some stores have.
func (s *Server) extra(q request, a *answer) (err error) {
	inspector, inspects := s.store.(driver.Inspector)
	downgrader, downgrades := s.store.(driver.Downgrader)
	limits, limited := s.store.(limits.Store)
	switch {
	case q.Do == doDowngrade && q.Claim != nil && downgrades:
		a.Grant, err = pointer(downgrader.Downgrade(s.ctx, *q.Claim, q.TTL))
	case q.Do == doInspect && inspects:
		info, err := inspector.Inspect(s.ctx, q.Key)
		a.Infos = []driver.KeyInfo{info}
		return err
	case q.Do == doList && inspects:
		for info, err := range inspector.List(s.ctx, q.Key) {
			if err != nil {
				return err
			}
			a.Infos = append(a.Infos, info)
		}
	case q.Do == doBreak && inspects:
		a.Holders, err = inspector.Break(s.ctx, q.Key, q.Grants...)
	case q.Do == doTake && q.Take != nil && limited:
		a.Taken, err = pointer(limits.Take(s.ctx, *q.Take))
	default:
		return errUnsupported
	}
	return err
}

func pointer[T any](v T, err error) (*T, error) { return &v, err }
