package agent

import (
	"context"
	"errors"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/once"
)

// An attempt is the run of an operation by a client: a function of package once that
// waits for what the client says. Exactly one call of end follows a grant, when the
// client finishes or unlocks it, or when its session ends.
type attempt struct {
	ends     chan outcome // cap 1
	recorded chan error   // cap 1
}

// outcome is how an attempt ended.
type outcome struct {
	result []byte
	err    error
}

// errGivenUp is the end of an attempt without an outcome: the next client runs it.
var errGivenUp = errors.New("the client has not finished the operation")

// end ends the attempt, and returns when that is recorded.
func (a *attempt) end(o outcome) error {
	a.ends <- o
	return <-a.recorded
}

// once begins an operation, or answers with what is recorded of it.
func (s *session) once(r request, received time.Time) {
	runner := s.server.cfg.Once
	if runner == nil {
		s.refuse(r, codeCannot, "this agent has no operations")
		return
	}
	do := runner.Do
	if r.has&fieldWait != 0 && r.WaitMS == 0 {
		do = runner.TryDo
	}
	var opts []once.Option
	if r.has&fieldRequest != 0 {
		opts = append(opts, once.Fingerprint(r.Request))
	}
	l := &lock{
		session: s, id: r.ID, keys: []string{once.LockPrefix + r.Key}, mode: modeExclusive, asked: received,
		attempt: &attempt{ends: make(chan outcome, 1), recorded: make(chan error, 1)},
	}
	s.begin(l, r, func(ctx context.Context) {
		// The session's end, and not the end of the wait, bounds the run.
		ran := false
		result, err := do(ctx, r.Key, func(_ context.Context, a once.Attempt) ([]byte, error) {
			if !s.hold(l, a.Lease, r) {
				return nil, errEnded
			}
			ran = true
			s.granted(l, received, answer{Run: true, Attempts: a.Attempts})
			o := <-l.attempt.ends
			return o.result, o.err
		}, opts...)
		switch {
		case ran:
			if errors.Is(err, errGivenUp) && !errors.Is(err, baton.ErrLost) {
				err = nil // it is what the client wanted
			}
			s.drop(l)
			l.attempt.recorded <- err
		case err != nil:
			s.failLock(l, err)
		default:
			s.drop(l)
			text := string(result)
			s.answer(answer{ID: r.ID, OK: true, Result: &text})
		}
	})
}

// finishAttempt records how an attempt of this session ended.
func (s *session) finishAttempt(r request) {
	s.mu.Lock()
	l := s.locks[r.Lock]
	switch {
	case s.ended:
		s.mu.Unlock()
		return
	case l == nil || l.attempt == nil || l.state != held:
		s.mu.Unlock()
		s.refuse(r, codeBad, "this session runs no operation %d: it was finished before, or never begun", r.Lock)
		return
	}
	l.state = releasing
	s.busy.Add(1)
	s.mu.Unlock()
	o := outcome{result: []byte(r.Result)}
	if r.has&fieldFailed != 0 {
		o = outcome{err: once.Final(errors.New(r.Failed))}
	}
	go func() {
		defer s.busy.Done()
		s.unwatch(l)
		err := l.attempt.end(o)
		if final, ok := errors.AsType[*once.FinalError](err); ok && r.has&fieldFailed != 0 && final != nil {
			err = nil // that is what was to be recorded
		}
		if err != nil {
			s.fail(r.ID, err)
			return
		}
		s.answer(answer{ID: r.ID, OK: true})
	}()
}
