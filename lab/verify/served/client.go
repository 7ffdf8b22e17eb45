package served

import (
	"bufio"
	"context"
	"encoding/gob"
	"fmt"
	"iter"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
)

// A Store is a client of a Server.
type Store struct {
	addr   string
	traits driver.Traits

	mu     sync.Mutex
	link   *link // nil without a connection
	last   uint64
	closed bool
}

// limited is a Store with limits.
type limited struct{ *Store }

var (
	_ driver.Store      = (*Store)(nil)
	_ driver.Watcher    = (*Store)(nil)
	_ driver.Downgrader = (*Store)(nil)
	_ driver.Inspector  = (*Store)(nil)
	_ limits.Store      = limited{}
)

// Dial connects to a Server. The store is a limits.Store if the served one is. If the connection
// breaks, the next call makes another.
func Dial(ctx context.Context, addr string) (driver.Store, error) {
	s := &Store{addr: addr}
	a, err := s.call(ctx, request{Do: doTraits})
	if err == nil && a.Traits == nil {
		err = fmt.Errorf("%w: %s is no store", driver.ErrUnavailable, addr)
	}
	if err != nil {
		_ = s.Close() // it never fails
		return nil, err
	}
	s.traits = a.Traits.Traits
	if a.Traits.Limits {
		return limited{s}, nil
	}
	return s, nil
}

// A link is one connection.
type link struct {
	conn net.Conn
	out  writer

	mu      sync.Mutex
	calls   map[uint64]chan answer
	watches map[uint64]func(driver.Hint)
	broken  bool
}

// connected returns the connection, and the number of a new request on it.
func (s *Store) connected(ctx context.Context) (*link, uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, 0, driver.ErrClosed
	}
	s.last++
	if s.link != nil && !s.link.isBroken() {
		return s.link, s.last, nil
	}
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", s.addr)
	if err != nil {
		if ctx.Err() != nil {
			return nil, 0, ctx.Err()
		}
		return nil, 0, fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	}
	s.link = &link{conn: conn, out: writer{enc: gob.NewEncoder(conn)}, calls: map[uint64]chan answer{}, watches: map[uint64]func(driver.Hint){}}
	go s.link.read()
	return s.link, s.last, nil
}

func (l *link) isBroken() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.broken
}

// read hands out answers until the connection breaks; then all calls end.
func (l *link) read() {
	in := gob.NewDecoder(bufio.NewReader(l.conn))
	for {
		var a answer
		err := in.Decode(&a)
		l.mu.Lock()
		if err != nil {
			l.broken = true
			for _, c := range l.calls {
				close(c)
			}
			l.calls = nil
			l.mu.Unlock()
			_ = l.conn.Close()
			return
		}
		c, wake := l.calls[a.ID], l.watches[a.ID]
		delete(l.calls, a.ID)
		l.mu.Unlock()
		switch {
		case a.Hint != nil && wake != nil:
			wake(*a.Hint)
		case c != nil:
			c <- a
		}
	}
}

func (s *Store) call(ctx context.Context, q request) (answer, error) {
	if err := ctx.Err(); err != nil {
		return answer{}, err
	}
	l, id, err := s.connected(ctx)
	if err != nil {
		return answer{}, err
	}
	q.ID = id
	c := make(chan answer, 1)
	l.mu.Lock()
	if l.broken {
		l.mu.Unlock()
		return answer{}, fmt.Errorf("%w: the connection broke", driver.ErrUnavailable)
	}
	l.calls[id] = c
	l.mu.Unlock()
	l.send(q)
	select {
	case a, ok := <-c:
		if !ok {
			return answer{}, fmt.Errorf("%w: the connection broke", driver.ErrUnknown)
		}
		return a, a.Err.unpack()
	case <-ctx.Done():
		l.mu.Lock()
		delete(l.calls, id)
		l.mu.Unlock()
		return answer{}, ctx.Err()
	}
}

// send writes a request. An error means that the connection has broken, which read notices. send may
// wait for a peer that does not read, but not for long: requests are small.
func (l *link) send(q request) {
	l.out.mu.Lock()
	defer l.out.mu.Unlock()
	if l.out.enc.Encode(q) != nil {
		_ = l.conn.Close()
	}
}

