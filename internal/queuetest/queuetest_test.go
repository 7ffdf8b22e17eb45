package queuetest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/batonhq/baton/internal/queuetest"
)

// recorder is a test that may fail.
type recorder struct{ said string }

func (r *recorder) Helper()                           {}
func (r *recorder) Errorf(format string, args ...any) { r.said += fmt.Sprintf(format, args...) }
func (r *recorder) Fatalf(format string, args ...any) { r.Errorf(format, args...); panic(r) }

func TestLedger(t *testing.T) {
	for _, c := range []struct {
		name, want string
		notes      func(*queuetest.Ledger)
	}{
		{"fine", "", func(l *queuetest.Ledger) {
			l.Begin("1", "k", "a", false)
			l.Begin("2", "k", "b", false)
			l.Begin("3", "other", "b", true)
			l.Killed("b")
			l.Begin("2", "k", "a", true)
			l.End("1")
			l.End("2")
			if len(l.Done) != 2 || len(l.Cut) != 2 || !l.Lost["3"] || len(l.Lost) != 1 || l.Most != 2 || l.Running() != 0 {
				t.Errorf("%+v", l)
			}
			l.Bound()
		}},
		{"too many", "3 jobs of k run", func(l *queuetest.Ledger) {
			for _, id := range []string{"1", "2", "3"} {
				l.Begin(id, "k", "a", false)
			}
		}},
		{"twice", "job 1 runs twice", func(l *queuetest.Ledger) {
			l.Begin("1", "k", "a", false)
			l.Begin("1", "k", "b", false)
		}},
		{"no beginning", "had not begun", func(l *queuetest.Ledger) { l.End("1") }},
		{"no load", "shows nothing", func(l *queuetest.Ledger) { l.Bound() }},
	} {
		r := &recorder{}
		func() {
			defer func() {
				if p := recover(); p != nil && p != any(r) {
					panic(p)
				}
			}()
			c.notes(queuetest.NewLedger(r, 2))
		}()
		if !strings.Contains(r.said, c.want) || c.want == "" && r.said != "" {
			t.Errorf("%s: the ledger said %q, want %q", c.name, r.said, c.want)
		}
	}
}
