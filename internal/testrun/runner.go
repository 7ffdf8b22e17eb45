package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// errFailed says that a test failed, which was told when it did.
var errFailed = errors.New("a test failed")

// runner holds what the flags say.
type runner struct {
	lanes, parallel int
	again           int // how many failed tests are repeated alone, at most
	run             string
	short, lint     bool
	timeout         time.Duration
	top, out        string
	patterns        []string
	test2json       string // the program
}

// results is the file with a line of JSON for each test of the last run.
func (r *runner) results() string { return filepath.Join(r.out, "results.jsonl") }

// all runs what the flags ask for.
func (r *runner) all(ctx context.Context, w io.Writer) error {
	if r.lanes < 1 || r.parallel < 0 || r.timeout < 0 || r.again < 0 {
		return errors.New("-lanes is at least 1, -parallel, -timeout and -again are at least 0")
	}
	if _, err := regexp.Compile(r.run); err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	var err error
	if r.top, err = filepath.Abs(r.top); err != nil {
		return err
	}
	if r.out, err = filepath.Abs(r.out); err != nil {
		return err
	}
	units, err := plan(ctx, r.top, r.patterns, r.run == "")
	if err != nil {
		return err
	}
	programs, err := os.MkdirTemp("", "baton-testrun-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(programs)
	if err := os.MkdirAll(r.out, 0o777); err != nil {
		return err
	}
	tool, err := exec.CommandContext(ctx, "go", "tool", "-n", "test2json").Output()
	if err == nil { // -n builds nothing, and says where it would be
		err = exec.CommandContext(ctx, "go", "tool", "test2json", "-h").Run()
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
			err = nil // usage
		}
	}
	if err != nil {
		return fmt.Errorf("go tool test2json: %w", err)
	}
	r.test2json = strings.TrimSpace(string(tool))

	r.setPace(ctx, w)
	began := time.Now()
	var outcomes []outcome
	total := len(units)
	if r.lint {
		total++
	}
	for o := range r.outcomes(ctx, programs, units) {
		outcomes = append(outcomes, o)
		told(w, o, len(outcomes), total)
	}
	r.repeatAlone(ctx, w, outcomes)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := r.keep(outcomes); err != nil {
		return err
	}
	return summary(w, outcomes, time.Since(began))
}

// outcomes builds the units in their order, one ahead of those that run, and sends
// each when it has ended. Those that wait have a lane of their own.
func (r *runner) outcomes(ctx context.Context, programs string, units []unit) <-chan outcome {
	ended := make(chan outcome)
	var wg sync.WaitGroup
	var work, wait []unit
	for _, u := range units {
		if u.waits {
			wait = append(wait, u)
		} else {
			work = append(work, u)
		}
	}
	wg.Go(func() {
		if r.lint { // which keeps all processors busy
			ended <- r.makeLint(ctx)
		}
		wg.Go(func() { r.lane(ctx, programs, wait, 1, ended) })
		r.lane(ctx, programs, work, r.lanes, ended)
	})
	go func() {
		wg.Wait()
		close(ended)
	}()
	return ended
}

// lane runs units, so many at once.
func (r *runner) lane(ctx context.Context, programs string, units []unit, wide int, ended chan<- outcome) {
	type built struct {
		unit    unit
		program string
		err     error
	}
	ready := make(chan built)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(ready)
		done := make(map[string]built) // by package: its parts share a program
		for _, u := range units {
			if ctx.Err() != nil {
				return
			}
			b, ok := done[u.name]
			if !ok {
				var dir string // of its own: names of files are not those of packages
				if dir, b.err = os.MkdirTemp(programs, ""); b.err == nil {
					b.program = filepath.Join(dir, fileName(u.name)+".test")
					b.err = build(ctx, r.top, u, b.program)
				}
				done[u.name] = b
			}
			b.unit = u
			ready <- b
		}
	})
	for range wide {
		wg.Go(func() {
			for b := range ready {
				if b.err != nil {
					ended <- outcome{unit: b.unit, err: errors.New("it does not build"), told: b.err.Error()}
				} else {
					ended <- r.test(ctx, b.unit, b.program, fileName(b.unit.label()))
				}
			}
		})
	}
	wg.Wait()
}

