package agent

import (
	"context"
	"errors"
	"time"

	"github.com/batonhq/baton/election"
)

// leaderTimeout is how long the store may take to say who leads.
const leaderTimeout = 5 * time.Second

// leader tells who leads an election, which is the lock of the same name with a value.
func (s *session) leader(r request) answer {
	ctx, cancel := context.WithTimeoutCause(s.ctx, leaderTimeout, errors.New("no answer in time"))
	defer cancel()
	t, err := election.Leader(ctx, s.server.locks, r.Key)
	switch {
	case errors.Is(err, election.ErrNoLeader):
	case errors.Is(err, context.DeadlineExceeded):
		return answer{Error: codeStore, Message: "the store does not answer"}
	case err != nil:
		return failure(err)
	}
	a := answer{OK: true, Led: &t.Led, Value: t.Value}
	if t.Token > 0 {
		a.Token = tokenText(t.Token)
	}
	return a
}
