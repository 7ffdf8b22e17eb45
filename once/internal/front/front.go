// Package front asks for operations on behalf of callers of servers, which may hang up.
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
	// ErrWaited says that the wait is over. Nothing was run.
	ErrWaited = errors.New("the wait is over")

	// ErrLeft says that the caller left before anything was run.
	ErrLeft = errors.New("the caller has left")
)

// Do is once.Runner.Do for a caller that waits for another attempt for as long as wait,
// at most, and then fails with ErrWaited; with 0 it is TryDo. While it waits it ends with
// caller. Once fn has begun it does not: fn's context has the values of caller, and ends
// with the lease.
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

// ErrNotRecorded is what a function returns whose answer is not to be recorded, with the
// status of the answer and nothing else of it: the store keeps the text of the error.
var ErrNotRecorded = errors.New("this answer is not recorded")

// Later is what was recorded by an attempt that began when the lease of the one that
// failed with err was lost.
func Later(err error) (record []byte, ok bool) {
	unrecorded, ok := errors.AsType[*once.UnrecordedError](err)
	if !ok || unrecorded.Instead == nil || !unrecorded.Instead.Done || unrecorded.Instead.Failed {
		return nil, false
	}
	return unrecorded.Instead.Result, true
}

// Forgotten reports whether the attempt that failed with err has ended and could not be
// recorded because the store does not remember that it began: no other one has its answer.
func Forgotten(err error) bool {
	superseded, ok := errors.AsType[*driver.SupersededError](err)
	return ok && superseded.Last == 0
}

// Key is the key of an operation: what two scopes call alike are two.
func Key(prefix, scope, key string) string { return prefix + Part(scope) + "/" + key }

// maxPart leaves room for two parts and the key of a client.
const maxPart = 100

// Part is a text as a part of a key, without a slash. No other text gives the same. A long
// one becomes a hash: whose key is too long is the client's matter, and it sets only its own.
func Part(text string) string {
	if escaped := url.PathEscape(text); len(escaped) <= maxPart {
		return escaped
	}
	sum := sha256.Sum256([]byte(text))
	return "#" + base64.RawURLEncoding.EncodeToString(sum[:]) // PathEscape leaves no "#"
}

type attemptKey struct{}

// AttemptOf is the attempt whose function has ctx.
func AttemptOf(ctx context.Context) (once.Attempt, bool) {
	a, ok := ctx.Value(attemptKey{}).(once.Attempt)
	return a, ok
}
