package badstores

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/record"
)

// The bugs of records, by what they do.
const (
	FinishesAnyToken      Bug = "lets a superseded attempt finish"
	BeginsAnyToken        Bug = "lets a lower token begin"
	LastOutcomeWins       Bug = "lets a repeated finish replace the outcome"
	FinishesFromNothing   Bug = "lets an attempt finish that has not begun"
	BeginsWhatIsDone      Bug = "lets a finished operation begin anew"
	CountsRepeatedBegins  Bug = "counts a repeated begin"
	ForgetsFailures       Bug = "takes a failure for a success"
	FailuresFinish        Bug = "takes a failed attempt for the outcome"
	ForgetsHowItFailed    Bug = "does not keep how an attempt failed"
	ShowsOldFailures      Bug = "shows how the attempt before failed"
	ListsNoFailures       Bug = "lists failed attempts without how they failed"
	CutsResults           Bug = "cuts a result at a NUL"
	TrimsRecordOwners     Bug = "trims the owner of an attempt"
	ReadsThenFinishes     Bug = "reads, and then finishes"
	ReadsThenBegins       Bug = "reads, and then begins"
	TokensAreDoubles      Bug = "compares tokens as floating point"
	TokensAreTexts        Bug = "compares tokens as texts"
	KeepsRecordsForEver   Bug = "never forgets a record"
	KeepsAttemptsForEver  Bug = "never forgets an attempt"
	KeepsFromBegin        Bug = "keeps an outcome for as long as the attempt"
	HidesExpiredRecords   Bug = "hides expired records and never removes them"
	ForgetsOnlyOutcomes   Bug = "does not forget an attempt that is under way"
	FoldsOperations       Bug = "folds the case of operations"
	RecordsBadAttempts    Bug = "records bad attempts"
	RecordsAfterEnd       Bug = "records although the caller has gone"
	ForgetsEveryOperation Bug = "forgets other operations, too"
	ListsByPattern        Bug = "takes a prefix for a pattern"
	ListsResults          Bug = "lists results"
	ListsTheExpired       Bug = "lists expired records"
	SkipsBetweenPages     Bug = "loses a record between two pages of a list"
	MissesWhatWent        Bug = "fails if a record goes while it lists"
	ListsAfterEnd         Bug = "lists although the caller has gone"
)

// RecordsCaughtBy names, for every bug, the case that must catch it.
var RecordsCaughtBy = map[Bug]string{
	FinishesAnyToken:      "a higher token supersedes",
	BeginsAnyToken:        "a higher token supersedes",
	LastOutcomeWins:       "repeated calls",
	FinishesFromNothing:   "finished without having begun",
	BeginsWhatIsDone:      "finished before the next has begun",
	CountsRepeatedBegins:  "repeated calls",
	ForgetsFailures:       "a final failure",
	FailuresFinish:        "an attempt that failed",
	ForgetsHowItFailed:    "an attempt that failed",
	ShowsOldFailures:      "an attempt that failed",
	ListsNoFailures:       "list shows what is recorded",
	CutsResults:           "results are bytes",
	TrimsRecordOwners:     "owners are kept byte by byte",
	ReadsThenFinishes:     "one attempt finishes twice at once",
	ReadsThenBegins:       "many attempts race",
	TokensAreDoubles:      "large tokens",
	TokensAreTexts:        "large tokens",
	KeepsRecordsForEver:   "outcomes expire",
	KeepsAttemptsForEver:  "attempts expire",
	KeepsFromBegin:        "kept for as long as was said last",
	HidesExpiredRecords:   "expired records are removed",
	ForgetsOnlyOutcomes:   "forget",
	FoldsOperations:       "odd keys are different operations",
	RecordsBadAttempts:    "bad attempts",
	RecordsAfterEnd:       "a context that has ended",
	ForgetsEveryOperation: "forget",
	ListsByPattern:        "list takes prefixes literally",
	ListsResults:          "list shows what is recorded",
	ListsTheExpired:       "list does not show what has expired",
	SkipsBetweenPages:     "list shows many records",
	MissesWhatWent:        "list while records come and go",
	ListsAfterEnd:         "list with a context that has ended",
}

// Records is a driver.Records with one bug.
type Records struct {
	bug Bug

	mu     sync.Mutex
	states map[string]record.State
}

// NewRecords returns an empty store of records with the bug.
func NewRecords(bug Bug) *Records { return &Records{bug: bug, states: map[string]record.State{}} }

// Kept counts records.
func (s *Records) Kept() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bug != HidesExpiredRecords {
		for k, st := range s.states {
			if !st.Exists(time.Now().UnixMicro()) {
				delete(s.states, k)
			}
		}
	}
	return len(s.states)
}

// BeginAttempt implements driver.Records, but for the bug.
func (s *Records) BeginAttempt(ctx context.Context, a driver.Attempt, keep time.Duration) (driver.Record, error) {
	if err := check.Begin(a, keep); err != nil && s.bug != RecordsBadAttempts {
		return driver.Record{}, err
	}
	if s.bug == TrimsRecordOwners {
		a.Owner = strings.TrimSpace(a.Owner)
	}
	return s.act(ctx, a.Key, s.bug == ReadsThenBegins, func(st *record.State, now int64) (bool, error) {
		switch {
		case s.bug == BeginsAnyToken && a.Token < st.Token && !st.Done:
			st.Token = a.Token - 1
		case s.bug == BeginsWhatIsDone && st.Done:
			*st = record.State{}
		case s.bug == CountsRepeatedBegins && a.Token == st.Token:
			st.Attempts++
		case s.bug == TokensAreDoubles && float64(a.Token) == float64(st.Token),
			s.bug == TokensAreTexts && fmt.Sprint(a.Token) > fmt.Sprint(st.Token):
			st.Token = min(st.Token, a.Token)
		}
		before := *st
		changed, err := st.Begin(a, now, keep)
		if s.bug == ShowsOldFailures && before.Retry && !st.Done {
			st.Retry, st.Result, st.Finished = true, before.Result, before.Finished
		}
		if s.bug == KeepsAttemptsForEver {
			st.Until = 0
		}
		return changed, err
	})
}

