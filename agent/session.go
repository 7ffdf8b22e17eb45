package agent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/quick"
	"github.com/batonhq/baton/internal/roles"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/ratelimit/rules"
)

// A session is one connection. Its goroutine reads the requests, and answers those that
// need no store; it never waits for anything but the client, so that it notices at once
// when the client dies. Each other request has a goroutine.
//
// Mutexes: mu guards the state and the connection's deadlines, writing its output. mu may
// be taken while writing is locked, not the other way round. Neither is locked during a
// call to the Locker.
type session struct {
	server *Server
	conn   net.Conn
	peer   peer
	user   *user

	ctx    context.Context // ends with the session
	cancel context.CancelFunc

	mu      sync.Mutex
	ended   bool      // no lock is granted to it any more, and no request read
	endedAt time.Time // once ended
	closing bool      // the agent is being stopped
	locks   map[int64]*lock
	keys    int // of all locks together
	asks    int // requests to the store that hold nothing: take, leader
	takes   map[int64]*reserved
	busy    sync.WaitGroup // the goroutines of requests; none begins once ended is set

	writing sync.Mutex
	silent  bool   // nothing is written any more
	rest    []byte // of a line that was written in part
}

// A lock is what one lock request asked for. It is in the session's locks from the
// request until nothing is left of it.
type lock struct {
	session *session
	id      int64
	keys    []string // sorted, each once
	mode    string
	asked   time.Time
	cancel  context.CancelFunc // ends the wait

	// Guarded by session.mu.
	state    lockState
	lease    holding     // once held
	since    time.Time   // held
	until    time.Time   // held for the longest time allowed; zero: no limit
	promised time.Time   // the client was told that it has the lock until then
	stop     func() bool // stops to watch for the loss; nil: not watched
	timer    *time.Timer // fires at until

	attempt *attempt // of an operation; nil: a lock. It never changes
	hears   bool     // the client hears of requests to release it
}

// A holding is a *baton.Lease, or the *baton.Leases of several keys.
type holding interface {
	Err() error
	Deadline() time.Time
	Context(context.Context) context.Context
	Unlock() error
}

// token is the token of one of the keys. The lock is, or was, held.
func (l *lock) token(key string) string {
	if all, ok := l.lease.(*baton.Leases); ok {
		return tokenText(all.Token(key))
	}
	return tokenText(l.lease.(*baton.Lease).Token())
}

type lockState uint8

const (
	waiting  lockState = iota
	dropping           // the client has ended the wait, or the session has
	held
	releasing // one goroutine, which set this, unlocks it
)

// serve reads requests until the session ends, and returns when nothing is left of it.
func (s *session) serve() {
	s.server.cfg.Logger.Debug("session began", "peer", s.peer)
	s.send(s.server.hello)
	err := s.read()
	s.finish(errors.Is(err, os.ErrDeadlineExceeded))
	s.server.cfg.Logger.Debug("session ended", "peer", s.peer, "error", err)
	s.server.forget(s)
}

// read reads requests until the connection ends. Of a session that the agent has ended
// it reads until the client has closed the connection, or the time of await is over.
func (s *session) read() error {
	in := bufio.NewReaderSize(s.conn, MaxLine)
	for {
		text, err := in.ReadSlice('\n')
		// Any later moment is right, too: remaining_ms counts from an earlier one, when
		// the client sent it.
		received := time.Now()
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			s.end(&answer{Error: codeBad, Message: fmt.Sprintf("a line has at most %d bytes", MaxLine)})
			_, err = io.Copy(io.Discard, s.conn) // the buffer has no room for a line
			return err
		case err != nil:
			return err
		case s.over():
			continue
		}
		r, err := parse(text)
		var wrong *badRequest
		switch {
		case errors.As(err, &wrong) && wrong.fatal:
			s.end(&answer{ID: r.ID, Error: codeBad, Message: wrong.reason})
		case err != nil:
			s.refuse(r, codeBad, "%v", err)
		default:
			s.do(r, received)
		}
	}
}

func (s *session) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

func (s *session) do(r request, received time.Time) {
	switch r.Do {
	case doLock:
		s.lock(r, received)
	case doUnlock:
		s.unlock(r)
	case doCheck:
		s.check(r, received)
	case doWho:
		if s.permits(r, roles.List) {
			s.send(line(s.server.table.who(r.ID, r.Key)))
		}
	case doWatch:
		if s.permits(r, roles.List) {
			s.stream(r, func() error { return s.follow(r) })
		}
	case doPing:
		s.answer(answer{ID: r.ID, OK: true})
	case doLeader:
		if s.permits(r, roles.Lock) {
			s.ask(r, s.leader)
		}
	case doObserve:
		if s.permits(r, roles.Lock) {
			s.stream(r, func() error { return s.observe(r) })
		}
	case doProclaim:
		s.ask(r, s.proclaim)
	case doAsked:
		s.hear(r)
	case doTake:
		if s.permitsAll(r) {
			s.ask(r, s.take)
		}
	case doSettle:
		s.settle(r)
	case doOnce:
		s.once(r, received)
	case doFinish:
		s.finishAttempt(r)
	}
}

