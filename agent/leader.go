package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/election"
	"github.com/batonhq/baton/internal/roles"
)

// leaderTimeout bounds one request to the store about an election.
const leaderTimeout = 5 * time.Second

// leader answers who leads an election, which is the lock of the same name with a value.
func (s *session) leader(r request) answer {
	return s.election(func(ctx context.Context) (answer, error) {
		t, err := election.Leader(ctx, s.server.locks, r.Key)
		if errors.Is(err, election.ErrNoLeader) {
			err = nil
		}
		return leads(t), err
	})
}

// election makes one request to the store about an election.
func (s *session) election(request func(context.Context) (answer, error)) answer {
	ctx, cancel := context.WithTimeoutCause(s.ctx, leaderTimeout, errors.New("no answer in time"))
	defer cancel()
	a, err := request(ctx)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return answer{Error: codeStore, Message: "the store does not answer"}
	case err != nil:
		return failure(err)
	}
	return a
}

func leads(t election.Term) answer {
	a := answer{OK: true, Led: &t.Led, Value: t.Value}
	if t.Token > 0 {
		a.Token = tokenText(t.Token)
	}
	return a
}

// observe tells the client who leads an election, and each change.
func (s *session) observe(r request) error {
	for t, err := range election.Observe(s.ctx, s.server.locks, r.Key) {
		switch {
		case err != nil && (errors.As(err, new(*baton.KeyError)) || errors.Is(err, baton.ErrUnsupported)):
			return err
		case !s.permits(r, roles.Lock):
			return errWatchEnded
		}
		a := leads(t)
		a.ID, a.Unknown = r.ID, err != nil
		s.insist(a)
	}
	return nil
}

// proclaim changes the value of a lock.
func (s *session) proclaim(r request) answer {
	lease, _ := s.leaseOf(r)
	if lease == nil {
		return notOne(r)
	}
	return s.election(func(ctx context.Context) (answer, error) {
		return answer{OK: true}, lease.Rename(ctx, r.Value)
	})
}

// hear tells the client each request to release a lock, until the lock ends. Only one
// request for a lock may do that.
func (s *session) hear(r request) {
	lease, heard := s.leaseOf(r)
	switch {
	case lease == nil:
		s.answer(notOne(r))
		return
	case heard:
		s.refuse(r, codeBad, "this session hears the requests to release lock %d already", r.Lock)
		return
	}
	s.answer(answer{ID: r.ID, OK: true})
	go func() { // this goroutine ends with the lease
		for reason := range lease.Asked() {
			s.insist(answer{ID: r.ID, OK: true, Reason: reason})
		}
	}()
}

// leaseOf returns the lease of a lock of one key that the session holds, or nil. heard
// says that an earlier request hears the requests to release it; a request r for that is
// noted.
func (s *session) leaseOf(r request) (lease *baton.Lease, heard bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.locks[r.Lock]; l != nil && l.state == held {
		lease, _ = l.lease.(*baton.Lease)
		heard, l.hears = l.hears, l.hears || r.Do == doAsked
	}
	return lease, heard
}

func notOne(r request) answer {
	return answer{ID: r.ID, Error: codeBad, Message: fmt.Sprintf("this session holds no lock %d of one key", r.Lock)}
}

// insist writes a line, and tries again until the client reads it or the session ends.
func (s *session) insist(a answer) {
	for text := line(a); errors.Is(s.offer(text), os.ErrDeadlineExceeded) && s.ctx.Err() == nil; {
		continue
	}
}
