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

// lock begins a lock request.
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
		if of, ok := strings.CutPrefix(key, once.LockPrefix); ok { // it would keep the operation from being run
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

// begin makes l a lock of the session, unless the request is refused, and calls wait in
// a goroutine, with a context that ends when the wait shall.
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

// waitOver is why the context of a wait has ended. It is a DeadlineExceeded.
type waitOver struct{}

func (waitOver) Error() string { return "the wait is over" }

// Unwrap is for errors.Is.
func (waitOver) Unwrap() error { return context.DeadlineExceeded }

// enter makes l a lock of the session, unless the request is refused. If it does, the
// caller calls busy.Done once l has an outcome.
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
	// Recheck finds l from now on: if the roles change after this look, it looks again.
	if err := l.permitted(); err != nil {
		s.drop(l)
		s.busy.Done()
		s.deny(l.id, err)
		return false
	}
	return true
}

// permitted says why the user may not have the lock, or run the operation.
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

// admits says why the session cannot have l. Its mutex is locked.
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

// acquire waits for the lock and answers the request.
func (s *session) acquire(ctx context.Context, l *lock, r request, opts []baton.Option, received time.Time) {
	lease, err := s.obtain(ctx, l, r, opts)
	if err == nil && !s.hold(l, lease, r) { // the wait was ended at the same time
		_ = lease.Unlock() // its error says when the lock is free: this client does not wait for it
		err = errEnded
	}
	if err != nil {
		s.failLock(l, err)
		return
	}
	s.granted(l, received, answer{})
}

// obtain waits for the lock, or for those of all its keys.
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

// errEnded is for a wait that the client has ended, or its session.
var errEnded = errors.New("the wait was ended")

// granted tells the client what it holds, with what else is in a, and watches over it.
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
	case !s.holds(l): // the client has unlocked it before it knew that it has it
		s.answer(answer{ID: l.id, Error: codeCancelled, Message: errEnded.Error()})
	}
	s.watch(l) // the loss, which ends the session, is the answer if there is one
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

// hold makes a granted lease that of l. It returns false if the wait was ended before:
// the lease is then the caller's. What it sets does not change any more.
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

// watch ends the session when the lease is lost, or held for too long. It begins once the
// client knows that it has the lock. A lease that was lost before is noticed at once.
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

// lost ends the session if the lease was lost. Its context ends after an unlock, too.
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

// unlock releases a lock, or ends the wait for it.
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
	go func() { // the store may take its time, and the reading must go on
		quick.Stack()
		defer s.busy.Done()
		if err := s.release(l); err != nil {
			s.fail(r.ID, err)
			return
		}
		runtime.Gosched() // who has the lock now hears of it first
		s.answer(answer{ID: r.ID, OK: true})
	}()
}

// release unlocks a lock that the caller has set to releasing.
func (s *session) release(l *lock) error {
	s.unwatch(l)
	if l.attempt != nil {
		return l.attempt.end(outcome{err: errGivenUp})
	}
	err := l.lease.Unlock()
	s.drop(l)
	return err
}

// leave ends the lease of a lock, and leaves the lock in the store until it expires.
func (l *lock) leave() {
	if all, ok := l.lease.(*baton.Leases); ok {
		for _, key := range all.Keys() {
			_, _ = all.Lease(key).Detach()
		}
		return
	}
	_, _ = l.lease.(*baton.Lease).Detach() // after an error there is nothing to leave
}

// unwatch ends watch. Without it nothing would go wrong: both look whether l is held.
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

// drop forgets a lock of which nothing is left. It reports whether the wait for it was
// ended by the client or with the session.
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

// check tells for how long the client has the lock for certain.
func (s *session) check(r request, received time.Time) {
	s.mu.Lock()
	l := s.locks[r.Lock]
	if l == nil || l.state != held {
		s.mu.Unlock()
		s.refuse(r, codeLost, "this session does not hold a lock %d", r.Lock)
		return
	}
	s.mu.Unlock()
	if err := l.lease.Err(); err != nil { // which ends the session, too
		s.fail(r.ID, err)
		return
	}
	if remaining := l.remaining(received); s.promise(l, received, remaining, true) {
		s.answer(answer{ID: r.ID, OK: true, RemainingMS: &remaining})
		return
	}
	if !s.over() { // else the end, and why, is the answer
		s.refuse(r, codeLost, "this session does not hold a lock %d", r.Lock)
	}
}

// remaining is how long the lock lasts at least, counted from received, in milliseconds.
// The client counts from when it sent the request, which was before, so that what it
// believes ends earlier.
func (l *lock) remaining(received time.Time) int64 {
	end := l.lease.Deadline()
	if !l.until.IsZero() && l.until.Before(end) { // until does not change once it is held
		end = l.until
	}
	return max(0, end.Sub(received).Milliseconds())
}

// failLock forgets a lock that the client did not get, and tells it why. It names the
// holder if that is a client of this agent: the store knows the agent only. It names none
// to a user who may not list the key.
func (s *session) failLock(l *lock, err error) {
	a := failure(err)
	switch ended := s.drop(l); {
	case ended:
		a = answer{Error: codeCancelled, Message: errEnded.Error()}
	case a.Error == codeHeld:
		key := l.keys[0]
		if of, ok := errors.AsType[*baton.HeldError](err); ok && l.attempt == nil { // else it names the operation
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
