package baton

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
)

const handlePrefix = "baton1."

// ErrHandle says that a text is not a handle that Detach made.
var ErrHandle = errors.New("not a lease handle")

// handle is what goes from process to process.
type handle struct {
	Key      string `json:"k"`
	ID       string `json:"i"`
	Owner    string `json:"o,omitempty"`
	Weight   int64  `json:"w"`
	Capacity int64  `json:"c"`
	Ticket   int64  `json:"t"`
	Token    int64  `json:"n"`
}

// Detach ends the lease here and lets the lock live on in the store: for the
// rest of its time, or until Attach takes it up in this process or another.
// The handle is all that is needed for that, so it is a secret, and for one
// taker only: two who attach it believe in the same lease. Contexts of the
// lease end with the cause Detached.
//
// Errors: ErrUnsupported if the store ties locks to the process that took
// them; a *LostError if the lease has ended; an error and no effect if nested
// leases count on it.
func (l *Lease) Detach() (handle string, err error) {
	if traits := l.stake.locker.traits; traits.Sessions {
		return "", fail("detach", l.Key(), fmt.Errorf("store %s ties a lock to the process that took it: %w", traits.Store, ErrUnsupported))
	}
	if err := l.Err(); err != nil {
		return "", err
	}
	t := l.tenant()
	s := t.stake
	s.mu.Lock()
	if err := l.errLocked(); err != nil {
		s.mu.Unlock()
		return "", err
	}
	if t.depth > 1 || l != t || s.frozen {
		s.mu.Unlock()
		return "", fail("detach", l.Key(), errors.New("nested locks count on the lease, or it is being downgraded"))
	}
	h := newHandle(s.claim, t.token)
	after := s.loseLocked(Detached)
	s.mu.Unlock()
	after()
	return h, nil
}

// Attach takes up a lease that was detached, with its token, and renews it at
// once. It returns a *LostError if the lock is no longer held under that
// handle, ErrHandle for a text that is none; ErrUnavailable, ErrUnknown, or the
// context's error if the store did not answer: the lease may stand then, and
// Attach may be tried again.
func (l *Locker) Attach(ctx context.Context, handle string) (*Lease, error) {
	h, err := parseHandle(handle)
	if err != nil {
		return nil, err
	}
	s := &stake{locker: l}
	s.claim = driver.Claim{Key: h.Key, ID: h.ID, Owner: h.Owner, Weight: h.Weight, Capacity: h.Capacity, Ticket: h.Ticket}
	s.index = -1
	s.watch()
	for began := bootclock.Coarse(); ; {
		sent := bootclock.Coarse()
		call := l.acquiring.within(ctx, sent)
		r := l.store.Renew(call, []driver.Claim{s.claim}, l.storeTTL())[0]
		call.release()
		switch {
		case r.State == driver.Held:
			s.mu.Lock()
			s.grantedLocked(sent, r.Grant, false)
			s.confirming = false
			s.token, s.lent = h.Token/tokensPerGrant, h.Token%tokensPerGrant
			s.mu.Unlock()
			if lease := s.lend(nil, false); lease != nil {
				return lease, nil
			}
			return nil, s.lostError()
		case r.State != driver.Unknown:
			s.quit()
			return nil, &LostError{Key: h.Key, Token: h.Token, Cause: Gone}
		}
		past := bootclock.Coarse().Sub(began)
		if final(r.Err) || past > l.patience() || sleep(ctx, pause(past)) != nil {
			s.quit()
			return nil, fail("attach", h.Key, blame(ctx, r.Err))
		}
	}
}

func newHandle(c driver.Claim, token int64) string {
	raw, err := json.Marshal(handle{c.Key, c.ID, c.Owner, c.Weight, c.Capacity, c.Ticket, token})
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	return handlePrefix + base64.RawURLEncoding.EncodeToString(raw)
}

// parseHandle never shows what it was given: it may be a secret.
func parseHandle(text string) (h handle, err error) {
	body, ok := strings.CutPrefix(text, handlePrefix)
	if !ok {
		return h, fmt.Errorf("baton: attach: %w: it does not begin with %q", ErrHandle, handlePrefix)
	}
	raw, err := base64.RawURLEncoding.DecodeString(body)
	if err == nil {
		err = json.Unmarshal(raw, &h)
	}
	c := driver.Claim{Key: h.Key, ID: h.ID, Owner: h.Owner, Weight: h.Weight, Capacity: h.Capacity}
	if err != nil || h.Token <= 0 || driver.CheckClaim(c) != nil {
		return h, fmt.Errorf("baton: attach: %w: it is damaged", ErrHandle)
	}
	return h, nil
}

// HandleKey is the key of the lock that a handle is for. ErrHandle if it is
// none.
func HandleKey(handle string) (string, error) {
	h, err := parseHandle(handle)
	return h.Key, err
}