// permits reports whether the user may do what verb says with the key of a request, and
// refuses the request if not.
func (s *session) permits(r request, verb string) bool {
	err := s.server.may(s.peer, verb, r.Key)
	if err != nil {
		s.deny(r.ID, err)
	}
	return err == nil
}

// deny refuses a request that the user may not make.
func (s *session) deny(id int64, err error) {
	message := driver.Printable(err.Error())
	s.server.cfg.Logger.Warn("a request was denied", "caller", s.user, "peer", s.peer, "reason", message)
	s.answer(answer{ID: id, Error: codeDenied, Message: message})
}

// recheck says why the user may not have the session any more, or one of its locks.
func (s *session) recheck() error {
	if _, err := s.server.caller(s.peer); err != nil {
		return err
	}
	s.mu.Lock()
	all := make([]*lock, 0, len(s.locks))
	for _, l := range s.locks {
		if l.state == held || l.state == waiting {
			all = append(all, l)
		}
	}
	s.mu.Unlock()
	for _, l := range all {
		if err := l.permitted(); err != nil {
			return err
		}
	}
	return nil
}

// end ends the session, once: its waits end, and no request is read any more. If it is
// the agent that ends it, last tells the client, who then has the time of await to close
// the connection. finish does the rest. A client that has gone gets a nil last.
func (s *session) end(last *answer) {
	if s.shut(last) && last != nil {
		s.tell(last)
	}
}

// shut is the part of end that waits for nobody. It reports whether the session was open.
func (s *session) shut(last *answer) (first bool) {
	s.mu.Lock()
	if last != nil && last.Error == codeClosing {
		s.closing = true
	}
	if s.ended {
		closing := s.closing
		s.mu.Unlock()
		if closing {
			s.await() // for less long than before
		}
		return false
	}
	s.ended, s.endedAt = true, time.Now()
	if last != nil {
		_ = s.conn.SetWriteDeadline(s.endedAt.Add(grace)) // of a line that is being written, too
	}
	for _, l := range s.locks {
		if l.state == waiting {
			l.state = dropping
			l.cancel()
		}
	}
	s.mu.Unlock()
	s.cancel()
	return true
}

// tell is the part of end that waits for a client that does not read.
func (s *session) tell(last *answer) {
	s.server.cfg.Logger.Debug("the agent ends a session", "peer", s.peer, "error", last.Error, "lost", last.Lost, "reason", last.Message)
	s.write(line(last), true)
	s.linger()
}

// linger tells the client that nothing more comes, and leaves it time to close the
// connection.
func (s *session) linger() {
	if half, ok := s.conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite() // the client reads the end now
	}
	s.await()
}

// await bounds how long the client may take to close the connection: the grace, and at
// least until all is over that it was promised. An agent that is being stopped does not
// wait for that: finish leaves such locks to expire, unless the store frees them when the
// agent ends.
func (s *session) await() {
	s.mu.Lock()
	defer s.mu.Unlock()
	until := s.endedAt.Add(grace)
	if !s.closing || s.server.locks.Traits().Sessions {
		for _, l := range s.locks {
			if l.state == held && l.promised.After(until) {
				until = l.promised
			}
		}
	}
	_ = s.conn.SetReadDeadline(until)
}

// finish gives back all that the session has. A client that stays, and did not close the
// connection in time, keeps in the store what it was promised for longer.
func (s *session) finish(stays bool) {
	s.end(nil)
	_ = s.conn.Close()
	now := time.Now()
	s.mu.Lock()
	for _, l := range s.locks {
		if l.state != held {
			continue
		}
		l.state = releasing
		leave := stays && l.promised.After(now)
		s.busy.Go(func() {
			if leave {
				l.leave()
			}
			_ = s.release(l) // does nothing in the store if l was left
		})
	}
	s.mu.Unlock()
	s.busy.Wait()
}

const (
	// maxAsks is how many requests of one session may ask the store at a time.
	maxAsks = 100

	// maxUserAsks is how many those of one user may, in all sessions.
	maxUserAsks = 1000
)

