package once

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"strings"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
)

// LockPrefix and the key of an operation are the key of its lock, which "baton ls" shows
// while it runs.
const LockPrefix = "once/"

// MaxKey is the length of the longest key of an operation, in bytes.
const MaxKey = check.MaxKey - len(LockPrefix)

// A Runner runs operations that are to succeed once. All methods are safe for concurrent
// use. It needs no Close; the caller closes the store.
type Runner struct {
	records        driver.Records
	lister         driver.RecordLister // nil if the store has none
	locks          *baton.Locker
	store          string // its short name
	owner          string
	keep, remember time.Duration
	failure        func(error) string

	events *Events
	log    *slog.Logger

	call     time.Duration // for the first try of a request
	patience time.Duration // for the repetitions of a request without an answer
}

// New makes a Runner. It sends no request to the store. It returns a *baton.ConfigError
// if the store cannot honour the Config, and an error that wraps errors.ErrUnsupported if
// the store keeps no records (driver.Records).
func New(store driver.Locks, cfg Config) (*Runner, error) {
	if store == nil {
		return nil, &baton.ConfigError{Field: "store", Reason: "is nil: look at the error of the function that opened it"}
	}
	records, ok := driver.As[driver.Records](store)
	if !ok {
		return nil, fmt.Errorf("once: store %s keeps no records: %w", store.Traits().Store, errors.ErrUnsupported)
	}
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	locks, err := baton.New(store, cfg.Lock)
	if err != nil {
		return nil, err
	}
	ttl := cfg.Lock.TTL
	if ttl == 0 {
		ttl = baton.DefaultTTLOf(store.Traits())
	}
	lister, _ := driver.As[driver.RecordLister](store)
	return &Runner{
		records: records, lister: lister, locks: locks, store: store.Traits().Store, owner: cfg.Lock.Owner, keep: cfg.Keep, remember: cfg.Remember,
		failure: cfg.Failure,
		events:  cfg.Events, log: cfg.Lock.Logger,
		call: min(max(ttl/4, time.Second), 5*time.Second), patience: max(2*ttl, 10*time.Second),
	}, nil
}

// An Attempt is a function's knowledge of its own run.
type Attempt struct {
	// Key is the key of the operation. It is the same for all attempts.
	Key string

	// Token is the fencing token of the attempt, higher than those of all attempts before
	// it. Pass it to what the function changes. It may exceed 2⁵³: in JSON and JavaScript
	// it must be a string.
	Token int64

	// Attempts is the number of attempts that have begun, including this one. If it is
	// above 1, an earlier one was not finished: it failed, crashed, or lost its lock, and
	// its effects, or a part of them, may be there or may still come.
	Attempts int64

	// Lease is the lease of the attempt, for InTx of the SQL stores. Do not unlock it.
	Lease *baton.Lease
}

// Do returns the result of the operation: that of fn, or that of an earlier caller's
// function. fn runs if no outcome is recorded for key and no other attempt is under way;
// otherwise Do waits for that attempt. To learn whether fn ran, let fn set a variable.
// If fn returns a nil error its result is recorded, at most check.MaxResult bytes. An
// error that Final has marked is recorded, too, and is returned as a *FinalError. After
// any other error, or a panic, no outcome is recorded, Do returns the error as it is
// (joined with that of the lease if it was lost), and the next caller, which may already
// be waiting, runs its function. Until then Find shows the failure (Config.Failure), if
// the store could be reached.
//
// fn's context ends with the lease and with ctx. ctx bounds the waiting and the run, not
// the recording: once fn has returned, Do tries to record an outcome for twice
// Config.Lock.TTL, at least 10s, and a failure for at most 5s. A success is recorded even
// if the lease was lost while fn ran, unless another attempt has begun since.
//
// Errors: *UnrecordedError, *FinalError and fn's own say that fn has run, or an earlier
// function has. After all others fn did not run: those of baton.Locker.Lock, ErrNested if
// fn asks for its own operation, a *baton.LostError if the lease ended before fn began,
// *OtherRequestError if the key belongs to another request (Fingerprint), and
// *baton.KeyError for keys longer than MaxKey. After any error but the last two the
// caller may call Do again.
func (r *Runner) Do(ctx context.Context, key string, fn func(context.Context, Attempt) ([]byte, error), opts ...Option) ([]byte, error) {
	return r.do(ctx, key, fn, opts, true)
}

