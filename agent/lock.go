package agent

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/quick"
	"github.com/batonhq/baton/internal/roles"
	"github.com/batonhq/baton/once"
)

func (s *session) lock(r request, received time.Time) {
	keys := []string{r.Key}
	if len(r.Keys) > 0 {
		keys = slices.Compact(slices.Sorted(slices.Values(r.Keys)))
	}
	for _, key := range keys {
		if err := check.Key(key); err != nil {
			s.fail(r.ID, err)
			return
		}
		if of, ok := strings.CutPrefix(key, once.LockPrefix); ok { // such a lock would block the operation
			s.refuse(r, codeBad, "below %s are the locks of operations: use once, with the key %q", once.LockPrefix, of)
			return
		}
	}
	var opts []baton.Option
	switch r.Mode {
	case modeShared:
		opts = append(opts, baton.Shared())
	case modePermits:
		opts = append(opts, baton.Permits(int(r.N), int(r.Of)))
	default:
		r.Mode = modeExclusive
	}
	if r.Value != "" {
		opts = append(opts, baton.Owner(r.Value))
	}
	l := &lock{session: s, id: r.ID, keys: keys, mode: r.Mode, asked: received}
	s.begin(l, r, func(ctx context.Context) { s.acquire(ctx, l, r, opts, received) })
}

// begin adds l to the session, unless the request is refused, and calls wait in a
// goroutine. The context ends when the wait must.
func (s *session) begin(l *lock, r request, wait func(context.Context)) {
	var ctx context.Context
	if r.WaitMS > 0 {
		ctx, l.cancel = context.WithTimeoutCause(context.Background(), time.Duration(r.WaitMS)*time.Millisecond, waitOver{})
	} else {
		ctx, l.cancel = context.WithCancel(context.Background())
	}
	if !s.enter(l) {
		l.cancel()
		return
	}
	go func() {
		quick.Stack()
		defer s.busy.Done()
		defer l.cancel()
		wait(ctx)
	}()
}

// waitOver is the cause of the end of a wait that took its time. errors.Is finds
// DeadlineExceeded in it.
type waitOver struct{}

func (waitOver) Error() string { return "the wait is over" }

func (waitOver) Unwrap() error { return context.DeadlineExceeded }

// enter adds l to the session, unless the request is refused. If it does, the caller calls
// busy.Done once l has an outcome.
func (s *session) enter(l *lock) (entered bool) {
	refuse := func(code, format string, args ...any) bool {
		s.answer(answer{ID: l.id, Error: code, Message: fmt.Sprintf(format, args...)})
		return false
	}
	n := int64(len(l.keys))
	if most := int64(s.server.cfg.MaxUserLocks); s.user.locks.Add(n) > most {
		s.user.locks.Add(-n)
		return refuse(codeBusy, "user %d has %d locks at this agent, as many as a user is allowed", s.user.id, most)
	}
	s.mu.Lock()
	code, message := s.admits(l)
	if code == "" && !s.ended {
		s.locks[l.id] = l
		s.keys += len(l.keys)
		s.busy.Add(1)
		entered = true
	}
	s.mu.Unlock()
	switch {
	case code != "":
		s.user.locks.Add(-n)
		return refuse(code, "%s", message)
	case !entered:
		s.user.locks.Add(-n)
		return false
	}
	s.server.table.add(l)
	// From here on Recheck finds l, so no change of the roles is missed.
	if err := l.permitted(); err != nil {
		s.drop(l)
		s.busy.Done()
		s.deny(l.id, err)
		return false
	}
	return true
}

// permitted returns an error if the user may not have the lock, or run the operation.
func (l *lock) permitted() error {
	verb, prefix := roles.Lock, ""
	if l.attempt != nil {
		verb, prefix = roles.Once, once.LockPrefix
	}
	for _, key := range l.keys {
		if err := l.session.server.may(l.session.peer, verb, strings.TrimPrefix(key, prefix)); err != nil {
			return err
		}
	}
	return nil
}

// admits returns why the session cannot have l, or "". s.mu is locked.
func (s *session) admits(l *lock) (code, message string) {
	if s.locks[l.id] != nil {
		return codeBad, fmt.Sprintf("the id %d is that of a lock of this session", l.id)
	}
	if most := s.server.cfg.MaxLocks; s.keys+len(l.keys) > most {
		return codeBusy, fmt.Sprintf("this session has %d locks, as many as a session is allowed", most)
	}
	for _, other := range s.locks {
		if other.state != held && other.state != waiting {
			continue
		}
		for _, key := range l.keys {
			if slices.Contains(other.keys, key) {
				return codeNested, fmt.Sprintf("lock %d of this session is that of %q, and would wait for itself: use a session for each task", other.id, driver.Printable(key))
			}
		}
	}
	return "", ""
}