// Traits implements driver.Locks.
func (s *Store) Traits() driver.Traits { return s.traits }

// Acquire implements driver.Locks.
func (s *Store) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	return s.granted(ctx, request{Do: doAcquire, Acquire: &r})
}

// Downgrade implements driver.Downgrader.
func (s *Store) Downgrade(ctx context.Context, c driver.Claim, ttl time.Duration) (driver.Grant, error) {
	return s.granted(ctx, request{Do: doDowngrade, Claim: &c, TTL: ttl})
}

func (s *Store) granted(ctx context.Context, q request) (driver.Grant, error) {
	a, err := s.call(ctx, q)
	if err == nil && a.Grant == nil {
		err = errNoAnswer
	}
	if err != nil {
		return driver.Grant{}, err
	}
	return *a.Grant, nil
}

var errNoAnswer = fmt.Errorf("%w: the answer says nothing", driver.ErrUnknown)

// Renew implements driver.Locks.
func (s *Store) Renew(ctx context.Context, claims []driver.Claim, ttl time.Duration) []driver.Renewal {
	a, err := s.call(ctx, request{Do: doRenew, Claims: claims, TTL: ttl})
	if err == nil && len(a.Renewals) != len(claims) {
		err = errNoAnswer
	}
	all := make([]driver.Renewal, len(claims))
	for i := range all {
		if err != nil {
			all[i].Err = err
			continue
		}
		r := a.Renewals[i]
		all[i] = driver.Renewal{State: r.State, Grant: r.Grant, Err: r.Err.unpack()}
	}
	return all
}

// Release implements driver.Locks.
func (s *Store) Release(ctx context.Context, c driver.Claim) error {
	_, err := s.call(ctx, request{Do: doRelease, Claim: &c})
	return err
}

// Watch implements driver.Watcher. Hints end with the connection.
func (s *Store) Watch(c driver.Claim, wake func(driver.Hint)) (stop func()) {
	s.mu.Lock()
	l := s.link
	s.last++
	id := s.last
	s.mu.Unlock()
	if l == nil {
		return func() {}
	}
	l.mu.Lock()
	l.watches[id] = wake
	l.mu.Unlock()
	l.send(request{ID: id, Do: doWatch, Claim: &c})
	return func() {
		l.mu.Lock()
		delete(l.watches, id)
		l.mu.Unlock()
		l.send(request{ID: id, Do: doUnwatch})
	}
}

// Inspect implements driver.Inspector.
func (s *Store) Inspect(ctx context.Context, key string) (driver.KeyInfo, error) {
	a, err := s.call(ctx, request{Do: doInspect, Key: key})
	if err == nil && len(a.Infos) != 1 {
		err = errNoAnswer
	}
	if err != nil {
		return driver.KeyInfo{}, err
	}
	return a.Infos[0], nil
}

// List implements driver.Inspector.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[driver.KeyInfo, error] {
	return func(yield func(driver.KeyInfo, error) bool) {
		a, err := s.call(ctx, request{Do: doList, Key: prefix})
		if err != nil {
			yield(driver.KeyInfo{}, err)
			return
		}
		for info := range slices.Values(a.Infos) {
			if !yield(info, nil) {
				return
			}
		}
	}
}

// Break implements driver.Inspector.
func (s *Store) Break(ctx context.Context, key string, grants ...string) (ended int, err error) {
	a, err := s.call(ctx, request{Do: doBreak, Key: key, Grants: grants})
	return a.Holders, err
}

// Take implements limits.Store.
func (s limited) Take(ctx context.Context, r limits.Request) (limits.Taken, error) {
	a, err := s.call(ctx, request{Do: doTake, Take: &r})
	if err == nil && a.Taken == nil {
		err = errNoAnswer
	}
	if err != nil {
		return limits.Taken{}, err
	}
	return *a.Taken, nil
}

// Close implements driver.Store.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.link != nil {
		_ = s.link.conn.Close() // read notices it
	}
	return nil
}