func (r *runner) makeLint(ctx context.Context) outcome {
	began := time.Now()
	cmd := exec.CommandContext(ctx, "make", "--no-print-directory", "lint")
	cmd.Dir = r.top
	out, err := cmd.CombinedOutput()
	o := outcome{unit: unit{name: "lint"}, took: time.Since(began), err: err}
	if s := cmd.ProcessState; s != nil {
		o.busy = s.UserTime() + s.SystemTime()
	}
	if err != nil {
		o.told = string(out)
	}
	return o
}

// told prints how a unit ended.
func told(w io.Writer, o outcome, n, total int) {
	verdict := "ok  "
	if o.err != nil {
		verdict = "FAIL"
	}
	fmt.Fprintf(w, "%s %-44s %6.1fs, %6.1fs busy  %d of %d\n", verdict, o.unit.label(), o.took.Seconds(), o.busy.Seconds(), n, total)
	if o.err != nil {
		fmt.Fprintf(w, "%s\n%v\n", strings.TrimRight(o.told, "\n"), o.err)
	}
}

// keep writes the results of all tests, in an order that does not depend on time.
func (r *runner) keep(outcomes []outcome) error {
	var all []result
	for _, o := range outcomes {
		all = append(all, o.results...)
	}
	slices.SortFunc(all, func(a, b result) int {
		return strings.Compare(a.Package+"\x00"+a.Test, b.Package+"\x00"+b.Test)
	})
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	for _, one := range all {
		if err := encoder.Encode(one); err != nil {
			return err
		}
	}
	return os.WriteFile(r.results(), b.Bytes(), 0o666)
}

// summary says what was skipped, what failed and how to repeat that, and last how
// many tests there were.
func summary(w io.Writer, outcomes []outcome, took time.Duration) error {
	count := make(map[string]int)
	var skipped, alone, failed []string
	for _, o := range outcomes {
		inner := parents(o.results)
		for _, result := range o.results {
			name := result.Package + " " + result.Test
			if !inner[name] {
				count[result.Status]++
			}
			switch {
			case result.Status == "skip":
				skipped = append(skipped, name)
			case result.Alone && !inner[name]:
				alone = append(alone, name)
			}
		}
		if o.err == nil {
			continue
		}
		failures := leafFailures(o)
		if len(failures) == 0 {
			count["fail"]++
			failed = append(failed, again(o.unit, ""))
		}
		for _, name := range failures {
			failed = append(failed, again(o.unit, name))
		}
	}
	if len(skipped) > 0 {
		fmt.Fprintf(w, "\nskipped:\n  %s\n", strings.Join(skipped, "\n  "))
	}
	if len(alone) > 0 {
		fmt.Fprintf(w, "\nfailed beside others, and passed alone:\n  %s\n", strings.Join(alone, "\n  "))
	}
	fmt.Fprintf(w, "\ntook %v\n", took.Round(time.Second))
	if len(failed) > 0 {
		fmt.Fprintf(w, "failed, and how to repeat it:\n  %s\n", strings.Join(failed, "\n  "))
	}
	fmt.Fprintf(w, "%d passed, %d failed, %d skipped\n", count["pass"], count["fail"], count["skip"])
	if len(failed) > 0 {
		return errFailed
	}
	return nil
}

// again is the command that repeats a test.
func again(u unit, test string) string {
	if u.name == "lint" {
		return "make lint"
	}
	var b strings.Builder
	b.WriteString("BATON_REQUIRE_SERVERS=1 go test")
	if u.module != "." {
		b.WriteString(" -C " + u.module)
	}
	b.WriteString(" -count=1")
	if u.race {
		b.WriteString(" -race")
	}
	if test != "" {
		b.WriteString(" -run '" + strings.ReplaceAll(exactly(test), "'", `'\''`) + "'")
	}
	b.WriteString(" " + u.argument())
	return b.String()
}