// acquire waits for the lock, and answers the request.
func (s *session) acquire(ctx context.Context, l *lock, r request, opts []baton.Option, received time.Time) {
	lease, err := s.obtain(ctx, l, r, opts)
	if err == nil && !s.hold(l, lease, r) { // the wait was ended at the same time
		_ = lease.Unlock() // an error says when the lock is free, which this client does not need
		err = errEnded
	}
	if err != nil {
		s.failLock(l, err)
		return
	}
	s.granted(l, received, answer{})
}

// obtain waits for the lock, or for the locks of all keys.
func (s *session) obtain(ctx context.Context, l *lock, r request, opts []baton.Option) (holding, error) {
	try, locks := r.has&fieldWait != 0 && r.WaitMS == 0, s.server.locks
	if len(r.Keys) > 0 {
		lock := locks.LockAll
		if try {
			lock = locks.TryLockAll
		}
		return lock(ctx, l.keys, opts...)
	}
	lock := locks.Lock
	if try {
		lock = locks.TryLock
	}
	return lock(ctx, r.Key, opts...)
}

// errEnded is the error of a wait that the client, or the end of its session, has ended.
var errEnded = errors.New("the wait was ended")

// granted answers with the lease and the rest of a, and watches the lease.
func (s *session) granted(l *lock, received time.Time, a answer) {
	remaining := l.remaining(received)
	switch err := l.lease.Err(); {
	case s.promise(l, received, remaining, err == nil):
		a.ID, a.OK, a.RemainingMS = l.id, true, &remaining
		if _, several := l.lease.(*baton.Leases); several {
			a.Tokens = make(map[string]string, len(l.keys))
			for _, key := range l.keys {
				a.Tokens[key] = l.token(key)
			}
		} else {
			a.Token = l.token(l.keys[0])
		}
		if !l.until.IsZero() {
			a.MaxHoldMS = l.until.Sub(l.since).Milliseconds()
		}
		s.answer(a)
	case !s.holds(l): // the client has unlocked it before this answer
		s.answer(answer{ID: l.id, Error: codeCancelled, Message: errEnded.Error()})
	}
	s.watch(l) // if the lease is lost, the end of the session is the answer
}

// promise notes what the client is about to be told: that it has the lock for remaining
// milliseconds from received. It returns false if the client must not be told that.
func (s *session) promise(l *lock, received time.Time, remaining int64, valid bool) bool {
	until := received.Add(time.Duration(remaining) * time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !valid || s.ended || l.state != held {
		return false
	}
	if until.After(l.promised) {
		l.promised = until
	}
	return true
}

// hold gives a granted lease to l. It returns false if the wait has ended: then the lease
// stays with the caller. The fields that it sets do not change afterwards, but for state.
func (s *session) hold(l *lock, lease holding, r request) bool {
	longest := s.server.cfg.MaxHold
	if own := time.Duration(r.MaxHoldMS) * time.Millisecond; own > 0 && (longest == 0 || own < longest) {
		longest = own
	}
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.state != waiting {
		return false
	}
	l.state, l.lease, l.since = held, lease, now
	if longest > 0 {
		l.until = now.Add(longest)
	}
	return true
}

// watch ends the session when the lease is lost, or held for too long. It is called after
// the answer to the client. It notices an earlier loss at once.
func (s *session) watch(l *lock) {
	stop := context.AfterFunc(l.lease.Context(context.Background()), func() { s.lost(l) })
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.state != held {
		stop()
		return
	}
	l.stop = stop
	if !l.until.IsZero() {
		l.timer = time.AfterFunc(time.Until(l.until), func() { s.overheld(l) })
	}
}

// lost ends the session if the lease was lost. An unlock also ends the lease's context.
func (s *session) lost(l *lock) {
	if !s.holds(l) {
		return
	}
	err := l.lease.Err()
	if err == nil {
		return
	}
	s.end(&answer{Lost: l.id, Error: codeLost, Cause: causeOf(err), Message: driver.Printable(err.Error())})
}

func (s *session) overheld(l *lock) {
	if !s.holds(l) {
		return
	}
	s.end(&answer{Lost: l.id, Error: codeLost, Cause: "overheld", Message: fmt.Sprintf("lock %q was held for the longest time allowed", driver.Printable(l.keys[0]))})
}

func (s *session) holds(l *lock) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return l.state == held
}

