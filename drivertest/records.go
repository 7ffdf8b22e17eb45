package drivertest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
)

// RecordHarness says how to test the records of one store.
type RecordHarness struct {
	// Open returns n handles on one fresh and empty keyspace, as n processes would have
	// them. It closes them by t.Cleanup. Several cases run at the same time.
	Open func(t T, n int) []driver.Records

	// FakeTime is as in Harness.
	FakeTime bool

	// Restart stops the server and starts it again. It may replace elements of the slice
	// by new handles. If it is nil, as for a store that need not keep records through a
	// restart, the case that needs it is skipped.
	Restart func(t T, all []driver.Records)

	// Kept counts what the store keeps in the keyspace for records. If it is nil, the
	// case that needs it is skipped.
	Kept func(t T, r driver.Records) int

	// Expire ends the time of a record, if there is one. Without it the random histories
	// have no such step.
	Expire func(t T, r driver.Records, key string)

	// NoLeft says that the store does not tell how much longer it keeps a record: Left is
	// 0.
	NoLeft bool

	// Many is the number of records in the long lists. It defaults to 2000. An imitated
	// server may be too slow for that.
	Many int

	// Only is as in Harness.
	Only []string
}

// Records runs the contract of driver.Records, and of driver.RecordLister if the store
// implements it, one subtest for each case.
func Records(t *testing.T, h RecordHarness) {
	cases, err := chosen(recordCases(), func(c recordCase) string { return c.name }, h.Only)
	if err != nil {
		t.Fatal(err)
	}
	_, lists := listerOf(h.Open(t, 1)[0])
	for _, c := range cases {
		switch {
		case c.kept && h.Kept == nil:
			notAsked(t, h.Only, "the records", []string{c.name + " (no RecordHarness.Kept)"})
		case c.listed && !lists:
			notAsked(t, h.Only, "the records", []string{c.name + " (no ListRecords)"})
		case c.restart && h.Restart == nil:
			notAsked(t, h.Only, "the records", []string{c.name + " (no RecordHarness.Restart)"})
		default:
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				c.record(t, h).report(t, c.why)
			})
		}
	}
}

// A recordCase is one row of the contract.
type recordCase struct {
	name    string
	why     string // printed when it fails
	kept    bool   // needs RecordHarness.Kept
	restart bool   // needs RecordHarness.Restart
	listed  bool   // needs driver.RecordLister
	run     func(t *recordTest)
}

func (c recordCase) record(t *testing.T, h RecordHarness) *recorder {
	h.Many = cmp.Or(h.Many, 2000)
	return recorded(t, h.FakeTime, func(r *recorder) {
		ctx, cancel := context.WithTimeout(r.Context(), 2*time.Minute)
		r.Cleanup(cancel)
		c.run(&recordTest{T: r, h: h, ctx: ctx, all: h.Open(r, handles)})
	})
}

// A recordTest is what a case works with.
type recordTest struct {
	T
	h   RecordHarness
	ctx context.Context
	all []driver.Records // handles of several processes
}

// keepLong is longer than any case lasts.
const keepLong = time.Hour

func attempt(key string, token int64) driver.Attempt {
	return driver.Attempt{Key: key, Token: token, Owner: fmt.Sprint("owner of ", token)}
}

func success(text string) driver.Outcome { return driver.Outcome{Result: []byte(text)} }

func failure(text string) driver.Outcome { return driver.Outcome{Retry: true, Result: []byte(text)} }

// begin begins an attempt, which must succeed.
func (t *recordTest) begin(i int, key string, token int64) driver.Record {
	t.Helper()
	r, err := t.all[i%len(t.all)].BeginAttempt(t.ctx, attempt(key, token), keepLong)
	if err != nil {
		t.Fatalf("%q: attempt %d cannot begin: %v", key, token, err)
	}
	return r
}

// finish finishes an attempt, which must succeed.
func (t *recordTest) finish(i int, key string, token int64, o driver.Outcome) driver.Record {
	t.Helper()
	r, err := t.all[i%len(t.all)].FinishAttempt(t.ctx, attempt(key, token), o, keepLong)
	if err != nil {
		t.Fatalf("%q: attempt %d cannot finish: %v", key, token, err)
	}
	return r
}

// refused asserts that err is the SupersededError want.
func (t *recordTest) refused(what string, err error, want driver.SupersededError) {
	t.Helper()
	got, ok := errors.AsType[*driver.SupersededError](err)
	if !ok || *got != want {
		t.Errorf("%s: %v (%+v), want %+v", what, outcome(err), got, want)
	}
	if ok && !errors.Is(err, driver.ErrSuperseded) {
		t.Errorf("%s: it is no driver.ErrSuperseded", what)
	}
}

