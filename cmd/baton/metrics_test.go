//go:build unix

package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/adapters/metrics"
	"github.com/batonhq/baton/internal/textfile"
)

// A command that goes on writes every 15 s, and at once when it matters.
func TestMeasuredFromTimeToTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "a.prom")
		m, err := newMeasured(path, func(err error) { t.Error(err) })
		if err != nil {
			t.Fatal(err)
		}
		a := newApp(nil, nil, os.Stderr)
		a.measured = m
		go m.write()
		there := func(want bool) {
			t.Helper()
			synctest.Wait()
			if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) == want {
				t.Errorf("after %v: %v", time.Since(m.began), err)
			}
			_ = os.Remove(path) // it may not be there
		}
		time.Sleep(measureEvery - time.Second)
		there(false)
		time.Sleep(2 * time.Second)
		there(true)
		there(false)
		m.soon()
		there(true)
		time.Sleep(measureEvery)
		there(true)
		a.conclude(3)
		there(true)
		a.conclude(4) // which is told once
		there(false)
	})
}

// A file that cannot be written is told once, not every 15 s, and again only if it
// could be written meanwhile.
func TestMeasuredWarnsOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "dir")
		var told []error
		m, err := newMeasured(filepath.Join(dir, "a.prom"), func(err error) { told = append(told, err) })
		if err != nil {
			t.Fatal(err)
		}
		a := newApp(nil, nil, os.Stderr)
		a.measured = m
		go m.write()
		time.Sleep(10 * measureEvery)
		synctest.Wait()
		if len(told) != 1 || !errors.Is(told[0], fs.ErrNotExist) {
			t.Errorf("told %v", told)
		}
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		time.Sleep(measureEvery)
		synctest.Wait()
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		a.conclude(0)
		if len(told) != 2 {
			t.Errorf("told %v", told)
		}
	})
}

// What is in the file of the run before stays until this one ends.
func TestMeasuredRemembers(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.prom")
	fresh := func() (*app, *measured) {
		m, err := newMeasured(path, func(err error) { t.Error(err) })
		if err != nil {
			t.Fatal(err)
		}
		go m.write()
		a := newApp(nil, nil, os.Stderr)
		a.measured = m
		return a, m
	}
	value := func(of metrics.Instrument) float64 {
		t.Helper()
		text, err := os.ReadFile(path)
		v, ok := textfile.Find(text, of)
		if err != nil || !ok {
			t.Fatalf("%s is not in %s, %v", of.Name, text, err)
		}
		return v
	}
	a, _ := fresh()
	a.conclude(0)
	success := value(commandSuccess)
	if code := value(commandExit); code != 0 || success != value(commandEnd) || success < value(commandStart) {
		t.Errorf("code %v, success at %v", code, success)
	}
	a, m := fresh()
	m.began = m.began.Add(time.Hour)
	a.conclude(7)
	if code := value(commandExit); code != 7 || value(commandSuccess) != success {
		t.Errorf("code %v, success at %v", code, value(commandSuccess))
	}
	a, m = fresh()
	if err := m.put(); err != nil { // it goes on
		t.Fatal(err)
	}
	if code := value(commandExit); code != 7 || value(commandSuccess) != success {
		t.Errorf("code %v, success at %v", code, value(commandSuccess))
	}
	m.skipped = true
	a.conclude(0)
	if code := value(commandExit); code != 0 || value(commandSuccess) != success {
		t.Errorf("code %v, success at %v", code, value(commandSuccess))
	}
}

// docs/metrics.md says what is told of the command.
func TestMetricsOfTheCommandAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range []metrics.Instrument{commandStart, commandEnd, commandExit, commandSuccess} {
		row := "| `" + i.Prometheus() + "` | " + i.Kind.String() + " | " + i.Unit
		_, rest, ok := strings.Cut(string(text), row)
		if row, _, _ := strings.Cut(rest, "\n"); !ok || !strings.HasSuffix(row, "| "+i.Help+" |") {
			t.Errorf("docs/metrics.md does not say of %s: %s", i.Prometheus(), i.Help)
		}
	}
}
