package mysqlstore

import (
	"context"
	"errors"
	"time"

	"github.com/batonhq/baton/driver"
)

// What a server has been sent it executes, though the caller has left and the
// connection was closed. Whoever cleans up behind such an attempt to acquire
// does so over another connection and may come first, would find nothing, and
// what the attempt then leaves would hold the lock for its whole TTL. So an
// attempt is remembered when its caller leaves, and a release of its ID is
// repeated once it has ended. An ID is never used again after its release, so
// that harms nobody.

// An attempt to acquire whose caller has left.
type attempt struct {
	ended   chan struct{}
	unknown bool // it has ended without an answer; to be read when ended
	again   bool // a release is to be repeated; guarded by Store.mu
}

const (
	// Within patientFor most attempts have ended.
	patientFor = 500 * time.Millisecond

	// An attempt that ended without an answer is remembered this long, for
	// those who clean up late.
	remembered = time.Minute

	// maxLeft bounds the work when everything fails at once. The TTL ends
	// the rest.
	maxLeft = 1000
)

// Of an attempt that ended without an answer nobody knows whether the server
// has yet to get at it.
var repeats = []time.Duration{0, 200 * time.Millisecond, time.Second, 5 * time.Second}

// leave remembers an attempt. outcome returns when it has ended. s.mu is held.
func (s *Store) leave(id string, outcome func() error) {
	if s.closed || len(s.left) >= maxLeft {
		return
	}
	x := &attempt{ended: make(chan struct{})}
	before := s.left[id]
	s.left[id] = x
	forget := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.left[id] == x {
			delete(s.left, id)
		}
	}
	s.serving.Add(1)
	go func() {
		defer s.serving.Done()
		x.unknown = errors.Is(outcome(), driver.ErrUnknown)
		if before != nil {
			<-before.ended
			x.unknown = x.unknown || before.unknown
		}
		close(x.ended)
		if x.unknown {
			time.AfterFunc(remembered, forget)
		} else {
			forget()
		}
	}()
}

// leftBehind is the attempt of an ID that may still come to something.
func (s *Store) leftBehind(id string) *attempt {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left[id]
}

// wait waits for the end of an attempt, but not for long, and reports whether
// it has come.
func (x *attempt) wait(ctx context.Context) bool {
	timer := time.NewTimer(patientFor)
	defer timer.Stop()
	select {
	case <-x.ended:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// releaseBehind releases a claim for which an attempt was left behind.
func (s *Store) releaseBehind(ctx context.Context, x *attempt, c driver.Claim) error {
	err := s.release(ctx, c)
	if errors.Is(err, driver.ErrLost) && x.wait(ctx) {
		if err = s.release(ctx, c); !x.unknown {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || x.again {
		return err
	}
	x.again = true
	s.serving.Add(1)
	go func() {
		defer s.serving.Done()
		<-x.ended
		for _, d := range repeats {
			if !s.pause(d) {
				return
			}
			ctx, cancel := context.WithTimeout(s.life, patience)
			err := s.release(ctx, c)
			cancel()
			if !x.unknown && (err == nil || errors.Is(err, driver.ErrLost)) {
				return
			}
		}
	}()
	return err
}

// pause reports false if the store was closed meanwhile.
func (s *Store) pause(d time.Duration) bool {
	if d == 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-s.quit:
		return false
	case <-timer.C:
		return true
	}
}