// stands asserts that every handle finds the record want.
func (t *recordTest) stands(key string, want driver.Record) {
	t.Helper()
	for i, h := range t.all {
		r, err := h.FindRecord(t.ctx, key)
		if err != nil {
			t.Errorf("handle %d finds of %q: %v", i, key, err)
			continue
		}
		t.same(fmt.Sprintf("handle %d", i), r, want)
	}
}

// same compares records without their times.
func (t *recordTest) same(who string, got, want driver.Record) {
	t.Helper()
	if got.Key != want.Key || got.Token != want.Token || got.Owner != want.Owner || got.Attempts != want.Attempts ||
		got.Done != want.Done || got.Failed != want.Failed || got.Retry != want.Retry || !bytes.Equal(got.Result, want.Result) {
		t.Errorf("%s: %s, want %s", who, short(got), short(want))
	}
	if over := got.Done || got.Retry; got.Began.IsZero() || got.Finished.IsZero() == over || over && got.Finished.Before(got.Began) {
		t.Errorf("%s: began %v, finished %v, over %v", who, got.Began, got.Finished, over)
	}
}

// short prints a record with the beginning of its result.
func short(r driver.Record) string {
	n := len(r.Result)
	r.Result = r.Result[:min(n, 40)]
	return fmt.Sprintf("%+v (a result of %d bytes: %q)", r, n, r.Result)
}

// unknown asserts that no handle knows the operation.
func (t *recordTest) unknown(key string) {
	t.Helper()
	for i, h := range t.all {
		if r, err := h.FindRecord(t.ctx, key); !errors.Is(err, driver.ErrNoRecord) {
			t.Errorf("handle %d finds of %q: %+v, %v, want driver.ErrNoRecord", i, key, r, outcome(err))
		}
	}
}

func recordCases() []recordCase {
	return slices.Concat(recordLifeCases(), recordEndCases(), recordListCases(), recordRandomCases())
}

