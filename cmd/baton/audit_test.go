//go:build unix

package main

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Those who cause many warnings do not hide those that others cause, nor what is no
// warning. What is omitted is counted.
func TestFewWarnings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := slog.New(&fewWarnings{Handler: slog.NewJSONHandler(&out, nil), warnings: newWarnings(3)})
		for range 10 {
			log.Warn("a call was refused", "remote", "192.0.2.1:1")
			log.Warn("a call was denied", "caller", "loud")
			log.With("caller", "page").Warn("a call was denied", "key", "k")
		}
		log.Warn("a call was denied", "caller", "quiet")
		log.With("caller", "page 2").Warn("a call was denied", "key", "k")
		for range 10 {
			log.Info("a lock was broken")
		}
		for text, want := range map[string]int{"refused": 3, "loud": 3, `"page"`: 3, "quiet": 1, `"page 2"`: 1, "broken": 10, `"omitted before":21`: 1} {
			if n := strings.Count(out.String(), text); n != want {
				t.Errorf("%s is there %d times, want %d:\n%s", text, n, want, &out)
			}
		}
		time.Sleep(time.Second) // fake
		out.Reset()
		log.Warn("a call was denied", "caller", "loud")
		if !strings.Contains(out.String(), "loud") {
			t.Error("in the next second nothing is told")
		}
	})
}
