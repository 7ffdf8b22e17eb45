package drivertest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
)

// keptFor asserts that the record is there until sent + keep, and soon after that is not.
// sent is before the call that keeps it.
func (t *recordTest) keptFor(key string, sent time.Time, keep time.Duration) {
	t.Helper()
	for {
		r, err := t.all[1].FindRecord(t.ctx, key)
		age := time.Since(sent)
		switch {
		case errors.Is(err, driver.ErrNoRecord):
			if age < keep {
				t.Fatalf("%q: forgotten after %v, to be kept for %v", key, age, keep)
			}
			return
		case err != nil:
			t.Fatalf("%q: %v", key, err)
		case r.Left > keep || r.Left < 0:
			t.Fatalf("%q: %v are left of %v", key, r.Left, keep)
		case age > keep+20*time.Second:
			t.Fatalf("%q: not forgotten after %v, to be kept for %v", key, age, keep)
		}
		time.Sleep(20 * time.Millisecond) // records expire without an event
	}
}

func recordEndCases() []recordCase {
	return []recordCase{
		{
			name: "outcomes expire",
			why:  "what is kept for ever fills the store; what is forgotten early lets the operation happen twice",
			run: func(t *recordTest) {
				const keep = 1500 * time.Millisecond
				t.begin(0, "job", 9)
				sent := time.Now()
				if _, err := t.all[0].FinishAttempt(t.ctx, attempt("job", 9), success("x"), keep); err != nil {
					t.Fatalf("finish: %v", err)
				}
				t.keptFor("job", sent, keep)
				t.unknown("job")
				if r := t.begin(1, "job", 3); r.Done || r.Token != 3 || r.Attempts != 1 || len(r.Result) != 0 {
					t.Errorf("after it was forgotten: %+v", r)
				}
			},
		},
		{
			name: "attempts expire",
			why:  "an attempt whose process died is not remembered for ever, and nothing can finish it then",
			run: func(t *recordTest) {
				const keep = 1500 * time.Millisecond
				sent := time.Now()
				for range 2 { // the repetition keeps it for longer
					sent = time.Now()
					if _, err := t.all[0].BeginAttempt(t.ctx, attempt("job", 9), keep); err != nil {
						t.Fatalf("begin: %v", err)
					}
				}
				t.keptFor("job", sent, keep)
				_, err := t.all[0].FinishAttempt(t.ctx, attempt("job", 9), success("x"), keep)
				t.refused("finished after that", err, driver.SupersededError{Key: "job", Token: 9})
				t.unknown("job")
			},
		},
		{
			name: "failures expire",
			why:  "how an attempt failed is kept for as long as was said then, and not for ever",
			run: func(t *recordTest) {
				const keep = 1500 * time.Millisecond
				t.begin(0, "job", 9)
				sent := time.Now()
				if _, err := t.all[0].FinishAttempt(t.ctx, attempt("job", 9), failure("exit 3"), keep); err != nil {
					t.Fatalf("finish: %v", err)
				}
				t.keptFor("job", sent, keep)
				if r := t.begin(1, "job", 3); r.Retry || r.Attempts != 1 || len(r.Result) != 0 {
					t.Errorf("after it was forgotten: %+v", r)
				}
			},
		},
		{
			name: "kept for as long as was said last",
			why:  "the outcome is to be kept from when it came, whatever was said when the attempt began",
			run: func(t *recordTest) {
				var job string
				for i, done := 0, false; !done; i++ { // repeated if the test was too slow
					job = fmt.Sprint("job ", i)
					if _, err := t.all[0].BeginAttempt(t.ctx, attempt(job, 1), check.MinRecordKeep); err != nil {
						t.Fatalf("begin: %v", err)
					}
					_, err := t.all[0].FinishAttempt(t.ctx, attempt(job, 1), success("x"), keepLong)
					if done = err == nil; !done && !errors.Is(err, driver.ErrSuperseded) {
						t.Fatalf("finish: %v", err)
					}
				}
				// Another record shows when the first one's time has passed.
				sent := time.Now()
				if _, err := t.all[0].BeginAttempt(t.ctx, attempt("other", 1), check.MinRecordKeep); err != nil {
					t.Fatalf("begin: %v", err)
				}
				t.keptFor("other", sent, check.MinRecordKeep)
				t.stands(job, driver.Record{Key: job, Token: 1, Owner: "owner of 1", Attempts: 1, Done: true, Outcome: success("x")})
			},
		},
		{
			name: "expired records are removed",
			why:  "an operation that nobody asks for again must not take up room for ever",
			kept: true,
			run: func(t *recordTest) {
				const n = 20
				for i := range n {
					if _, err := t.all[0].BeginAttempt(t.ctx, attempt(fmt.Sprint("old ", i), 1), check.MinRecordKeep); err != nil {
						t.Fatalf("begin: %v", err)
					}
				}
				// As in a service, new ones come all the time.
				for i, deadline := 0, time.Now().Add(60*time.Second); ; {
					for range 5 {
						i++
						t.begin(i, fmt.Sprint("new ", i%10), int64(i))
					}
					if kept := t.h.Kept(t, t.all[0]); kept > 0 && kept <= 10 {
						return
					} else if time.Now().After(deadline) {
						t.Fatalf("%d records are kept, want at most the 10 that have not expired", kept)
					}
					time.Sleep(20 * time.Millisecond) // records expire without an event
				}
			},
		},
		{
			name: "forget",
			why:  "an operator who lets an operation happen anew must not be overruled by one that is under way",
			run: func(t *recordTest) {
				if err := t.all[0].ForgetRecord(t.ctx, "job"); !errors.Is(err, driver.ErrNoRecord) {
					t.Errorf("nothing there: %v, want driver.ErrNoRecord", outcome(err))
				}
				t.begin(0, "other", 1)
				t.begin(0, "job", 5)
				t.finish(0, "job", 5, success("x"))
				if err := t.all[1].ForgetRecord(t.ctx, "job"); err != nil {
					t.Fatalf("forget: %v", err)
				}
				t.unknown("job")
				if r := t.begin(0, "job", 6); r.Done || r.Attempts != 1 {
					t.Errorf("anew: %+v", r)
				}
				if err := t.all[1].ForgetRecord(t.ctx, "job"); err != nil {
					t.Fatalf("forget: %v", err)
				}
				_, err := t.all[0].FinishAttempt(t.ctx, attempt("job", 6), success("x"), keepLong)
				t.refused("finished after that", err, driver.SupersededError{Key: "job", Token: 6})
				t.unknown("job")
				t.stands("other", driver.Record{Key: "other", Token: 1, Owner: "owner of 1", Attempts: 1})
			},
		},
		{
			name: "odd keys are different operations",
			why:  "a store that folds, trims or cuts keys would give one customer the result of another",
			run: func(t *recordTest) {
				for i, key := range oddKeys {
					t.begin(i, key, int64(i+1))
					t.finish(i, key, int64(i+1), success(fmt.Sprint("result ", i)))
				}
				for i, key := range oddKeys {
					t.stands(key, driver.Record{Key: key, Token: int64(i + 1), Owner: fmt.Sprint("owner of ", i+1), Attempts: 1, Done: true, Outcome: success(fmt.Sprint("result ", i))})
				}
			},
		},
		{
			name: "bad attempts",
			why:  "what cannot be recorded is refused before anything was changed",
			run: func(t *recordTest) {
				for name, err := range map[string]error{
					"empty key":       second(t.all[0].BeginAttempt(t.ctx, attempt("", 1), keepLong)),
					"control in key":  second(t.all[0].BeginAttempt(t.ctx, attempt("a\x00", 1), keepLong)),
					"find, empty key": second(t.all[0].FindRecord(t.ctx, "")),
					"forget, bad key": t.all[0].ForgetRecord(t.ctx, "a\n"),
				} {
					if _, ok := errors.AsType[*driver.KeyError](err); !ok {
						t.Errorf("%s: %v, want a *driver.KeyError", name, outcome(err))
					}
				}
				long := make([]byte, check.MaxResult+1)
				for name, err := range map[string]error{
					"no token":              second(t.all[0].BeginAttempt(t.ctx, attempt("bad", 0), keepLong)),
					"negative token":        second(t.all[0].BeginAttempt(t.ctx, attempt("bad", -1), keepLong)),
					"not kept":              second(t.all[0].BeginAttempt(t.ctx, attempt("bad", 1), 0)),
					"kept too short":        second(t.all[0].BeginAttempt(t.ctx, attempt("bad", 1), check.MinRecordKeep-1)),
					"kept too long":         second(t.all[0].BeginAttempt(t.ctx, attempt("bad", 1), check.MaxRecordKeep+1)),
					"owner":                 second(t.all[0].BeginAttempt(t.ctx, driver.Attempt{Key: "bad", Token: 1, Owner: "a\n"}, keepLong)),
					"finish, no token":      second(t.all[0].FinishAttempt(t.ctx, attempt("bad", 0), success(""), keepLong)),
					"finish, not kept":      second(t.all[0].FinishAttempt(t.ctx, attempt("bad", 1), success(""), 0)),
					"finish, kept too long": second(t.all[0].FinishAttempt(t.ctx, attempt("bad", 1), success(""), check.MaxRecordKeep+1)),
					"result too long":       second(t.all[0].FinishAttempt(t.ctx, attempt("bad", 1), driver.Outcome{Result: long}, keepLong)),
					"failure too long":      second(t.all[0].FinishAttempt(t.ctx, attempt("bad", 1), driver.Outcome{Retry: true, Result: long[:check.MaxFailure+1]}, keepLong)),
					"final, and not":        second(t.all[0].FinishAttempt(t.ctx, attempt("bad", 1), driver.Outcome{Failed: true, Retry: true}, keepLong)),
				} {
					if _, ok := errors.AsType[*driver.RequestError](err); !ok {
						t.Errorf("%s: %v, want a *driver.RequestError", name, outcome(err))
					}
				}
				t.unknown("bad")
				// What is just legal is accepted.
				if _, err := t.all[0].BeginAttempt(t.ctx, attempt("good", 1), check.MaxRecordKeep); err != nil {
					t.Errorf("kept for as long as can be: %v", err)
				}
				if _, err := t.all[0].FinishAttempt(t.ctx, attempt("good", 1), driver.Outcome{Retry: true, Result: long[:check.MaxFailure]}, check.MaxRecordKeep); err != nil {
					t.Errorf("a failure as long as can be: %v", err)
				}
				if _, err := t.all[0].FinishAttempt(t.ctx, attempt("good", 1), driver.Outcome{Result: long[1:]}, check.MaxRecordKeep); err != nil {
					t.Errorf("as long as can be, kept for as long as can be: %v", err)
				}
			},
		},
		{
			name: "a context that has ended",
			why:  "a call that nobody waits for any more records nothing",
			run: func(t *recordTest) {
				ctx, cancel := context.WithCancel(t.ctx)
				cancel()
				t.begin(0, "begun", 1)
				for name, err := range map[string]error{
					"begin":  second(t.all[0].BeginAttempt(ctx, attempt("job", 1), keepLong)),
					"finish": second(t.all[0].FinishAttempt(ctx, attempt("begun", 1), success("x"), keepLong)),
					"find":   second(t.all[0].FindRecord(ctx, "begun")),
					"forget": t.all[0].ForgetRecord(ctx, "begun"),
				} {
					if !errors.Is(err, context.Canceled) {
						t.Errorf("%s: %v, want context.Canceled", name, outcome(err))
					}
				}
				t.unknown("job")
				t.stands("begun", driver.Record{Key: "begun", Token: 1, Owner: "owner of 1", Attempts: 1})
			},
		},
		{
			name: "locks and records do not meet",
			why:  "the lock under which an operation runs may have its name",
			run: func(t *recordTest) {
				locks, ok := t.all[0].(driver.Locks)
				if !ok {
					return
				}
				t.begin(0, "job", 1)
				c := driver.Claim{Key: "job", ID: driver.NewID(), Owner: "holder", Weight: driver.Whole, Capacity: driver.Whole}
				g, err := locks.Acquire(t.ctx, driver.Request{Claim: c, TTL: 10 * time.Second})
				if err != nil {
					t.Fatalf("acquire: %v", err)
				}
				c.Ticket = g.Ticket
				t.finish(1, "job", 1, success("x"))
				if i, ok := driver.As[driver.Inspector](locks); ok {
					n := 0
					for _, err := range i.List(t.ctx, "") {
						if n++; err != nil || n > 1 {
							t.Errorf("listed %d locks, one is there: %v", n, err)
						}
					}
				}
				if err := t.all[0].ForgetRecord(t.ctx, "job"); err != nil {
					t.Errorf("forget: %v", err)
				}
				if err := locks.Release(t.ctx, c); err != nil {
					t.Errorf("release: %v", err)
				}
			},
		},
		{
			name: "many operations at once",
			why:  "operations have nothing to do with each other, and none may fail because of another",
			run: func(t *recordTest) {
				var wg sync.WaitGroup
				for i := range 60 {
					wg.Go(func() {
						key := fmt.Sprint("job ", i)
						h := t.all[i%len(t.all)]
						if _, err := h.BeginAttempt(t.ctx, attempt(key, 1), keepLong); err != nil {
							t.Errorf("%q: begin: %v", key, err)
							return
						}
						r, err := h.FinishAttempt(t.ctx, attempt(key, 1), success(key), keepLong)
						if err != nil || string(r.Result) != key {
							t.Errorf("%q: finish: %+v, %v", key, r, outcome(err))
						}
					})
				}
				wg.Wait()
			},
		},
		{
			name:    "records survive a restart",
			why:     "an operation that happened before must not happen again after it",
			restart: true,
			run: func(t *recordTest) {
				t.begin(0, "begun", 8)
				t.begin(0, "done", 5)
				t.finish(0, "done", 5, success("x"))
				t.begin(0, "failed", 3)
				t.finish(0, "failed", 3, failure("exit 3"))
				t.h.Restart(t, t.all)
				t.stands("failed", driver.Record{Key: "failed", Token: 3, Owner: "owner of 3", Attempts: 1, Outcome: failure("exit 3")})
				t.stands("done", driver.Record{Key: "done", Token: 5, Owner: "owner of 5", Attempts: 1, Done: true, Outcome: success("x")})
				_, err := t.all[0].BeginAttempt(t.ctx, attempt("begun", 7), keepLong)
				t.refused("a lower token", err, driver.SupersededError{Key: "begun", Token: 7, Last: 8})
				t.finish(0, "begun", 8, success("y"))
			},
		},
	}
}

func second[R any](_ R, err error) error { return err }
