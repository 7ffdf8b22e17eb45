//go:build unix

package main

import (
	"bytes"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/transcript"
)

// Pieces keep their stream and their order. Those that cannot be passed on are kept as
// well.
func TestRecorder(t *testing.T) {
	t.Parallel()
	var stderr bytes.Buffer
	arrived := make(chan struct{})
	r, err := record(writer(func(p []byte) (int, error) { arrived <- struct{}{}; return 0, io.ErrClosedPipe }), &stderr)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(r.stdout, "out")
	<-arrived // from now on every write to it fails
	fmt.Fprint(r.stderr, "err")
	if r.stop(time.Minute) {
		t.Error("somebody was left behind")
	}
	r.passOn(nil)
	if want := []transcript.Piece{{Stream: 1, Data: []byte("out")}, {Stream: 2, Data: []byte("err")}}; !reflect.DeepEqual(r.text.Pieces, want) || stderr.String() != "err" {
		t.Errorf("recorded %v, passed on %q", r.text.Pieces, stderr.String())
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// Whatever is written, however often the stream changes, what is recorded can be kept,
// and is the beginning.
func TestRecorderNeverKeepsTooMuch(t *testing.T) {
	t.Parallel()
	for _, step := range []int{1, 2, 7, 1000, 100_000, check.MaxResult} {
		r := &recorder{size: transcript.MostHead}
		r.text.Exit = 255
		line := []byte(strings.Repeat("x", step))
		total := 0
		for i := 0; r.text.Omitted < 1000; i++ {
			r.keep(1+i%2, line)
			total += step
		}
		text := r.text.Encode()
		if len(text) > check.MaxResult || step < 1000 && len(text) < check.MaxResult/3 {
			t.Errorf("in steps of %d: %d bytes are recorded", step, len(text))
		}
		got, err := transcript.Decode(text)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(got.Output(1)) + len(got.Output(2)) + int(got.Omitted); n != total {
			t.Errorf("in steps of %d: %d of %d bytes are accounted for", step, n, total)
		}
	}
}

// A process that closed the output before the recorder read the last of it is not left
// behind. This does not run beside tests that start programs: each of them has the pipe
// for a moment, too, between fork and exec.
func TestRecorderIsLate(t *testing.T) {
	arrived, release := make(chan struct{}, 10), make(chan struct{})
	r, err := record(writer(func(p []byte) (int, error) { arrived <- struct{}{}; <-release; return len(p), nil }), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(r.stdout, "one")
	<-arrived
	fmt.Fprint(r.stdout, "two")
	close(release)
	if r.stop(0) {
		t.Error("somebody was left behind")
	}
	if got := r.text.Output(1); string(got) != "onetwo" {
		t.Errorf("recorded %q", got)
	}
}
