package history

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
)

// Read returns the events that a client wrote, also after a kill in the middle of any line.
func TestLogAndRead(t *testing.T) {
	var b bytes.Buffer
	l := NewLog(&b, 3)
	from := Now()
	op := l.Acquires(Hold{Key: "k", Mode: Permits, Weight: 2, Of: 5, Waits: true})
	l.Acquired(op, Granted, 7, nil)
	l.Believes(op, from+10)
	l.Believes(op, from+20)
	l.Releases(op)
	l.Released(op, Unknown, errors.New("cut"))
	lost := l.Acquires(Hold{Key: "k", Mode: Exclusive})
	l.Acquired(lost, Granted, 8, nil)
	l.Loses(lost, errors.New("gone"))
	q := l.Asks(Decision{Key: "q", N: 4, Waits: true, Patience: 5})
	l.Decided(q, Granted, 6, 5, nil)
	if err := l.Err(); err != nil {
		t.Fatal(err)
	}

	var h History
	if err := h.Read(&b); err != nil {
		t.Fatal(err)
	}
	h.Sort()
	if len(h.Holds) != 2 || len(h.Decisions) != 1 {
		t.Fatalf("read %+v", h)
	}
	got := h.Holds[0]
	if got.Called < from || got.Returned < got.Called || got.ReleaseReturned < got.ReleaseCalled || got.ReleaseCalled == 0 {
		t.Errorf("instants out of order: %+v", got)
	}
	got.Called, got.Returned, got.ReleaseCalled, got.ReleaseReturned = 0, 0, 0, 0
	want := Hold{
		Op: Op{3, 1}, Key: "k", Mode: Permits, Weight: 2, Of: 5, Waits: true, Result: Granted, Token: 7,
		SureFrom: from + 10, SureTo: from + 20, Released: Unknown, Cause: "cut",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v, want %+v", got, want)
	}
	if d := h.Decisions[0]; d.N != 4 || d.Result != Granted || d.Remaining != 6 || d.At != 5 || d.Key != "q" {
		t.Errorf("read %+v", d)
	}
	if o := h.Holds[1]; o.LostAt == 0 || o.Cause != "gone" || o.Live() {
		t.Errorf("read %+v", o)
	}
}

func TestReadTorn(t *testing.T) {
	var b bytes.Buffer
	l := NewLog(&b, 1)
	op := l.Acquires(Hold{Key: "k", Mode: Exclusive})
	l.Acquired(op, Granted, 1, nil)
	whole := b.String()
	first := strings.Index(whole, "\n") + 1
	for n := first; n < len(whole)-1; n++ {
		var h History
		if err := h.Read(strings.NewReader(whole[:n])); err != nil || len(h.Holds) != 1 || h.Holds[0].Result != Unknown {
			t.Fatalf("torn after %d bytes: %+v, %v", n, h, err)
		}
	}
	for what, text := range map[string]string{
		"a torn line in the middle": whole[:first-5] + "\n" + whole[first:],
		"an answer to nothing":      whole[first:],
		"no event":                  whole + strings.Replace(whole[first:], "acquired", "acquainted", 1),
	} {
		var h History
		if err := h.Read(strings.NewReader(text)); err == nil {
			t.Errorf("%s was read as %+v", what, h)
		}
	}
}

// A log whose file is full does not end the client, and reports the error.
func TestLogThatCannotBeWritten(t *testing.T) {
	full := errors.New("no space")
	l := NewLog(broken{full}, 1)
	l.Acquired(l.Acquires(Hold{Key: "k"}), Granted, 1, nil)
	if err := l.Err(); !errors.Is(err, full) {
		t.Errorf("%v, want %v", err, full)
	}
}

type broken struct{ err error }

func (b broken) Write([]byte) (int, error) { return 0, b.err }
