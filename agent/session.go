package agent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
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
// need no store. It waits only for the client, so that it notices the client's death at
// once. Every other request has a goroutine.
//
// Mutexes: mu guards the state and the connection's deadlines, writing guards the output.
// mu may be taken while writing is locked, not the other way round. Neither is locked
// during a call to the Locker.
type session struct {
	server *Server
	conn   net.Conn
	peer   peer
	user   *user

	ctx    context.Context // ends with the session
	cancel context.CancelFunc

	mu      sync.Mutex
	ended   bool      // no lock is granted, and no request read, any more
	endedAt time.Time // once ended
	closing bool      // the agent is being stopped
	locks   map[int64]*lock
	keys    int // in all locks
	asks    int // requests to the store that take no lock: see ask
	takes   map[int64]*reserved
	busy    sync.WaitGroup // goroutines of requests; none begins once ended is set

	writing sync.Mutex
	silent  bool   // the last line was written, or a write failed
	rest    []byte // the rest of a line that was written in part
}

// A lock is what one lock request wants. It is in session.locks from enter to drop.
type lock struct {
	session *session
	id      int64
	keys    []string // sorted, each once
	mode    string
	asked   time.Time
	cancel  context.CancelFunc // ends the wait

	// Guarded by session.mu.
	state    lockState
	lease    holding     // set once held
	since    time.Time   // held
	until    time.Time   // the end of the longest hold; zero: no bound
	promised time.Time   // the client was told that it has the lock until then
	stop     func() bool // ends the watch for a loss; nil: not watched
	timer    *time.Timer // fires at until

	attempt *attempt // constant; nil: no operation
	hears   bool     // the client is told requests to release it
}

// A holding is a *baton.Lease, or the *baton.Leases of several keys.
type holding interface {
	Err() error
	Deadline() time.Time
	Context(context.Context) context.Context
	Unlock() error
}

// token returns the token of one key of a lock that is, or was, held.
func (l *lock) token(key string) string {
	if all, ok := l.lease.(*baton.Leases); ok {
		return tokenText(all.Token(key))
	}
	return tokenText(l.lease.(*baton.Lease).Token())
}

type lockState uint8

const (
	waiting  lockState = iota
	dropping           // the wait was ended by the client, or with the session
	held
	releasing // the goroutine that set this unlocks it
)

// serve runs the session, until all its locks are gone.
func (s *session) serve() {
	s.server.cfg.Logger.Debug("session began", "peer", s.peer)
	s.send(s.server.hello)
	err := s.read()
	s.finish(errors.Is(err, os.ErrDeadlineExceeded))
	s.server.cfg.Logger.Debug("session ended", "peer", s.peer, "error", err)
	s.server.forget(s)
}

// read reads requests until the connection ends. In a session that the agent has ended it
// reads until the client has closed the connection, or the time of await is over.
func (s *session) read() error {
	in := bufio.NewReaderSize(s.conn, MaxLine)
	for {
		text, err := in.ReadSlice('\n')
		// A later moment is right, too: the client counts remaining_ms from an earlier
		// one, when it sent the request.
		received := time.Now()
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			s.end(&answer{Error: codeBad, Message: fmt.Sprintf("a line has at most %d bytes", MaxLine)})
			_, err = io.Copy(io.Discard, s.conn) // the line does not fit in the buffer
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

// recheck returns an error if the user may not have the session, or one of its locks, any
// more.
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

// end ends the session, once: its waits end, and no request is read any more. If the agent
// ends the session, last tells the client why, and the client has the time of await to
// close the connection. last is nil if the client has gone. finish does the rest.
func (s *session) end(last *answer) {
	if s.shut(last) && last != nil {
		s.tell(last)
	}
}

// shut is the part of end that does not block. It reports whether the session was open.
func (s *session) shut(last *answer) (first bool) {
	s.mu.Lock()
	if last != nil && last.Error == codeClosing {
		s.closing = true
	}
	if s.ended {
		closing := s.closing
		s.mu.Unlock()
		if closing {
			s.await() // for a shorter time than before
		}
		return false
	}
	s.ended, s.endedAt = true, time.Now()
	if last != nil {
		_ = s.conn.SetWriteDeadline(s.endedAt.Add(grace)) // also for a line that is being written
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

// tell is the part of end that may block, on a client that does not read.
func (s *session) tell(last *answer) {
	s.server.cfg.Logger.Debug("the agent ends a session", "peer", s.peer, "error", last.Error, "lost", last.Lost, "reason", last.Message)
	s.write(line(last), true)
	s.linger()
}

// linger ends the output, and leaves the client time to close the connection.
func (s *session) linger() {
	if half, ok := s.conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite() // the client reads EOF
	}
	s.await()
}

// await bounds how long the client may take to close the connection: the grace, and at
// least until the end of all that it was promised. A stopping agent waits only for the
// grace, and finish leaves promised locks to expire, unless the store frees locks when the
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

// finish releases all locks of the session. stays says that the client did not close the
// connection in time: then a lock that it was promised for longer is left in the store.
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
			_ = s.release(l) // does not change the store after leave
		})
	}
	s.mu.Unlock()
	s.busy.Wait()
}

const (
	// maxAsks is how many requests of one session may ask the store at a time.
	maxAsks = 100

	// maxUserAsks is the same for all sessions of one user.
	maxUserAsks = 1000
)

// ask answers, in a goroutine, a request that takes no lock.
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

func (s *session) answer(a answer) { s.send(line(a)) }

func (s *session) refuse(r request, code, format string, args ...any) {
	s.answer(answer{ID: r.ID, Error: code, Message: fmt.Sprintf(format, args...)})
}

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

// write writes a line, unless the session has written its last one. It ends the session of
// a client that does not read: the kernel keeps what fits into the socket's buffer, the
// agent only the answers to requests that it is working on.
func (s *session) write(text []byte, last bool) {
	s.writing.Lock()
	if s.silent {
		s.writing.Unlock()
		return
	}
	_, err := s.put(text)
	s.silent = last || err != nil // no line can follow half a line
	s.writing.Unlock()
	if err == nil || last {
		return
	}
	cut := s.shut(nil) // else the session had ended before, and the client is not cut off
	s.linger()         // for a client that has gone, read returns at once
	if cut {
		s.server.cfg.Logger.Warn("a client was cut off: it does not read, or has gone", "caller", s.user, "peer", s.peer, "error", err)
	}
}

// offer writes a line that the client may miss: a failure does not end the session. After
// an error the client has got nothing of the line.
func (s *session) offer(text []byte) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.silent {
		return net.ErrClosed
	}
	n, err := s.put(text)
	if n > 0 { // put writes the rest before the next line
		return nil
	}
	return err
}

// put writes the rest of an earlier line, and then text. It returns how much of text was
// written. writing is locked.
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
		text = slices.Concat(s.rest, text) // s.rest may be a part of the greeting, which all sessions share
	}
	if n, err = s.conn.Write(text); n <= before {
		s.rest = s.rest[n:]
		return 0, err
	}
	s.rest = text[n:]
	return n - before, err
}

// codeOf returns the code of an error.
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

// causeOf returns why a lease has ended, as answer.Cause.
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
