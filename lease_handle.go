package baton

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/acquire"
	"github.com/batonhq/baton/internal/leasemath"
)

const handlePrefix = "baton1."

// ErrHandle says that a text is not a handle that Detach made.
var ErrHandle = errors.New("not a lease handle")

// handle is what Detach encodes for Attach.
type handle struct {
	Key      string `json:"k"`
	ID       string `json:"i"`
	Owner    string `json:"o,omitempty"`
	Weight   int64  `json:"w"`
	Capacity int64  `json:"c"`
	Ticket   int64  `json:"t"`
	Token    int64  `json:"n"`
	TTL      int64  `json:"l,omitempty"` // the shortest TTL that a late request of an earlier holder may set, in milliseconds
}

// Detach ends the lease here and leaves the lock in the store. Attach continues it, in
// this process or another. In between no process renews the lock: unless it is attached,
// it expires like the lock of a crashed holder, at Deadline at the earliest and within
// the TTL, with Config.LockDelay on top. Contexts of the lease end with the cause
// Detached.
//
// The handle is a secret, unlike every other text of this package: a program that has it
// can continue the lock or end it.
//
// Detach sends no request to the store. It detaches one lease, of any kind; the leases of
// a LockAll are detached one by one. Errors: ErrUnsupported if the store ties locks to
// the process that took them; a *LostError if the lease has ended; ErrCountedOn, and no
// effect, if nested leases need it.
func (l *Lease) Detach() (handle string, err error) {
	k := l.keeper
	if traits := k.locker.traits; traits.Sessions {
		return "", fail("detach", l.Key(), fmt.Errorf("store %s ties a lock to the process that took it: %w", traits.Store, ErrUnsupported))
	}
	if err := l.Err(); err != nil {
		return "", err
	}
	k.mu.Lock()
	if err := l.ended(); err != nil {
		k.mu.Unlock()
		return "", err
	}
	if l.outer != nil || !k.acq.Detachable() {
		k.mu.Unlock()
		return "", fail("detach", l.Key(), ErrCountedOn)
	}
	h := handleOf(&k.acq).encode()
	k.commit(k.acq.Lose(acquire.Detached))
	k.locker.released(l, k.locker.clock.Now(), false, k.lostError())
	return h, nil
}

// Attach continues a detached lease, with its token, and renews it from then on. The time
// of Config.MaxHold starts again; the kind of the lock stays.
//
// If the store is a driver.Mover (GUARANTEES.md), a handle can be attached once: the
// store moves the claim to a new ID. A second Attach of the same handle gets a
// *LostError, and late requests of the earlier process change nothing. On other stores
// the users of a handle must make sure that only one process attaches it: two would hold
// the same lease, and one could continue after the other has unlocked it.
//
// Errors: a *LostError if the lock is no longer held under that handle; ErrHandle for a
// text that is no handle; ErrUnavailable, after which the handle still works. After
// ErrUnknown or a context's error the handle may have been used up. Attach it again then:
// if that returns a *LostError, the lock ends by itself within the TTL.
func (l *Locker) Attach(ctx context.Context, handle string) (*Lease, error) {
	h, err := l.readHandle(handle)
	if err != nil {
		return nil, err
	}
	c, ttlCap := h.claim(), h.shortest()
	o := l.observe(ctx, c.Key, &ask{weight: c.Weight, capacity: c.Capacity})
	moves := l.moves()
	if moves {
		c.ID, c.Owner, c.Ticket, ttlCap = driver.NewID(), l.cfg.Owner, 0, 0
	}
	k := l.keep(c, l.terms, 0, ttlCap, nil)
	unsure, err := l.insist(ctx, l.terms, func(call context.Context, sent acquire.Moment) error {
		g, err := l.moveOrRenew(call, h.claim(), c.ID, c.Owner, l.terms.StoreTTL())
		if err == nil {
			err = l.sameGrant(c, g, h)
		}
		if err == nil {
			k.mu.Lock()
			k.commit(k.acq.Attached(l.clock.Now(), sent, g, h.Token))
		}
		return err
	})
	if err != nil {
		k.mu.Lock()
		e := k.acq.AttachFailed(moves && unsure)
		k.commit(e &^ acquire.ReleaseClaim)
		if e&acquire.ReleaseClaim != 0 {
			l.forget(c, l.terms)
		}
		err = h.failed(ctx, "attach", err)
		o.failed(err)
		return nil, err
	}
	lease := k.issue(nil, false, ctx)
	if lease == nil {
		err = k.lostError()
		o.failed(err)
		return nil, err
	}
	o.acquired(lease)
	return lease, nil
}

// Extend renews a detached lease once and leaves it detached, for programs that run only
// now and then, such as the commands of a script. The lease lasts for Config.TTL from
// now, or for its own TTL if that is longer. Extend returns the time until which the
// lease lasts at least. Its errors are Attach's, but it never uses the handle up.
func (l *Locker) Extend(ctx context.Context, handle string) (until time.Time, err error) {
	h, err := l.readHandle(handle)
	if err != nil {
		return until, err
	}
	// This request may arrive after an Attach, whose process relies on its TTL.
	ttl := max(l.terms.StoreTTL(), h.shortest())
	_, err = l.insist(ctx, l.terms, func(call context.Context, sent acquire.Moment) error {
		g, err := l.renewOnce(call, h.claim(), ttl)
		if err == nil {
			err = l.sameGrant(h.claim(), g, h)
		}
		if err == nil {
			end := sent.Add(l.terms.TrustFor(g.TTL))
			until = time.Now().Add(end.Sub(l.clock.Now()))
		}
		return err
	})
	if err != nil {
		return time.Time{}, h.failed(ctx, "extend", err)
	}
	return until, nil
}

