package record

import (
	"reflect"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
)

func TestTextAndParse(t *testing.T) {
	for _, s := range []State{
		{Token: 1, Attempts: 1, Began: 5, Result: []byte{}},
		{Token: 2, Attempts: 1, Retry: true, Result: []byte("exit 3"), Began: 5, Finished: 6},
		{Token: 1<<63 - 1, Owner: "a \"b\" <ü>", Attempts: 3, Done: true, Failed: true, Result: []byte("\n\x00\xff\n"), Began: 5, Finished: 6},
	} {
		got, err := Parse(s.Text())
		if err != nil || !reflect.DeepEqual(got, s) {
			t.Errorf("%s: read as %+v, %v", s.Text(), got, err)
		}
	}
	done := State{Token: 7, Owner: "host:1 <job>", Attempts: 2, Done: true, Result: []byte("paid"), Began: 1_790_000_000_000_001, Finished: 1_790_000_001_500_000}
	const want = `{"state":"succeeded","token":"7","owner":"host:1 <job>","attempts":2,"began":"2026-09-21T14:13:20.000001Z","finished":"2026-09-21T14:13:21.5Z"}` + "\npaid"
	if got := done.Text(); got != want {
		t.Errorf("an operator reads\n%s, want\n%s", got, want)
	}
	for _, text := range []string{
		"", "{", "[]", "{}", `{"token":"1"}`, `{"state":"begun","token":"0"}`, `{"state":"begun","token":"-4"}`, `{"state":"begun","token":7}`,
		`{"state":"over","token":"7"}`, `{"state":"begun","token":"7","began":"now"}`,
	} {
		if s, err := Parse(text); err == nil {
			t.Errorf("%q is read as %+v", text, s)
		}
	}
}

// A time is never rounded to an earlier one.
func TestUntil(t *testing.T) {
	var s State
	if _, err := s.Begin(driver.Attempt{Key: "k", Token: 1}, 1000, time.Second+1); err != nil || s.Until != 1000+1_000_001 {
		t.Errorf("kept until %d, %v", s.Until, err)
	}
	if s.Exists(s.Until) || !s.Exists(s.Until-1) {
		t.Error("a record exists until its end and not longer")
	}
}

// A process that finishes may read an earlier time than the process that began.
func TestFinishedIsNotBeforeBegan(t *testing.T) {
	var s State
	a := driver.Attempt{Key: "k", Token: 1}
	if _, err := s.Begin(a, 1000, time.Second); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Finish(a, driver.Outcome{}, 990, time.Second); err != nil || s.Finished != s.Began || s.Until != 990+1_000_000 {
		t.Errorf("%+v, %v", s, err)
	}
}
