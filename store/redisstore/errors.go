package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

// refusals are the errors that a server returns before a command or a script has changed
// anything: it checks these conditions first, or before the first write of a script.
var refusals = map[string]refusal{
	"READONLY":    elsewhere, // a replica, or a primary that was demoted
	"MASTERDOWN":  elsewhere,
	"LOADING":     elsewhere, // it was restarted, or copies data from a new primary
	"NOREPLICAS":  elsewhere, // a primary that was cut off may have a successor
	"UNKILLABLE":  elsewhere, // only a restart or a successor helps
	"CLUSTERDOWN": passing,
	"TRYAGAIN":    passing, // keys are being moved
	"MOVED":       passing,
	"ASK":         passing,
	"BUSY":        passing, // another script runs for too long
	"MISCONF":     passing, // cannot save
	"OOM":         passing,
	"NOSCRIPT":    passing,
	"NOAUTH":      noAccess,
	"WRONGPASS":   noAccess,
	"NOPERM":      noAccess,
}

type refusal int

const (
	passing   refusal = iota + 1 // this server may accept it later
	elsewhere                    // the address may lead to another server now, which accepts it
	noAccess                     // only another configuration helps
)

// refusalOf is the kind of a refusal, 0 if err is none.
func refusalOf(err error) refusal {
	if e, ok := errors.AsType[*wire.ServerError](err); ok {
		return refusals[e.Code()]
	}
	return 0
}

// PermissionError says that the server denies its user what a lock or a limit needs.
// Nothing was changed; another try does not help. It wraps driver.ErrDenied.
type PermissionError struct {
	Text string // what the server answered
}

// Unwrap returns driver.ErrDenied.
func (e *PermissionError) Unwrap() error { return driver.ErrDenied }

func (e *PermissionError) Error() string {
	return fmt.Sprintf("redis does not let this user do that (%s): give it the keys ~PREFIX*, the channels &PREFIXbaton:* "+
		"and the commands that scripts need (ACL SETUSER NAME ~PREFIX* &PREFIXbaton:* +@all -@admin +role), with the prefix of the URL, if any", e.Text)
}

// failure maps an error of the client to one of package driver.
func failure(err error) error {
	if errors.Is(err, driver.ErrClosed) {
		return driver.ErrClosed
	}
	if errors.Is(err, wire.ErrNotSent) {
		if c := contextError(err); c != nil {
			return c
		}
		return unavailable(err)
	}
	if refusalOf(err) != 0 {
		return opening(err)
	}
	return fmt.Errorf("redis: %w: %w", driver.ErrUnknown, err)
}

// opening is failure for requests that change nothing.
func opening(err error) error {
	switch e, _ := errors.AsType[*wire.ServerError](err); refusalOf(err) {
	case passing, elsewhere:
		return unavailable(driver.Answered(err, e.Text))
	case noAccess:
		if e.Code() == "NOPERM" {
			return &PermissionError{e.Text}
		}
		return fmt.Errorf("redis: %w, check the user and the password: %w", driver.ErrDenied, driver.Answered(err, e.Text))
	}
	return unavailable(err)
}

func unavailable(err error) error {
	return fmt.Errorf("redis: %w: %w", driver.ErrUnavailable, err)
}

func contextError(err error) error {
	for _, c := range []error{context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, c) {
			return c
		}
	}
	return nil
}

// EvictionError refuses a server that would evict locks when its memory is full.
type EvictionError struct {
	Policy string // maxmemory-policy
}

// Finding implements driver.Refusal.
func (e *EvictionError) Finding() (driver.Finding, bool) { return evicts(e.Policy), true }

func (e *EvictionError) Error() string {
	return fmt.Sprintf("redis evicts keys when its memory is full (maxmemory-policy %s), locks among them: "+
		"set maxmemory-policy noeviction there, or allow it explicitly", e.Policy)
}

// ReplicaError refuses a replica: it accepts no locks, and its data are old.
type ReplicaError struct {
	Primary string // its address, if the server tells
}

// Finding implements driver.Refusal.
func (e *ReplicaError) Finding() (driver.Finding, bool) { return replica(e.Primary), true }

func (e *ReplicaError) Error() string {
	s := "redis server is a replica, which cannot grant locks: connect to its primary"
	if e.Primary != "" {
		s += " at " + e.Primary
	}
	return s + ", or through Sentinel"
}

// ReplicasError says that fewer replicas have acknowledged a lock than Config.Replicas
// requires. It wraps driver.ErrUnknown: the primary has granted or renewed the lock, and
// a failover may or may not keep that.
type ReplicasError struct {
	Key          string // of the lock, or of one in the same call
	Asked        Replicas
	Acknowledged int      // replicas that have acknowledged it
	Missing      []string // addresses of other required replicas
	Err          error    // why that is unknown, or nil
}

// Unwrap returns driver.ErrUnknown, and the context's error if one has ended. It leaves
// out other causes: driver.ErrUnavailable would say that the lock was not granted.
func (e *ReplicasError) Unwrap() []error {
	if c := contextError(e.Err); c != nil {
		return []error{driver.ErrUnknown, c}
	}
	return []error{driver.ErrUnknown}
}

func (e *ReplicasError) Error() string {
	s := fmt.Sprintf("redis: lock %q does not count: %d replicas have acknowledged it in time, asked for: %v", e.Key, e.Acknowledged, e.Asked)
	switch {
	case e.Err != nil:
		return fmt.Sprintf("%s (%v)", s, e.Err)
	case e.Missing != nil:
		return fmt.Sprintf("%s; missing: %s: look at the link between the primary and it, or ask for fewer with replicas=NUMBER", s, strings.Join(e.Missing, ", "))
	}
	return s + ": start more replicas, or ask for fewer with replicas=NUMBER"
}

// VersionError refuses a server that is too old.
type VersionError struct {
	Version string
}

// Finding implements driver.Refusal.
func (e *VersionError) Finding() (driver.Finding, bool) {
	if all := judgeVersion(e.Version); all != nil {
		return all[0], true
	}
	return driver.Finding{}, false
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("redis server is version %s, at least 6.2 is needed", e.Version)
}

func strange(script *wire.Script, answer any) error {
	return fmt.Errorf("redis: %w: script %s answered %v", driver.ErrUnknown, script.Name, answer)
}

func notLock(key, kind string) error {
	if kind == "string" {
		kind = "string without expiry"
	}
	return &driver.NotLockError{Key: key, Store: "redis", Found: "a " + kind}
}
