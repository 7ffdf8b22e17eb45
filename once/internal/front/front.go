// Package front runs operations for callers of servers, which may hang up.
package front

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/url"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/once"
)

var (
	// ErrWaited says that the wait is over. The function did not run.
	ErrWaited = errors.New("the wait is over")

	// ErrLeft says that the caller left before the function ran.
	ErrLeft = errors.New("the caller has left")
)

// Do is once.Runner.Do for a caller that waits for another attempt at most for wait, and
// then fails with ErrWaited; with 0 it is TryDo. The wait ends with caller. A running fn
// does not: its context has the values of caller, and ends with the lease.
func Do(caller context.Context, ops *once.Runner, key string, wait time.Duration, fn func(context.Context, once.Attempt) ([]byte, error), opts ...once.Option) ([]byte, error) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(caller))
	defer cancel(nil)
	stays := context.AfterFunc(caller, func() { cancel(ErrLeft) })
	defer stays()
	waits, do := func() bool { return true }, ops.TryDo
	if wait > 0 {
		timer := time.AfterFunc(wait, func() { cancel(ErrWaited) })
		defer timer.Stop()
		waits, do = timer.Stop, ops.Do
	}
	return do(ctx, key, func(ctx context.Context, a once.Attempt) ([]byte, error) {
		if !stays() {
			return nil, ErrLeft
		}
		if !waits() {
			return nil, ErrWaited
		}
		return fn(context.WithValue(ctx, attemptKey{}, a), a)
	}, opts...)
}

// ErrNotRecorded is returned by a function whose answer must not be recorded, with only
// the status of the answer: the store keeps the text of the error.
var ErrNotRecorded = errors.New("this answer is not recorded")

// Later is the record of an attempt that began after the lease of the attempt that failed
// with err was lost.
func Later(err error) (record []byte, ok bool) {
	unrecorded, ok := errors.AsType[*once.UnrecordedError](err)
	if !ok || unrecorded.Instead == nil || !unrecorded.Instead.Done || unrecorded.Instead.Failed {
		return nil, false
	}
	return unrecorded.Instead.Result, true
}

// Forgotten reports whether the attempt that failed with err has ended and could not be
// recorded because the store has forgotten its beginning: no other attempt has its
// answer.
func Forgotten(err error) bool {
	superseded, ok := errors.AsType[*driver.SupersededError](err)
	return ok && superseded.Last == 0
}

// Key is the key of an operation. Equal keys of two scopes are different.
func Key(prefix, scope, key string) string { return prefix + Part(scope) + "/" + key }

// maxPart leaves room for two parts and the key of a client.
const maxPart = 100

// Part is a text as a part of a key, without a slash. Different texts give different
// parts. A long one becomes a hash: a client with too long a key affects only its own.
func Part(text string) string {
	if escaped := url.PathEscape(text); len(escaped) <= maxPart {
		return escaped
	}
	sum := sha256.Sum256([]byte(text))
	return "#" + base64.RawURLEncoding.EncodeToString(sum[:]) // PathEscape leaves no "#"
}

type attemptKey struct{}

func AttemptOf(ctx context.Context) (once.Attempt, bool) {
	a, ok := ctx.Value(attemptKey{}).(once.Attempt)
	return a, ok
}