// FinishAttempt implements driver.Records, but for the bug.
func (s *Records) FinishAttempt(ctx context.Context, a driver.Attempt, o driver.Outcome, keep time.Duration) (driver.Record, error) {
	if err := check.Finish(a, o, keep); err != nil && s.bug != RecordsBadAttempts {
		return driver.Record{}, err
	}
	switch {
	case s.bug == ForgetsFailures:
		o.Failed = false
	case s.bug == FailuresFinish && o.Retry:
		o.Failed, o.Retry = true, false
	case s.bug == ForgetsHowItFailed && o.Retry:
		o.Result = nil
	}
	if s.bug == CutsResults {
		o.Result, _, _ = bytes.Cut(o.Result, []byte{0})
	}
	return s.act(ctx, a.Key, s.bug == ReadsThenFinishes, func(st *record.State, now int64) (bool, error) {
		switch {
		case s.bug == FinishesAnyToken && st.Token != 0 && !st.Done:
			st.Token = a.Token
		case s.bug == LastOutcomeWins && st.Token == a.Token:
			st.Done = false
		case s.bug == FinishesFromNothing && st.Token == 0:
			*st = record.State{Token: a.Token, Attempts: 1, Began: now}
		}
		before := st.Until
		changed, err := st.Finish(a, o, now, keep)
		if changed && s.bug == KeepsFromBegin {
			st.Until = before
		}
		if s.bug == KeepsRecordsForEver {
			st.Until = 0
		}
		return changed, err
	})
}

// FindRecord implements driver.Records, but for the bug.
func (s *Records) FindRecord(ctx context.Context, key string) (driver.Record, error) {
	if err := check.Key(key); err != nil {
		return driver.Record{}, err
	}
	return s.act(ctx, key, false, func(st *record.State, now int64) (bool, error) {
		if !st.Exists(now) {
			return false, driver.ErrNoRecord
		}
		return false, nil
	})
}

// ForgetRecord implements driver.Records, but for the bug.
func (s *Records) ForgetRecord(ctx context.Context, key string) error {
	if err := check.Key(key); err != nil {
		return err
	}
	_, err := s.act(ctx, key, false, func(st *record.State, now int64) (bool, error) {
		switch {
		case !st.Exists(now):
			return false, driver.ErrNoRecord
		case s.bug == ForgetsOnlyOutcomes && !st.Done:
			return false, nil
		case s.bug == ForgetsEveryOperation:
			clear(s.states)
		}
		*st = record.State{}
		return true, nil
	})
	return err
}

// ListRecords implements driver.RecordLister, but for the bug.
func (s *Records) ListRecords(ctx context.Context, prefix string) iter.Seq2[driver.Record, error] {
	return func(yield func(driver.Record, error) bool) {
		if err := ctx.Err(); err != nil && s.bug != ListsAfterEnd {
			yield(driver.Record{}, err)
			return
		}
		matches := strings.HasPrefix
		if s.bug == ListsByPattern {
			matches = func(key, prefix string) bool {
				ok, _ := path.Match(prefix+"*", strings.ReplaceAll(key, "/", ":"))
				return ok || strings.HasPrefix(key, prefix)
			}
		}
		var keys []string
		s.mu.Lock()
		for key := range s.states {
			if matches(key, prefix) {
				keys = append(keys, key)
			}
		}
		s.mu.Unlock()
		slices.Sort(keys)
		const page = 100
		for i, key := range keys {
			s.mu.Lock()
			st, now := s.states[key], time.Now().UnixMicro()
			s.mu.Unlock()
			r := st.Listed(key, now)
			if s.bug == ListsResults {
				r = st.Record(key, now)
			}
			if s.bug == ListsNoFailures {
				r.Result = nil
			}
			switch {
			case s.bug == SkipsBetweenPages && i%page == page-1:
			case s.bug == MissesWhatWent && !st.Exists(now):
				yield(driver.Record{}, driver.ErrNoRecord)
				return
			case (st.Exists(now) || s.bug == ListsTheExpired && st.Token != 0) && !yield(r, nil):
				return
			}
		}
	}
}

// act reads, acts and writes. apart leaves time between reading and acting.
func (s *Records) act(ctx context.Context, key string, apart bool, f func(*record.State, int64) (bool, error)) (driver.Record, error) {
	if err := ctx.Err(); err != nil && s.bug != RecordsAfterEnd {
		return driver.Record{}, err
	}
	name := key
	if s.bug == FoldsOperations {
		name = strings.ToLower(key)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.states[name]
	if apart {
		s.mu.Unlock()
		time.Sleep(time.Millisecond) // in fake time: all read before one writes
		s.mu.Lock()
	}
	now := time.Now().UnixMicro()
	changed, err := f(&st, now)
	if err != nil {
		return driver.Record{}, err
	}
	if changed {
		if s.states[name] = st; st.Token == 0 {
			delete(s.states, name)
		}
	}
	return st.Record(key, now), nil
}
