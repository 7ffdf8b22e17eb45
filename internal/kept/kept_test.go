package kept

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/driver/limits"
)

// A shelf is the least store of texts, without a clock. It counts what is asked.
type shelf struct {
	all   map[string]string
	swaps int
	left  time.Duration // what it tells
	lose  bool          // the answer of the next Swap
}

var errLost = errors.New("lost")

func (s *shelf) texts() Texts {
	s.all = map[string]string{}
	return Texts{
		Store: "shelf",
		Swap: func(_ context.Context, f Folder, key, old, next string, keep time.Duration) (is Text, swapped bool, err error) {
			s.swaps++
			name := string(f) + "/" + key
			if swapped = s.all[name] == old; swapped {
				s.all[name] = next
			}
			if s.lose {
				s.lose = false
				return Text{}, false, errLost
			}
			return Text{Text: s.all[name], Left: s.left}, swapped, nil
		},
		List: func(_ context.Context, f Folder, prefix string) iter.Seq2[Text, error] {
			return func(yield func(Text, error) bool) {
				for name, text := range s.all {
					key, ok := strings.CutPrefix(name, string(f)+"/")
					if ok && text != "" && !yield(Text{key, text[:min(len(text), Cut)], s.left}, nil) {
						return
					}
				}
			}
		},
	}
}

func (s *shelf) asked(t *testing.T, what string, want int) {
	t.Helper()
	if s.swaps != want {
		t.Errorf("%s: %d swaps, want %d", what, s.swaps, want)
	}
	s.swaps = 0
}

