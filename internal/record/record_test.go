package record

import (
	"reflect"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
)

func TestTextAndParse(t *testing.T) {
	for _, s := range []State{
		{Token: 1, Attempts: 1, Began: 5},
		{Token: 2, Attempts: 1, Retry: true, Result: []byte("exit 3"), Began: 5, Finished: 6},
		{Token: 1<<63 - 1, Owner: "a \"b\" <ü>", Attempts: 3, Done: true, Failed: true, Result: []byte("\x00\xff"), Began: 5, Finished: 6, Until: 7},
	} {
		got, err := Parse(s.Text())
		if err != nil || !reflect.DeepEqual(got, s) {
			t.Errorf("%s: read as %+v, %v", s.Text(), got, err)
		}
	}
	for _, text := range []string{"", "{", "[]", "{}", `{"token":"0"}`, `{"token":"-4"}`, `{"token":7}`} {
		if s, err := Parse([]byte(text)); err == nil {
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