// TryDo is Do for a caller that does not wait for other attempts: if one is under way, or
// others wait, TryDo fails at once with a *baton.HeldError. That names the operation, who
// runs it and for how long, and how long its lock lasts unless renewed, as far as the
// store knows. The attempt may be over by then: call again to learn that. After an
// attempt has crashed TryDo fails in the same way until its lock expires.
//
// With a store that is out of reach TryDo waits as long as baton.Locker.TryLock, and once
// it has the lock, as long as Do.
func (r *Runner) TryDo(ctx context.Context, key string, fn func(context.Context, Attempt) ([]byte, error), opts ...Option) ([]byte, error) {
	return r.do(ctx, key, fn, opts, false)
}

// do is Do or, without wait, TryDo.
func (r *Runner) do(ctx context.Context, key string, fn func(context.Context, Attempt) ([]byte, error), opts []Option, wait bool) ([]byte, error) {
	if err := legal(key); err != nil {
		return nil, err
	}
	var with options
	for _, opt := range opts {
		opt(&with)
	}
	o := observed{runner: r, ctx: ctx, key: key}
	o.asked()
	result, err := r.served(ctx, key, fn, with, wait, &o)
	if !o.told {
		o.gaveUp(err)
	}
	return result, err
}

// served runs fn, or returns and reports the recorded outcome. After an error without a
// report fn did not run.
func (r *Runner) served(ctx context.Context, key string, fn func(context.Context, Attempt) ([]byte, error), with options, wait bool, o *observed) ([]byte, error) {
	if ctx.Err() != nil {
		return nil, fail("do", key, ended(ctx))
	}
	rec, err := r.look(ctx, key)
	if err == nil {
		rec, err = with.match(rec)
	}
	switch {
	case errors.Is(err, ErrOtherRequest):
		return nil, err
	case err == nil && rec.Done:
		return o.replayed(rec)
	case ctx.Err() != nil:
		return nil, fail("do", key, ended(ctx))
	case err != nil && !errors.Is(err, driver.ErrNoRecord) && !again(err):
		return nil, fail("find", key, err)
	}
	lease, err := r.lock(ctx, key, wait)
	if err != nil {
		return nil, fail("do", key, err)
	}
	// Also if fn panics. Unlock's error does not matter: the record is complete, and the
	// lock expires.
	defer func() { _ = lease.Unlock() }()
	work := lease.Context(ctx)
	rec, err = r.begin(work, key, lease, with)
	switch {
	case err != nil:
		return nil, err
	case rec.Done: // by the attempt before
		return o.replayed(rec)
	}
	return r.attempt(ctx, work, Attempt{Key: key, Token: lease.Token(), Attempts: rec.Attempts, Lease: lease}, fn, o)
}

// lock locks the operation. Lock waits for a store that is out of reach.
func (r *Runner) lock(ctx context.Context, key string, wait bool) (*baton.Lease, error) {
	if wait {
		lease, err := r.locks.Lock(ctx, LockPrefix+key)
		return lease, nested(err)
	}
	lease, err := r.locks.TryLock(ctx, LockPrefix+key)
	if held, ok := errors.AsType[*baton.HeldError](err); ok {
		of := *held
		of.Key = key
		err = fmt.Errorf("it is under way: %w", &of)
	}
	return lease, nested(err)
}

func nested(err error) error {
	if errors.Is(err, baton.ErrNested) {
		return fmt.Errorf("it is asked for within itself and would wait for itself: %w", baton.ErrNested)
	}
	return err
}

