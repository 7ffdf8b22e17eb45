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

// run runs a script, with its text if the server does not know it.
func (s *Store) run(ctx context.Context, script *wire.Script, keys, args []string) (any, error) {
	return s.runCall(ctx, wire.Call{Script: script, Keys: keys, Args: args})
}

func (s *Store) runCall(ctx context.Context, call wire.Call) (any, error) {
	if s.closed.Load() {
		return nil, driver.ErrClosed
	}
	v, err := s.client.Run(ctx, call)
	if err != nil && wire.IsNoScript(err) {
		call.Full = true
		v, err = s.client.Run(ctx, call)
	}
	if err != nil {
		return nil, failure(err)
	}
	return v, nil
}

// runAll runs scripts independently of each other.
func (s *Store) runAll(ctx context.Context, calls []wire.Call) []wire.Result {
	if s.closed.Load() {
		return failAll(len(calls), driver.ErrClosed)
	}
	results := s.client.RunAll(ctx, calls)
	for i := range results {
		if results[i].Err != nil {
			results[i].Err = failure(results[i].Err)
		}
	}
	return results
}