func (s *session) unlock(r request) {
	s.mu.Lock()
	l := s.locks[r.Lock]
	switch {
	case s.ended:
		s.mu.Unlock()
		return
	case l == nil || l.state == releasing || l.state == dropping:
		s.mu.Unlock()
		s.refuse(r, codeBad, "this session has no lock %d: it was unlocked before, or never asked for", r.Lock)
		return
	case l.state == waiting:
		l.state = dropping
		l.cancel()
		s.mu.Unlock()
		s.answer(answer{ID: r.ID, OK: true})
		return
	}
	l.state = releasing
	s.busy.Add(1)
	s.mu.Unlock()
	go func() { // the session's goroutine must not wait for the store
		quick.Stack()
		defer s.busy.Done()
		if err := s.release(l); err != nil {
			s.fail(r.ID, err)
			return
		}
		runtime.Gosched() // the next holder gets its answer first
		s.answer(answer{ID: r.ID, OK: true})
	}()
}

// release unlocks a lock whose state the caller has set to releasing.
func (s *session) release(l *lock) error {
	s.unwatch(l)
	if l.attempt != nil {
		return l.attempt.end(outcome{err: errGivenUp})
	}
	err := l.lease.Unlock()
	s.drop(l)
	return err
}

// leave ends the lease in this process, and leaves the lock in the store until it expires.
func (l *lock) leave() {
	if all, ok := l.lease.(*baton.Leases); ok {
		for _, key := range all.Keys() {
			_, _ = all.Lease(key).Detach()
		}
		return
	}
	_, _ = l.lease.(*baton.Lease).Detach() // after an error there is no lease to leave
}

// unwatch stops watch, to free its resources: lost and overheld check the state anyway.
func (s *session) unwatch(l *lock) {
	s.mu.Lock()
	stop, timer := l.stop, l.timer
	s.mu.Unlock()
	if stop != nil {
		stop()
	}
	if timer != nil {
		timer.Stop()
	}
}

// drop removes a finished lock from the session. It reports whether the client, or the end
// of the session, ended the wait for it.
func (s *session) drop(l *lock) (ended bool) {
	s.mu.Lock()
	ended = l.state == dropping
	delete(s.locks, l.id)
	s.keys -= len(l.keys)
	s.mu.Unlock()
	s.user.locks.Add(-int64(len(l.keys)))
	s.server.table.remove(l)
	return ended
}

// check answers for how long the client certainly has the lock.
func (s *session) check(r request, received time.Time) {
	s.mu.Lock()
	l := s.locks[r.Lock]
	if l == nil || l.state != held {
		s.mu.Unlock()
		s.refuse(r, codeLost, "this session does not hold a lock %d", r.Lock)
		return
	}
	s.mu.Unlock()
	if err := l.lease.Err(); err != nil { // the loss also ends the session
		s.fail(r.ID, err)
		return
	}
	if remaining := l.remaining(received); s.promise(l, received, remaining, true) {
		s.answer(answer{ID: r.ID, OK: true, RemainingMS: &remaining})
		return
	}
	if !s.over() { // else the session's last line is the answer
		s.refuse(r, codeLost, "this session does not hold a lock %d", r.Lock)
	}
}

// remaining returns how long the lock lasts at least, counted from received, in
// milliseconds. The client counts from when it sent the request, which was earlier, so it
// considers itself the holder for a shorter time.
func (l *lock) remaining(received time.Time) int64 {
	end := l.lease.Deadline()
	if !l.until.IsZero() && l.until.Before(end) { // until is constant once l is held
		end = l.until
	}
	return max(0, end.Sub(received).Milliseconds())
}

// failLock removes a lock that the client did not get, and answers why. If the holder is a
// client of this agent, the answer names the process: the store knows only the agent. It
// names no holder to a user who may not list the key.
func (s *session) failLock(l *lock, err error) {
	a := failure(err)
	switch ended := s.drop(l); {
	case ended:
		a = answer{Error: codeCancelled, Message: errEnded.Error()}
	case a.Error == codeHeld:
		key := l.keys[0]
		if of, ok := errors.AsType[*baton.HeldError](err); ok && l.attempt == nil { // of an attempt, of.Key is the operation
			key = of.Key
		}
		if s.server.may(s.peer, roles.List, key) == nil {
			a.Message += s.server.table.holder(key)
		} else {
			a.Message = (&baton.HeldError{Key: driver.Printable(key)}).Error()
		}
	}
	a.ID = l.id
	s.answer(a)
}
