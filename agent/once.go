package agent

import (
	"context"
	"errors"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/once"
)

// An attempt is the run of an operation by a client: the function of package once waits
// for the client's outcome. Each grant is followed by exactly one call of end: when the
// client finishes or unlocks, or when its session ends.
type attempt struct {
	ends     chan outcome // cap 1
	recorded chan error   // cap 1
}

type outcome struct {
	result []byte
	err    error
}

// errGivenUp is the outcome of an attempt that was not finished: the next client runs the
// operation.
var errGivenUp = errors.New("the client has not finished the operation")

// end ends the attempt, and returns when the outcome is recorded.
func (a *attempt) end(o outcome) error {
	a.ends <- o
	return <-a.recorded
}

// once begins an operation, or answers with its recorded outcome.
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
		// The end of the session bounds the run, not that of the wait.
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
				err = nil // the client wanted that
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

// finishAttempt records the outcome of an attempt of this session.
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
			err = nil // that is the recorded outcome
		}
		if err != nil {
			s.fail(r.ID, err)
			return
		}
		s.answer(answer{ID: r.ID, OK: true})
	}()
}
