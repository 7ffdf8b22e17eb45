//go:build unix

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/driver/limits"
)

// A list that takes a while says so, once where nobody looks at a terminal.
func TestLongListsAreTold(t *testing.T) {
	t.Parallel()
	for _, quiet := range []bool{false, true} {
		f, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		said := func() string {
			text, err := os.ReadFile(f.Name())
			if err != nil {
				t.Error(err)
			}
			return string(text)
		}
		a := newApp(nil, nil, f)
		a.quiet, a.aloud = quiet, true
		failed := errors.New("the store is gone")
		list := func(yield func(limits.State, error) bool) {
			if !yield(limits.State{Key: "a"}, nil) {
				t.Error("it ended before its end")
			}
			if quiet {
				time.Sleep(longSilence + longSilence/2) // for what must not be said there is no event
			}
			for deadline := time.Now().Add(20 * time.Second); !quiet && said() == ""; time.Sleep(5 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Error("nothing is said")
					break
				}
			}
			yield(limits.State{}, failed)
		}
		n := 0
		if err := a.patiently(list, func(limits.State) bool { n++; return true }); err != failed || n != 1 {
			t.Errorf("%d, %v", n, err)
		}
		want := "baton: reading limits: 1 so far\n"
		if quiet {
			want = ""
		}
		if got := said(); got != want {
			t.Errorf("it said %q, want %q", got, want)
		}
	}
}

// The reader may stop at any key.
func TestListsEndEarly(t *testing.T) {
	t.Parallel()
	n := 0
	err := newApp(nil, nil, os.Stderr).patiently(func(yield func(limits.State, error) bool) {
		for _, key := range strings.Fields("a b c") {
			if !yield(limits.State{Key: key}, nil) {
				return
			}
		}
	}, func(limits.State) bool { n++; return n < 2 })
	if err != nil || n != 2 {
		t.Errorf("%d, %v", n, err)
	}
}