func TestSwapsOfRecords(t *testing.T) {
	ctx, s := t.Context(), &shelf{left: time.Minute}
	here := NewRecords(s.texts())
	there := Records{texts: here.texts}
	begin := func(r *Records, token int64) driver.Record {
		rec, err := r.BeginAttempt(ctx, driver.Attempt{Key: "k", Token: token}, time.Hour)
		if err != nil {
			t.Errorf("begin %d: %v", token, err)
		}
		return rec
	}
	finish := func(r *Records, token int64, o driver.Outcome) (driver.Record, error) {
		return r.FinishAttempt(ctx, driver.Attempt{Key: "k", Token: token}, o, time.Hour)
	}
	if rec := begin(&here, 1); rec.Attempts != 1 || rec.Left != s.left {
		t.Errorf("%+v", rec)
	}
	s.asked(t, "a new operation begins", 1)
	begin(&here, 1)
	s.asked(t, "again", 2)
	if _, err := finish(&here, 1, driver.Outcome{Retry: true, Result: []byte("no")}); err != nil {
		t.Error(err)
	}
	s.asked(t, "an attempt ends where it has begun", 1)
	begin(&there, 2)
	s.asked(t, "the next attempt begins", 2)
	begin(&here, 3)
	s.swaps = 0
	if _, err := finish(&there, 2, driver.Outcome{}); !errors.Is(err, driver.ErrSuperseded) {
		t.Errorf("superseded: %v", err)
	}
	s.asked(t, "one that is superseded finishes", 1)
	if rec, err := finish(&there, 3, driver.Outcome{Result: []byte("yes")}); err != nil || !rec.Done || rec.Attempts != 3 {
		t.Errorf("%+v, %v", rec, err)
	}
	s.asked(t, "an attempt finishes elsewhere", 2)
	if rec := begin(&here, 4); !rec.Done || string(rec.Result) != "yes" {
		t.Errorf("%+v", rec)
	}
	s.asked(t, "one begins that is finished", 1)

	// What is remembered of attempts that began is bounded, and only saves a request.
	for i := range int64(maxBegun) {
		if _, err := here.BeginAttempt(ctx, driver.Attempt{Key: fmt.Sprint(i), Token: 1}, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(here.begun); n > maxBegun {
		t.Errorf("%d are remembered", n)
	}
	if _, err := here.FinishAttempt(ctx, driver.Attempt{Key: "0", Token: 1}, driver.Outcome{}, time.Hour); err != nil {
		t.Error(err)
	}
}

func TestLostAnswersOfSwaps(t *testing.T) {
	ctx, s := t.Context(), &shelf{}
	r := NewRecords(s.texts())
	a := driver.Attempt{Key: "k", Token: 7}
	s.lose = true
	if _, err := r.BeginAttempt(ctx, a, time.Hour); err != errLost {
		t.Errorf("begin: %v", err)
	}
	if rec, err := r.BeginAttempt(ctx, a, time.Hour); err != nil || rec.Attempts != 1 {
		t.Errorf("begun again: %+v, %v", rec, err)
	}
	s.lose = true
	if _, err := r.FinishAttempt(ctx, a, driver.Outcome{Result: []byte("first")}, time.Hour); err != errLost {
		t.Errorf("finish: %v", err)
	}
	if rec, err := r.FinishAttempt(ctx, a, driver.Outcome{Result: []byte("second")}, time.Hour); err != nil || string(rec.Result) != "first" {
		t.Errorf("finished again: %+v, %v", rec, err)
	}
}

func TestWhatIsNoRecord(t *testing.T) {
	ctx, s := t.Context(), &shelf{}
	r := NewRecords(s.texts())
	s.all["records/k"] = "hello"
	a := driver.Attempt{Key: "k", Token: 7}
	_, begin := r.BeginAttempt(ctx, a, time.Hour)
	_, finish := r.FinishAttempt(ctx, a, driver.Outcome{}, time.Hour)
	_, find := r.FindRecord(ctx, "k")
	for what, err := range map[string]error{"begin": begin, "finish": finish, "find": find, "forget": r.ForgetRecord(ctx, "k")} {
		if wrong, ok := errors.AsType[*driver.KeyError](err); !ok || wrong.Key != "k" {
			t.Errorf("%s: %v", what, err)
		}
	}
	if s.all["records/k"] != "hello" {
		t.Errorf("it was changed to %q", s.all["records/k"])
	}
	s.all["records/bad\x00key"] = "hello"
	for rec, err := range r.ListRecords(ctx, "") {
		t.Errorf("listed: %+v, %v", rec, err)
	}
}

// A text that is cut still has all of a record that ListRecords shows.
func TestListOfCutTexts(t *testing.T) {
	ctx, s := t.Context(), &shelf{}
	r := NewRecords(s.texts())
	owner := strings.Repeat(`"`, 128)
	for key, o := range map[string]driver.Outcome{
		"failed": {Retry: true, Result: bytes.Repeat([]byte("\xff"), check.MaxFailure)},
		"done":   {Result: bytes.Repeat([]byte("\xff"), check.MaxResult)},
	} {
		a := driver.Attempt{Key: key, Token: 1<<63 - 1, Owner: owner}
		if _, err := r.BeginAttempt(ctx, a, time.Hour); err != nil {
			t.Fatal(err)
		}
		if _, err := r.FinishAttempt(ctx, a, o, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	for rec, err := range r.ListRecords(ctx, "") {
		if n++; err != nil || rec.Owner != owner || rec.Done == rec.Retry || rec.Retry && len(rec.Result) != check.MaxFailure {
			t.Errorf("%+v, %v", rec, err)
		}
	}
	if n != 2 {
		t.Errorf("%d records are listed", n)
	}
}

func TestTextOfOverrides(t *testing.T) {
	o := limits.Override{Key: "k", N: 1<<51 - 1, Period: 100_000*time.Hour + time.Microsecond, Burst: 7}
	until := time.Date(2026, 9, 21, 14, 13, 20, 1000, time.UTC)
	const want = `{"n":2251799813685247,"period":"100000h0m0.000001s","burst":7,"until":"2026-09-21T14:13:20.000001Z"}`
	if got := textOf(o, until); got != want {
		t.Errorf("an operator reads %s, want %s", got, want)
	}
	if got, end, ok := parse("k", want); !ok || got != o || !end.Equal(until) {
		t.Errorf("it is read as %+v, %v, %v", got, end, ok)
	}
	for _, text := range []string{
		"", "5", "{}", `{"n":1}`, `{"n":1,"period":"0s"}`, `{"period":"0s","until":"2026-09-21T14:13:20Z","n":-1}`, `{"period":"1","until":"2026-09-21T14:13:20Z"}`, want + "x",
	} {
		if got, _, ok := parse("k", text); ok {
			t.Errorf("%q is read as %+v", text, got)
		}
	}
}

// A store that does not tell the time keeps an override until it is removed, or until the
// clock of this machine is far behind its end.
func TestOverridesWithoutTheTime(t *testing.T) {
	ctx, s := t.Context(), &shelf{}
	o := NewOverrides(s.texts())
	now := time.Now()
	for key, until := range map[string]time.Duration{"lasts": time.Hour, "ends": -time.Second, "ended": -2 * grace} {
		s.all["overrides/"+key] = textOf(limits.Override{N: 1}, now.Add(until))
	}
	all, err := o.Overrides(ctx)
	if err != nil || len(all) != 2 {
		t.Fatalf("%+v, %v", all, err)
	}
	for _, got := range all {
		if got.Key == "ends" && got.Left != shortestLeft || got.Key == "lasts" && (got.Left > time.Hour || got.Left < 50*time.Minute) {
			t.Errorf("%+v", got)
		}
	}
	// One that was replaced since the list is replaced all the same.
	s.swaps = 0
	if err := o.SetOverride(ctx, limits.Override{Key: "lasts"}, 0); err != nil || s.all["overrides/lasts"] != "" {
		t.Errorf("%q stays, %v", s.all["overrides/lasts"], err)
	}
	s.asked(t, "it is removed", 2)
}