// attempt runs fn, whose attempt the store has noted, and records its outcome.
func (r *Runner) attempt(ctx, work context.Context, a Attempt, fn func(context.Context, Attempt) ([]byte, error), o *observed) ([]byte, error) {
	o.begins(a)
	end := OperationEvent{Failed: true, Err: errNoReturn}
	failure := errNoReturn // nil: there is an outcome, or may be
	var unrecorded *UnrecordedError
	defer func() { // even if fn panics
		if failure != nil {
			r.note(ctx, a, failure)
		}
		o.ends(a, end, unrecorded)
	}()
	result, err := fn(work, a)
	out := driver.Outcome{Result: result}
	if err != nil {
		if !isFinal(err) {
			if lost := a.Lease.Err(); lost != nil && !errors.Is(err, baton.ErrLost) {
				err = errors.Join(err, lost)
			}
			end.Err, failure = err, err
			return nil, err
		}
		out = driver.Outcome{Failed: true, Result: []byte(err.Error())}
		out.Result = out.Result[:min(len(out.Result), check.MaxResult)]
	}
	failure = nil
	result, err = r.finish(ctx, a.Key, a.Token, out, err)
	unrecorded, _ = err.(*UnrecordedError)
	if unrecorded != nil && errors.As(unrecorded.Err, new(*driver.RequestError)) { // the result is too long
		failure = unrecorded.Err
	}
	end.Recorded, end.Failed, end.Err = unrecorded == nil, out.Failed, err
	return result, err
}

// note records a failed attempt, for people. It sends one request: the next attempt may
// begin in any case, and other callers wait for the lock.
func (r *Runner) note(ctx context.Context, a Attempt, failure error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.call)
	defer cancel()
	text := r.failure(failure)
	if len(text) > check.MaxFailure {
		text = strings.ToValidUTF8(text[:check.MaxFailure], "")
	}
	out := driver.Outcome{Retry: true, Result: []byte(text)}
	if _, err := r.records.FinishAttempt(ctx, driver.Attempt{Key: a.Key, Token: a.Token}, out, r.remember); err != nil {
		r.log.DebugContext(ctx, "how an attempt failed was not kept", "key", a.Key, "token", a.Token, "store", r.store, "error", err)
	}
}

// legal refuses a key whose lock would have an illegal key.
func legal(key string) error {
	return check.Prefixed(LockPrefix, key, "an operation")
}

// look finds the record in one request: enough for an operation that is done.
func (r *Runner) look(ctx context.Context, key string) (driver.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, r.call)
	defer cancel()
	return r.records.FindRecord(ctx, key)
}

// begin notes the attempt while its lease is valid.
func (r *Runner) begin(work context.Context, key string, lease *baton.Lease, with options) (rec driver.Record, err error) {
	a := driver.Attempt{Key: key, Token: lease.Token(), Owner: mark(r.owner, with.fingerprint)}
	err = r.insist(work, func(ctx context.Context) (err error) {
		if with.fingerprint != "" { // another request must not replace one that was not finished
			if rec, err = r.records.FindRecord(ctx, key); err == nil {
				_, err = with.match(rec)
			}
			if err != nil && !errors.Is(err, driver.ErrNoRecord) {
				return err
			}
		}
		rec, err = r.records.BeginAttempt(ctx, a, r.remember)
		return err
	})
	if err == nil {
		rec, err = with.match(rec)
	}
	switch {
	case errors.Is(err, ErrOtherRequest):
		return rec, err
	case err == nil && rec.Done:
		return rec, nil
	case work.Err() != nil: // the end of the lease, or the caller's
		return rec, fail("begin", key, ended(work))
	case err != nil:
		return rec, fail("begin", key, err)
	}
	return rec, nil
}