// sameGrant is ErrLost if g, the claim that the store has found under a handle's ID, is
// not the handle's grant. In that case the handle's grant has ended, and a late request
// to acquire was carried out since. No process waits for that claim, and its token may be
// lower than one granted in between, so sameGrant releases it, under the ID of c.
func (l *Locker) sameGrant(c driver.Claim, g driver.Grant, h handle) error {
	if g.Token == h.Token/leasemath.TokensPerGrant {
		return nil
	}
	c.Ticket = g.Ticket
	l.forget(c, l.terms)
	return driver.ErrLost
}

// moves reports whether the store can move a claim to another ID.
func (l *Locker) moves() bool {
	_, ok := driver.As[driver.Mover](l.store)
	return ok
}

// moveOrRenew moves the claim c to the ID next, with owner, and renews it for ttl. If the
// store cannot move claims, it only renews.
func (l *Locker) moveOrRenew(ctx context.Context, c driver.Claim, next, owner string, ttl time.Duration) (driver.Grant, error) {
	if mover, ok := driver.As[driver.Mover](l.store); ok {
		return mover.Move(ctx, c, next, owner, ttl)
	}
	return l.renewOnce(ctx, c, ttl)
}

// renewOnce renews a claim. It is an error if the claim is not held.
func (l *Locker) renewOnce(ctx context.Context, c driver.Claim, ttl time.Duration) (driver.Grant, error) {
	switch r := l.store.Renew(ctx, []driver.Claim{c}, ttl)[0]; r.State {
	case driver.Held:
		return r.Grant, nil
	case driver.Unknown:
		return driver.Grant{}, r.Err
	}
	return driver.Grant{}, driver.ErrLost
}

func (h handle) claim() driver.Claim {
	return driver.Claim{Key: h.Key, ID: h.ID, Owner: h.Owner, Weight: h.Weight, Capacity: h.Capacity, Ticket: h.Ticket}
}

// shortest is the shortest TTL that a late request of an earlier holder may set, 0 if
// that is unknown.
func (h handle) shortest() time.Duration { return time.Duration(h.TTL) * time.Millisecond }

func (h handle) failed(ctx context.Context, verb string, err error) error {
	if errors.Is(err, driver.ErrLost) {
		return &LostError{Key: h.Key, Token: h.Token, Cause: Gone}
	}
	return fail(verb, h.Key, blame(ctx, err))
}

func handleOf(a *acquire.Machine) handle {
	c := a.Claim()
	return handle{c.Key, c.ID, c.Owner, c.Weight, c.Capacity, c.Ticket, a.LeaseToken(), a.Capped(a.Terms().StoreTTL()).Milliseconds()}
}

// ClaimHandle makes a handle of a lock that a program took with driver.Locks.Acquire, as
// the adapters of package compat do. Attach continues the lock; ReadHandle returns the
// token of that lease. ttl is the shortest TTL that the program has asked for. The grant
// must be held, else ReadHandle and Attach refuse the handle.
func ClaimHandle(c driver.Claim, g driver.Grant, ttl time.Duration) string {
	return handle{c.Key, c.ID, c.Owner, c.Weight, c.Capacity, g.Ticket, g.Token * leasemath.TokensPerGrant, ttl.Milliseconds()}.encode()
}

func (h handle) encode() string {
	raw, err := json.Marshal(h)
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	return handlePrefix + base64.RawURLEncoding.EncodeToString(raw)
}

// readHandle parses a handle and refuses one that this store cannot have made.
func (l *Locker) readHandle(text string) (h handle, err error) {
	if h, err = parseHandle(text); err != nil {
		return h, err
	}
	if check.Request(driver.Request{Claim: h.claim(), TTL: l.terms.StoreTTL()}, l.traits) != nil {
		return h, fmt.Errorf("baton: attach: %w of a lock in store %s", ErrHandle, l.traits.Store)
	}
	return h, nil
}

// parseHandle never shows the text in an error: it may be a secret.
func parseHandle(text string) (h handle, err error) {
	body, ok := strings.CutPrefix(text, handlePrefix)
	if !ok {
		return h, fmt.Errorf("baton: attach: %w: it does not begin with %q", ErrHandle, handlePrefix)
	}
	raw, err := base64.RawURLEncoding.DecodeString(body)
	if err == nil {
		err = json.Unmarshal(raw, &h)
	}
	if err != nil || h.Token <= 0 || h.TTL < 0 || check.Claim(h.claim()) != nil {
		return h, fmt.Errorf("baton: attach: %w: it is damaged", ErrHandle)
	}
	return h, nil
}

// ReadHandle returns the key and the token of a handle's lease, or ErrHandle if the text
// is no handle. It does not ask the store whether the lease is valid.
func ReadHandle(handle string) (key string, token int64, err error) {
	h, err := parseHandle(handle)
	return h.Key, h.Token, err
}
