package agent

import (
	"context"
	"errors"
	"slices"

	"github.com/batonhq/baton/internal/lockfeed"
	"github.com/batonhq/baton/internal/roles"
)

// maxWatches is the largest number of watches of one user: each reads lists.
const maxWatches = 8

// A watchLine is the line of one event.
type watchLine struct {
	lockfeed.Event
	ID   int64  `json:"id"`
	OK   bool   `json:"ok"`
	What string `json:"event"`
}

// gap is the event that tells a client that read too slowly that it missed events. The
// present state follows, up to lockfeed.Ready.
const gap = "gap"

// stream runs f, which writes lines until the session ends, unless the user has
// maxWatches.
func (s *session) stream(r request, f func() error) {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return
	}
	if s.user.watches.Add(1) > maxWatches {
		s.mu.Unlock()
		s.user.watches.Add(-1)
		s.refuse(r, codeBusy, "user %d has %d watches at this agent, as many as a user is allowed", s.user.id, maxWatches)
		return
	}
	s.busy.Add(1)
	s.mu.Unlock()
	go func() {
		defer s.busy.Done()
		defer s.user.watches.Add(-1)
		err := f()
		var many *lockfeed.TooManyError
		switch {
		case err == nil, errors.Is(err, errWatchEnded), errors.Is(err, context.Canceled):
		case errors.As(err, &many):
			s.refuse(r, codeBusy, "%v", many)
		default:
			s.fail(r.ID, err)
		}
	}()
}

// follow tells the client the events of the locks below a prefix.
func (s *session) follow(r request) error {
	missed := false
	return s.server.looks.Follow(s.ctx, r.Key, func(all []lockfeed.Event) error {
		if !s.permits(r, roles.List) {
			return errWatchEnded
		}
		if len(all) > 0 && missed {
			all = slices.Insert(all, 0, lockfeed.Event{What: gap})
		}
		for _, e := range all {
			if missed = s.offer(line(watchLine{e, r.ID, true, e.What})) != nil; missed {
				return lockfeed.ErrMissed
			}
		}
		return nil
	})
}

// errWatchEnded ends the watch of a user who may not watch any more, and was told so.
var errWatchEnded = errors.New("the watch was ended")