// finish records the outcome of fn, whose error was failure.
func (r *Runner) finish(ctx context.Context, key string, token int64, o driver.Outcome, failure error) ([]byte, error) {
	ctx = context.WithoutCancel(ctx)
	a := driver.Attempt{Key: key, Token: token}
	err := check.Finish(a, o, r.keep)
	if err == nil {
		err = r.insist(ctx, func(ctx context.Context) error {
			_, err := r.records.FinishAttempt(ctx, a, o, r.keep)
			return err
		})
	}
	switch {
	case err == nil && o.Failed:
		return nil, &FinalError{Key: key, Text: string(o.Result), err: failure}
	case err == nil:
		return o.Result, nil
	}
	unrecorded := &UnrecordedError{Key: key, Token: token, Failure: failure, Err: err}
	if failure == nil {
		unrecorded.Result = o.Result
	}
	if errors.Is(err, driver.ErrSuperseded) {
		if rec, err := r.look(ctx, key); err == nil {
			rec.Owner, _ = unmark(rec.Owner)
			unrecorded.Instead = &rec
		}
	}
	return nil, unrecorded
}

// insist repeats a request, which must be idempotent, until the store answers, ctx ends,
// or the patience does. It makes at least three requests, because in a process that was
// paused the time passes without any.
func (r *Runner) insist(ctx context.Context, request func(context.Context) error) error {
	start, pause, bound := time.Now(), 10*time.Millisecond, r.call
	for try := 1; ; try++ {
		call, cancel := context.WithTimeout(ctx, bound)
		err := request(call)
		cancel()
		if err == nil || !again(err) {
			return err
		}
		if try >= 3 && time.Since(start) >= r.patience {
			return blame(err)
		}
		wait := time.NewTimer(pause)
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return blame(err)
		}
		// A slow store gets more time.
		pause, bound = min(2*pause, time.Second), min(2*bound, r.patience/2)
	}
}

// outcome is the recorded outcome for callers of Do.
func outcome(rec driver.Record) ([]byte, error) {
	if rec.Failed {
		return nil, &FinalError{Key: rec.Key, Text: string(rec.Result)}
	}
	return rec.Result, nil
}

// Find returns the record of an operation. Done says that it is finished. Otherwise Retry
// says that the last attempt failed, and Result is the failure; without Retry that
// attempt is under way, or has crashed. The error is ErrNoRecord if there is no record,
// otherwise a *baton.KeyError, the context's, or the store's.
func (r *Runner) Find(ctx context.Context, key string) (driver.Record, error) {
	if err := legal(key); err != nil {
		return driver.Record{}, err
	}
	rec, err := r.records.FindRecord(ctx, key)
	if err != nil {
		return driver.Record{}, fail("find", key, err)
	}
	rec.Owner, _ = unmark(rec.Owner)
	return rec, nil
}

// Forget removes the record of an operation, so that it can run again. An attempt under
// way continues and can no longer be recorded. Errors are Find's, and baton.ErrUnknown,
// after which the caller should call it again.
func (r *Runner) Forget(ctx context.Context, key string) error {
	if err := legal(key); err != nil {
		return err
	}
	if err := r.records.ForgetRecord(ctx, key); err != nil {
		return fail("forget", key, err)
	}
	return nil
}

// List returns the record of every operation whose key begins with prefix, in no
// particular order, as Find does, but with a nil Record.Result for finished operations.
// It reads page by page and is no snapshot: an operation that begins or ends meanwhile
// may be missing. List is meant for people. prefix is literal text. The first error ends
// the list: errors.ErrUnsupported if the store cannot list records, the context's, or the
// store's.
func (r *Runner) List(ctx context.Context, prefix string) iter.Seq2[driver.Record, error] {
	return func(yield func(driver.Record, error) bool) {
		if r.lister == nil {
			yield(driver.Record{}, fmt.Errorf("once: store %s cannot list its records: %w", r.store, errors.ErrUnsupported))
			return
		}
		for rec, err := range r.lister.ListRecords(ctx, prefix) {
			if err != nil {
				yield(driver.Record{}, fail("list", prefix, err))
				return
			}
			rec.Owner, _ = unmark(rec.Owner)
			if !yield(rec, nil) {
				return
			}
		}
	}
}
