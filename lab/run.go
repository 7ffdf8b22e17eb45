package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/batonhq/baton/internal/testserver"
)

// Options of Do.
type Options struct {
	// Baton is the path of the command baton, which some experiments start. If it is "", Do
	// takes the one beside this program, or that of PATH, or builds it from the clone in which
	// this program was started.
	Baton string
}

// ErrNotInstalled is in the error of Do if a server is not installed.
var ErrNotInstalled = testserver.ErrNotInstalled

// Do makes an experiment. Its servers are children of this process, listen on 127.0.0.1
// only, and end with it. Do returns an error if the outcome contradicts the question's
// answer; the record then has the events until that moment.
func Do(ctx context.Context, q *Question, o Options) (*Record, error) {
	site := new(testserver.Site)
	defer site.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &Run{Site: site, options: o, start: time.Now(), record: &Record{Question: q.Name, Made: time.Now().UTC().Format(time.DateOnly), With: []string{}}}
	var failed error
	err := site.Try(func() { failed = q.Run(ctx, r) })
	cancel()
	record := r.finish()
	if err = errors.Join(err, failed); err == nil {
		err = record.check()
	}
	if err != nil {
		return record, fmt.Errorf("lab %s: %w", q.Name, err)
	}
	return record, nil
}

// A Run is one running experiment. Several goroutines may use it; only the goroutine of
// Question.Run starts servers.
type Run struct {
	// Site is for the functions of package testserver. If a server does not start, the
	// experiment ends.
	Site *testserver.Site

	options Options

	mu     sync.Mutex
	start  time.Time
	record *Record
}

// Baton is the command baton with arguments, in an environment without settings of baton.
// The caller starts it, and ends it before the experiment ends.
func (r *Run) Baton(ctx context.Context, args ...string) (*exec.Cmd, error) {
	path, err := r.findBaton(ctx)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = []string{} // not nil, which would be the environment of this process
	for _, setting := range os.Environ() {
		if !strings.HasPrefix(setting, "BATON_") {
			cmd.Env = append(cmd.Env, setting)
		}
	}
	return cmd, nil
}

func (r *Run) findBaton(ctx context.Context) (string, error) {
	if r.options.Baton != "" {
		return r.options.Baton, nil
	}
	if self, err := os.Executable(); err == nil {
		if path, err := exec.LookPath(filepath.Join(filepath.Dir(self), "baton")); err == nil {
			return path, nil
		}
	}
	if path, err := exec.LookPath("baton"); err == nil {
		return path, nil
	}
	path := filepath.Join(r.Site.FreshDir().Dir(), "baton")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", path, "github.com/batonhq/baton/cmd/baton").CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: baton is neither beside this program nor in PATH, and cannot be built here: %w\n%s", ErrNotInstalled, err, out)
	}
	r.options.Baton = path
	return path, nil
}

// Start makes now the beginning of the timeline. The start of servers, for example, is
// before it.
func (r *Run) Start() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.start = time.Now()
}

// Since is the time since the beginning.
func (r *Run) Since() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Since(r.start)
}

// With adds a program that the experiment used: "redis-server 7.0.15".
func (r *Run) With(server string) {
	r.change(func(rec *Record) {
		if !slices.Contains(rec.With, server) {
			rec.With = append(rec.With, server)
		}
	})
}

// Say adds a sentence of conclusions.
func (r *Run) Say(english, chinese string, values ...any) {
	r.change(func(rec *Record) { rec.Says = append(rec.Says, Textf(english, chinese, values...)) })
}

// Table adds a table with these columns.
func (r *Run) Table(columns ...Text) *Rows {
	t := &Table{Columns: columns, Rows: [][]Text{}}
	r.change(func(rec *Record) { rec.Tables = append(rec.Tables, t) })
	return &Rows{r, t}
}

// Rows are the rows of a table.
type Rows struct {
	run   *Run
	table *Table
}

// Add adds a row. A cell is a Text, or a value that is formatted as by fmt.Print.
func (t *Rows) Add(cells ...any) {
	row := make([]Text, len(cells))
	for i, c := range cells {
		if text, ok := c.(Text); ok {
			row[i] = text
		} else {
			row[i] = Plain(c)
		}
	}
	t.run.change(func(*Record) { t.table.Rows = append(t.table.Rows, row) })
}

// Chart makes c the picture.
func (r *Run) Chart(c *Chart) { r.change(func(rec *Record) { rec.Chart = c }) }

// Flow makes f the picture.
func (r *Run) Flow(f *Flow) { r.change(func(rec *Record) { rec.Flow = f }) }

// Lane adds a lane to the timeline, which is the picture from now on.
func (r *Run) Lane(name Text) *Lane {
	l := &Lane{Name: name, run: r}
	r.change(func(rec *Record) {
		if rec.Timeline == nil {
			rec.Timeline = &Timeline{}
		}
		rec.Timeline.Lanes = append(rec.Timeline.Lanes, l)
	})
	return l
}

// Begin begins a span now. It ends with End, with the next span of the lane, or with the
// experiment.
func (l *Lane) Begin(k Kind, label Text) *Span {
	s := &Span{Kind: k, Label: label, run: l.run, open: true}
	l.run.change(func(*Record) {
		s.From = l.run.now()
		s.To = s.From
		l.close(s.From)
		l.Spans = append(l.Spans, s)
	})
	return s
}

// End ends the lane's open span, if it has one.
func (l *Lane) End() {
	l.run.change(func(*Record) { l.close(l.run.now()) })
}

func (l *Lane) close(at int) {
	for _, s := range l.Spans {
		if s.open {
			s.open, s.To = false, at
		}
	}
}

// End ends the span now, unless it has ended.
func (s *Span) End() {
	s.run.change(func(*Record) {
		if s.open {
			s.open, s.To = false, s.run.now()
		}
	})
}

// Mark adds an event at the present moment.
func (l *Lane) Mark(k MarkKind, label Text) {
	l.run.change(func(*Record) { l.Marks = append(l.Marks, Mark{k, l.run.now(), label}) })
}

// Span adds a span with known times.
func (l *Lane) Span(k Kind, from, to time.Duration, label Text) {
	l.run.change(func(*Record) {
		l.Spans = append(l.Spans, &Span{Kind: k, From: int(from.Milliseconds()), To: int(to.Milliseconds()), Label: label, run: l.run})
	})
}

// MarkAt adds an event at a known time.
func (l *Lane) MarkAt(k MarkKind, at time.Duration, label Text) {
	l.run.change(func(*Record) { l.Marks = append(l.Marks, Mark{k, int(at.Milliseconds()), label}) })
}

// now is the time in the timeline. The mutex is locked.
func (r *Run) now() int { return int(time.Since(r.start).Milliseconds()) }

func (r *Run) change(f func(*Record)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(r.record)
}

// stretch extends open spans, and the timeline, to now.
func (r *Run) stretch() {
	t := r.record.Timeline
	if t == nil {
		return
	}
	for _, l := range t.Lanes {
		for _, s := range l.Spans {
			if s.open {
				s.To = max(s.From, r.now())
			}
			t.Length = max(t.Length, s.To)
		}
		for _, m := range l.Marks {
			t.Length = max(t.Length, m.At)
		}
	}
	t.Length = max(t.Length, 1)
}

func (r *Run) finish() *Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stretch()
	if t := r.record.Timeline; t != nil {
		for _, l := range t.Lanes {
			l.close(t.Length)
		}
	}
	r.record.Seconds = float64(time.Since(r.start).Milliseconds()) / 1000
	return r.record
}
