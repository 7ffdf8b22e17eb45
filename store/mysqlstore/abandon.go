package mysqlstore

import (
	"context"
	"time"

	"github.com/batonhq/baton/driver"
)

// What a server has been sent it executes, though the caller has left and the
// connection was closed. Whoever cleans up behind such an attempt to acquire
// does so over another connection and may come first, would find nothing, and
// what the attempt then leaves would hold the lock for its whole TTL. So the
// IDs of attempts without an answer are remembered, and their release is
// repeated. An ID is never used again after its release, so that harms nobody.

const (
	// remembered is how long after the attempt somebody may clean up.
	remembered = time.Minute

	// maxLeft bounds the work when everything fails at once. The TTL ends
	// the rest.
	maxLeft = 1000
)

// leave remembers an attempt without an answer.
func (s *Store) leave(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.left) >= maxLeft || s.left[id] != nil {
		return
	}
	s.left[id] = time.AfterFunc(remembered, func() { s.forget(id) })
}

// forget reports whether the attempt was remembered.
func (s *Store) forget(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	timer := s.left[id]
	if timer == nil {
		return false
	}
	timer.Stop()
	delete(s.left, id)
	return true
}

// releaseAgain repeats the release of a claim for a while, in the background.
func (s *Store) releaseAgain(c driver.Claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.serving.Go(func() {
		for _, d := range s.opts.repeats {
			timer := time.NewTimer(d)
			closing := false
			select {
			case <-timer.C:
			case <-s.quit:
				closing = true
			}
			timer.Stop()
			ctx, cancel := context.WithTimeout(s.life, patience)
			err := s.release(ctx, c)
			cancel()
			if err == nil || closing {
				return // found, and there is but one
			}
		}
	})
}
