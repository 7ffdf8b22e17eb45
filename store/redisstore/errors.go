package redisstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

// harmless are the error answers that come before a command or a script has
// changed anything: the server looks at these conditions first, or before the
// first write of a script.
var harmless = map[string]bool{
	"READONLY":    true, // a replica, or a primary that was demoted
	"LOADING":     true,
	"MASTERDOWN":  true,
	"CLUSTERDOWN": true,
	"TRYAGAIN":    true, // keys are being moved
	"MOVED":       true,
	"ASK":         true,
	"BUSY":        true, // another script runs for too long
	"NOREPLICAS":  true,
	"MISCONF":     true, // cannot save
	"OOM":         true,
	"NOAUTH":      true,
	"WRONGPASS":   true,
	"NOSCRIPT":    true,
	"UNKILLABLE":  true,
}

// PermissionError says that the server does not let its user do what a lock or a
// limit needs. Nothing was changed, and to ask again does not help.
type PermissionError struct {
	Text string // what the server answered
}

func (e *PermissionError) Error() string {
	return fmt.Sprintf("redis does not let this user do that (%s): give it the keys ~PREFIX*, the channels &PREFIXbaton:* "+
		"and the commands that scripts need (ACL SETUSER NAME ~PREFIX* &PREFIXbaton:* +@all -@admin), with the prefix of the URL, if any", e.Text)
}

// failure maps an error of the client to one of package driver.
func failure(err error) error {
	if errors.Is(err, wire.ErrNotSent) {
		if c := contextError(err); c != nil {
			return c
		}
		return unavailable(err)
	}
	if e, ok := errors.AsType[*wire.ServerError](err); ok {
		switch {
		case harmless[e.Code()]:
			return unavailable(err)
		case e.Code() == "NOPERM": // seen before a command or script begins
			return &PermissionError{e.Text}
		}
	}
	return fmt.Errorf("redis: %w: %w", driver.ErrUnknown, err)
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

// EvictionError refuses a server that would throw away locks when its memory
// is full.
type EvictionError struct {
	Policy string // maxmemory-policy
}

// Finding implements driver.Refusal.
func (e *EvictionError) Finding() (driver.Finding, bool) { return evicts(e.Policy), true }

func (e *EvictionError) Error() string {
	return fmt.Sprintf("redis evicts keys when its memory is full (maxmemory-policy %s), locks among them: "+
		"set maxmemory-policy noeviction there, or allow it explicitly", e.Policy)
}

// ReplicaError refuses a server that is a replica: it accepts no locks, and
// what it shows is old.
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

// VersionError refuses a server that is too old.
type VersionError struct {
	Version string
}

// Finding implements driver.Refusal.
func (e *VersionError) Finding() (driver.Finding, bool) { return version(e.Version) }

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
