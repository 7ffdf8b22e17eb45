package kept

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/record"
)

// Records is a driver.Records and a driver.RecordLister over texts. A call guesses the
// present text: that a beginning operation is new, and that a finishing attempt began
// here and last. A right guess takes one Swap. The answer to a wrong one has the present
// text, which is the next guess. So lost answers and stale texts do no harm.
type Records struct {
	texts Texts

	mu    sync.Mutex
	begun map[string]string // the texts of attempts that began here, by key
}

// maxBegun bounds Records.begun. A forgotten attempt costs a second Swap.
const maxBegun = 4096

func NewRecords(texts Texts) Records { return Records{texts: texts} }

// BeginAttempt implements driver.Records.
func (r *Records) BeginAttempt(ctx context.Context, a driver.Attempt, keep time.Duration) (driver.Record, error) {
	if err := check.Begin(a, keep); err != nil {
		return driver.Record{}, err
	}
	rec, text, err := r.change(ctx, Text{Key: a.Key}, keep, func(st *record.State, now int64) (bool, error) { return st.Begin(a, now, keep) })
	if err == nil && !rec.Done {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.begun == nil || len(r.begun) >= maxBegun {
			r.begun = make(map[string]string)
		}
		r.begun[a.Key] = text
	}
	return rec, err
}

// FinishAttempt implements driver.Records.
func (r *Records) FinishAttempt(ctx context.Context, a driver.Attempt, o driver.Outcome, keep time.Duration) (driver.Record, error) {
	if err := check.Finish(a, o, keep); err != nil {
		return driver.Record{}, err
	}
	r.mu.Lock()
	is := Text{Key: a.Key, Text: r.begun[a.Key]}
	delete(r.begun, a.Key)
	r.mu.Unlock()
	if st, err := record.Parse(is.Text); err != nil || st.Token != a.Token {
		if is, err = r.look(ctx, a.Key, never); err != nil {
			return driver.Record{}, err
		}
	}
	rec, _, err := r.change(ctx, is, keep, func(st *record.State, now int64) (bool, error) { return st.Finish(a, o, now, keep) })
	return rec, err
}

// FindRecord implements driver.Records.
func (r *Records) FindRecord(ctx context.Context, key string) (driver.Record, error) {
	if err := check.Key(key); err != nil {
		return driver.Record{}, err
	}
	is, err := r.look(ctx, key, "")
	if err != nil {
		return driver.Record{}, err
	}
	rec, _, err := r.change(ctx, is, 0, (*record.State).Find)
	return rec, err
}

// ForgetRecord implements driver.Records.
func (r *Records) ForgetRecord(ctx context.Context, key string) error {
	if err := check.Key(key); err != nil {
		return err
	}
	is, err := r.look(ctx, key, never)
	if err == nil {
		_, _, err = r.change(ctx, is, 0, (*record.State).Forget)
	}
	return err
}

// look returns the present text. With never as old, a server that accepts writes answers.
func (r *Records) look(ctx context.Context, key, old string) (Text, error) {
	is, _, err := r.texts.Swap(ctx, RecordsFolder, key, old, "", 0)
	is.Key = key
	return is, err
}

// change runs a step of the state machine on the record, at first on the guess is, and
// repeats it until the Swap succeeds. It returns the resulting record.
func (r *Records) change(ctx context.Context, is Text, keep time.Duration, step func(*record.State, int64) (changed bool, err error)) (rec driver.Record, text string, err error) {
	for swapped := false; ; {
		var st record.State
		if is.Text != "" {
			if st, err = record.Parse(is.Text); err != nil {
				return driver.Record{}, "", &driver.KeyError{Key: is.Key, Reason: "the store has something else under the name of its record: remove it, or choose another key: " + err.Error()}
			}
		}
		// The time is only for people: the store's clock decides how long a text is kept.
		now := time.Now().UnixMicro()
		changed, err := step(&st, now)
		if err != nil {
			return driver.Record{}, "", err
		}
		st.Until = 0
		if changed {
			text := ""
			if st.Token != 0 {
				text = st.Text()
			}
			key := is.Key
			if is, swapped, err = r.texts.Swap(ctx, RecordsFolder, key, is.Text, text, keep); err != nil {
				return driver.Record{}, "", err
			}
			if is.Key = key; !swapped {
				continue
			}
		}
		rec = st.Record(is.Key, now)
		rec.Left = is.Left
		return rec, is.Text, nil
	}
}

// ListRecords implements driver.RecordLister. It skips texts of other programs.
func (r *Records) ListRecords(ctx context.Context, prefix string) iter.Seq2[driver.Record, error] {
	return func(yield func(driver.Record, error) bool) {
		for is, err := range r.texts.List(ctx, RecordsFolder, prefix) {
			if err != nil {
				yield(driver.Record{}, err)
				return
			}
			st, err := record.Parse(is.Text)
			if err != nil || check.Key(is.Key) != nil {
				continue
			}
			rec := st.Listed(is.Key, 0)
			if rec.Left = is.Left; !yield(rec, nil) {
				return
			}
		}
	}
}