// ask answers a request that holds nothing, in a goroutine.
func (s *session) ask(r request, do func(request) answer) {
	if s.user.asks.Add(1) > maxUserAsks {
		s.user.asks.Add(-1)
		s.refuse(r, codeBusy, "user %d has asked this agent %d times and not waited for the answers", s.user.id, maxUserAsks)
		return
	}
	s.mu.Lock()
	switch {
	case s.ended:
		s.mu.Unlock()
		s.user.asks.Add(-1)
		return
	case s.asks >= maxAsks:
		s.mu.Unlock()
		s.user.asks.Add(-1)
		s.refuse(r, codeBusy, "this session has asked %d times and not waited for the answers", maxAsks)
		return
	}
	s.asks++
	s.busy.Add(1)
	s.mu.Unlock()
	go func() {
		quick.Stack()
		defer s.busy.Done()
		a := do(r)
		s.mu.Lock()
		s.asks--
		s.mu.Unlock()
		s.user.asks.Add(-1)
		a.ID = r.ID
		s.answer(a)
	}()
}

// Answers.

// answer writes an answer.
func (s *session) answer(a answer) { s.send(line(a)) }

// refuse answers a request that is not done.
func (s *session) refuse(r request, code, format string, args ...any) {
	s.answer(answer{ID: r.ID, Error: code, Message: fmt.Sprintf(format, args...)})
}

// fail answers a request that failed with err.
func (s *session) fail(id int64, err error) {
	a := failure(err)
	a.ID = id
	s.answer(a)
}

func failure(err error) answer {
	if final, ok := errors.AsType[*once.FinalError](err); ok {
		return answer{Error: codeFailed, Message: driver.Printable(final.Text)}
	}
	return answer{Error: codeOf(err), Message: driver.Printable(err.Error())}
}

func (s *session) send(text []byte) { s.write(text, false) }

// write writes a line, if the session has not written its last one. It ends the session
// of a client that does not read: the kernel keeps what fits into the socket's buffer,
// the agent nothing beyond the answers of requests that it is working on.
func (s *session) write(text []byte, last bool) {
	s.writing.Lock()
	if s.silent {
		s.writing.Unlock()
		return
	}
	_, err := s.put(text)
	s.silent = last || err != nil // after half a line there is no other
	s.writing.Unlock()
	if err == nil || last {
		return
	}
	cut := s.shut(nil) // else the session has ended before: nothing is cut off
	s.linger()         // one that is gone ends the reading at once
	if cut {
		s.server.cfg.Logger.Warn("a client was cut off: it does not read, or has gone", "caller", s.user, "peer", s.peer, "error", err)
	}
}

// offer writes a line that the client may miss: it ends no session. After an error the client
// has not got it.
func (s *session) offer(text []byte) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.silent {
		return net.ErrClosed
	}
	n, err := s.put(text)
	if n > 0 { // the rest comes before the next line
		return nil
	}
	return err
}

// put writes what is left of a line, and then another one, of which it returns how much was
// written. Writing is locked.
func (s *session) put(text []byte) (n int, err error) {
	s.mu.Lock()
	until := time.Now().Add(writeTimeout)
	if end := s.endedAt.Add(grace); s.ended && end.Before(until) {
		until = end
	}
	_ = s.conn.SetWriteDeadline(until)
	s.mu.Unlock()
	before := len(s.rest)
	if before > 0 {
		text = append(s.rest, text...)
	}
	if n, err = s.conn.Write(text); n <= before {
		s.rest = s.rest[n:]
		return 0, err
	}
	s.rest = text[n:]
	return n - before, err
}

// codeOf says what went wrong in a word.
func codeOf(err error) string {
	switch {
	case errors.Is(err, once.ErrOtherRequest):
		return codeOther
	case errors.As(err, new(*once.UnrecordedError)):
		return codeUnkept
	case errors.As(err, new(*rules.UnknownError)), errors.As(err, new(*rules.RequestError)):
		return codeBad
	case errors.Is(err, baton.ErrHeld), errors.Is(err, context.DeadlineExceeded):
		return codeHeld
	case errors.Is(err, baton.ErrLost):
		return codeLost
	case errors.Is(err, baton.ErrUnsupported):
		return codeCannot
	case errors.As(err, new(*baton.KeyError)), errors.As(err, new(*baton.CapacityError)), errors.As(err, new(*baton.NotLockError)),
		errors.As(err, new(*driver.RequestError)):
		return codeBad
	}
	return codeStore
}

// causeOf says why a lease has ended in a word.
func causeOf(err error) string {
	lost, _ := errors.AsType[*baton.LostError](err)
	switch {
	case lost == nil:
	case lost.Cause == baton.Gone:
		return "gone"
	case lost.Cause == baton.Overheld:
		return "overheld"
	}
	return "expired"
}

func tokenText(token int64) string { return strconv.FormatInt(token, 10) }