func recordLifeCases() []recordCase {
	return []recordCase{
		{
			name: "begin and finish",
			why:  "whoever comes later must be told what the first one achieved, whichever process asks",
			run: func(t *recordTest) {
				t.unknown("job")
				want := driver.Record{Key: "job", Token: 7, Owner: "owner of 7", Attempts: 1}
				t.same("begin", t.begin(0, "job", 7), want)
				t.stands("job", want)
				want.Done, want.Outcome = true, success("paid")
				t.same("finish", t.finish(0, "job", 7, success("paid")), want)
				t.stands("job", want)
				for token := range int64(10) {
					t.same("a later attempt", t.begin(int(token), "job", token+1), want)
				}
				t.stands("job", want)
			},
		},
		{
			name: "a final failure",
			why:  "an error that is final is an outcome as well, and must not look like a success",
			run: func(t *recordTest) {
				t.begin(0, "job", 1)
				t.finish(0, "job", 1, driver.Outcome{Failed: true, Result: []byte("no such order")})
				want := driver.Record{Key: "job", Token: 1, Owner: "owner of 1", Attempts: 1, Done: true, Outcome: driver.Outcome{Failed: true, Result: []byte("no such order")}}
				t.stands("job", want)
				t.same("a later attempt", t.begin(1, "job", 2), want)
			},
		},
		{
			name: "an attempt that failed",
			why:  "those who look later must see how it ended, and the next attempt must be able to run",
			run: func(t *recordTest) {
				t.begin(0, "job", 7)
				want := driver.Record{Key: "job", Token: 7, Owner: "owner of 7", Attempts: 1, Outcome: failure("exit 3")}
				t.same("fail", t.finish(0, "job", 7, failure("exit 3")), want)
				t.stands("job", want)
				t.same("begun again", t.begin(1, "job", 7), want) // a request that was late
				t.stands("job", want)
				_, err := t.all[2].BeginAttempt(t.ctx, attempt("job", 6), keepLong)
				t.refused("a lower token", err, driver.SupersededError{Key: "job", Token: 6, Last: 7})

				want = driver.Record{Key: "job", Token: 9, Owner: "owner of 9", Attempts: 2}
				t.same("the next", t.begin(1, "job", 9), want)
				t.stands("job", want)
				_, err = t.all[0].FinishAttempt(t.ctx, attempt("job", 7), failure("late"), keepLong)
				t.refused("failed after the next has begun", err, driver.SupersededError{Key: "job", Token: 7, Last: 9})
				t.stands("job", want)

				want.Outcome = failure("")
				t.same("fail without a word", t.finish(2, "job", 9, failure("")), want)
				t.stands("job", want)
				want.Done, want.Outcome = true, success("after all")
				t.same("finish", t.finish(1, "job", 9, success("after all")), want)
				t.same("fail after it finished", t.finish(0, "job", 9, failure("no")), want)
				t.stands("job", want)
			},
		},
		{
			name: "results are bytes",
			why:  "a result is the caller's own: nothing is cut, folded or read as text",
			run: func(t *recordTest) {
				for i, result := range []string{
					"", "\x00", "a\x00b", "\xff\xfe not UTF-8", "it's \"quoted\" \\ and % ? $1", "null", "ß € 𝄞", "trailing \n ",
					strings.Repeat("\x00\xff", check.MaxResult/2),
				} {
					key := fmt.Sprint("job ", i)
					t.begin(i, key, 5)
					t.same("finish", t.finish(i, key, 5, success(result)), driver.Record{Key: key, Token: 5, Owner: "owner of 5", Attempts: 1, Done: true, Outcome: success(result)})
					t.stands(key, driver.Record{Key: key, Token: 5, Owner: "owner of 5", Attempts: 1, Done: true, Outcome: success(result)})
				}
			},
		},
		{
			name: "owners are kept byte by byte",
			why:  "package once writes behind the owner what the operation was asked for, and compares it later",
			run: func(t *recordTest) {
				for i, owner := range []string{
					"", "  ", "host:7 request:Ab-_Zz0123456789abcdef", " it's \"quoted\" \\ % $1 ", strings.Repeat("x", 127) + " ", strings.Repeat("ö", 64), "𝄞 A\u030a \u00c5 a",
				} {
					a := driver.Attempt{Key: fmt.Sprint("job ", i), Token: 5, Owner: owner}
					want := driver.Record{Key: a.Key, Token: 5, Owner: owner, Attempts: 1}
					for _, h := range []driver.Records{t.all[i%len(t.all)], t.all[0]} { // and again
						r, err := h.BeginAttempt(t.ctx, a, keepLong)
						if err != nil {
							t.Fatalf("by %q: %v", owner, err)
						}
						t.same(fmt.Sprintf("by %q", owner), r, want)
					}
					t.stands(a.Key, want)
					want.Done, want.Outcome = true, success("done")
					t.same("finish", t.finish(i, a.Key, 5, success("done")), want) // its owner is ignored
					t.same("a later attempt", t.begin(0, a.Key, 6), want)
					t.stands(a.Key, want)
				}
			},
		},
		{
			name: "a higher token supersedes",
			why:  "the one before has lost its lock, maybe without knowing: what it does now must not count",
			run: func(t *recordTest) {
				t.begin(0, "job", 10)
				want := driver.Record{Key: "job", Token: 12, Owner: "owner of 12", Attempts: 2}
				t.same("the next", t.begin(1, "job", 12), want)
				for _, token := range []int64{10, 11} {
					_, err := t.all[2].BeginAttempt(t.ctx, attempt("job", token), keepLong)
					t.refused(fmt.Sprint(token, " begins"), err, driver.SupersededError{Key: "job", Token: token, Last: 12})
					_, err = t.all[0].FinishAttempt(t.ctx, attempt("job", token), success("late"), keepLong)
					t.refused(fmt.Sprint(token, " finishes"), err, driver.SupersededError{Key: "job", Token: token, Last: 12})
				}
				t.stands("job", want)
				want.Done, want.Outcome = true, success("in time")
				t.finish(1, "job", 12, success("in time"))
				for _, token := range []int64{10, 11, 13} {
					_, err := t.all[0].FinishAttempt(t.ctx, attempt("job", token), success("late"), keepLong)
					t.refused(fmt.Sprint(token, " finishes after it"), err, driver.SupersededError{Key: "job", Token: token, Last: 12, Done: true})
				}
				t.stands("job", want)
			},
		},
		{
			name: "finished before the next has begun",
			why:  "who holds the lock but has not begun must find that the one before has finished after all",
			run: func(t *recordTest) {
				t.begin(0, "job", 10)
				t.finish(0, "job", 10, success("at the last moment"))
				if r := t.begin(1, "job", 11); !r.Done || r.Token != 10 || string(r.Result) != "at the last moment" || r.Attempts != 1 {
					t.Errorf("the next is answered %+v", r)
				}
			},
		},
		{
			name: "repeated calls",
			why:  "an answer that was lost is asked for again, and nothing may happen twice",
			run: func(t *recordTest) {
				t.begin(0, "job", 3)
				want := driver.Record{Key: "job", Token: 3, Owner: "owner of 3", Attempts: 1}
				t.same("begun again", t.begin(1, "job", 3), want)
				t.begin(0, "job", 4)
				want = driver.Record{Key: "job", Token: 4, Owner: "owner of 4", Attempts: 2, Done: true, Outcome: success("first")}
				t.finish(0, "job", 4, success("first"))
				t.same("finished again", t.finish(1, "job", 4, success("second")), want)
				t.same("finished again, failing", t.finish(1, "job", 4, driver.Outcome{Failed: true}), want)
				t.same("begun after it finished", t.begin(2, "job", 4), want)
				t.stands("job", want)
			},
		},
		{
			name: "finished without having begun",
			why:  "an outcome counts only of an attempt that nobody can have superseded",
			run: func(t *recordTest) {
				_, err := t.all[0].FinishAttempt(t.ctx, attempt("job", 3), success("x"), keepLong)
				t.refused("without a record", err, driver.SupersededError{Key: "job", Token: 3})
				t.unknown("job")
				t.begin(0, "job", 2)
				_, err = t.all[0].FinishAttempt(t.ctx, attempt("job", 3), success("x"), keepLong)
				t.refused("higher than what has begun", err, driver.SupersededError{Key: "job", Token: 3, Last: 2})
				t.stands("job", driver.Record{Key: "job", Token: 2, Owner: "owner of 2", Attempts: 1})
			},
		},
		{
			name: "large tokens",
			why:  "tokens of locks exceed what a double can tell apart",
			run: func(t *recordTest) {
				const high = int64(1)<<62 + 1
				t.begin(0, "job", high)
				_, err := t.all[1].BeginAttempt(t.ctx, attempt("job", high-1), keepLong)
				t.refused("one less", err, driver.SupersededError{Key: "job", Token: high - 1, Last: high})
				_, err = t.all[1].BeginAttempt(t.ctx, attempt("job", 9), keepLong)
				t.refused("9, which is less although it sorts behind", err, driver.SupersededError{Key: "job", Token: 9, Last: high})
				_, err = t.all[1].FinishAttempt(t.ctx, attempt("job", high+1), success("x"), keepLong)
				t.refused("one more", err, driver.SupersededError{Key: "job", Token: high + 1, Last: high})
				if r := t.begin(1, "job", high+1); r.Token != high+1 || r.Attempts != 2 {
					t.Errorf("one more: %+v", r)
				}
				t.finish(1, "job", high+1, success("x"))
			},
		},
		{
			name: "many attempts race",
			why:  "whatever the order in which they come, one finishes, and all are told the same",
			run: func(t *recordTest) {
				for round := range 5 {
					key := fmt.Sprint("job ", round)
					const n = 24
					var wg sync.WaitGroup
					var mu sync.Mutex
					finished := map[string]int{} // outcomes that were accepted as the caller's own
					for i := range n {
						wg.Go(func() {
							h, mine := t.all[i%len(t.all)], fmt.Sprint("result of ", i+1)
							r, err := h.BeginAttempt(t.ctx, attempt(key, int64(i+1)), keepLong)
							if err == nil && !r.Done {
								r, err = h.FinishAttempt(t.ctx, attempt(key, int64(i+1)), success(mine), keepLong)
								if err == nil && string(r.Result) == mine {
									mu.Lock()
									finished[mine]++
									mu.Unlock()
								}
							}
							if err != nil && !errors.Is(err, driver.ErrSuperseded) {
								t.Errorf("%q: attempt %d: %v", key, i+1, err)
							}
						})
					}
					wg.Wait()
					r, err := t.all[0].FindRecord(t.ctx, key)
					if err != nil || !r.Done || len(finished) != 1 || finished[string(r.Result)] != 1 {
						t.Fatalf("%q: %+v, %v; those that finished: %v", key, r, outcome(err), finished)
					}
					if r.Attempts < 1 || r.Attempts > n {
						t.Errorf("%q: %d attempts of %d", key, r.Attempts, n)
					}
				}
			},
		},
		{
			name: "one attempt finishes twice at once",
			why:  "the first call may be slow rather than lost: both are told what the first one recorded",
			run: func(t *recordTest) {
				for round := range 10 {
					key := fmt.Sprint("job ", round)
					t.begin(round, key, 1)
					var wg sync.WaitGroup
					results := make([]string, 4)
					for i := range results {
						wg.Go(func() {
							r, err := t.all[i%len(t.all)].FinishAttempt(t.ctx, attempt(key, 1), success(fmt.Sprint(i)), keepLong)
							if err != nil {
								t.Errorf("%q: %v", key, err)
							}
							results[i] = string(r.Result)
						})
					}
					wg.Wait()
					for _, got := range results {
						if got != results[0] {
							t.Fatalf("%q: answered %q", key, results)
						}
					}
				}
			},
		},
	}
}
