package main

import (
	"bufio"
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
	"syscall"
	"time"
)

// A result is how one test, or one of its subtests, ended.
type result struct {
	Package string  `json:"package"`
	Test    string  `json:"test"`
	Status  string  `json:"status"` // pass, fail or skip
	Seconds float64 `json:"seconds"`
	Alone   bool    `json:"alone,omitempty"` // it failed beside others, and passed when it was repeated alone
	spoke   bool    // it printed something itself, apart from its subtests
}

// An outcome is how a unit ended.
type outcome struct {
	unit    unit
	took    time.Duration
	busy    time.Duration // of processors, with all servers and clients that it waited for
	err     error         // nil if all tests passed
	results []result
	program string
	final   bool   // it failed in a way that no load explains: it is not repeated
	told    string // what the tests that failed printed, or the end of it all
}

// build compiles a test program, and returns what the compiler said if it cannot.
func build(ctx context.Context, top string, u unit, to string) error {
	args := []string{"test", "-c", "-ldflags=-w", "-o", to}
	if u.race {
		args = append(args, "-race")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, u.argument())...)
	cmd.Dir = filepath.Join(top, u.module)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w\n%s", err, out)
	}
	return nil
}

// test runs the program of a unit, and keeps what it prints in a log of that name.
func (r *runner) test(ctx context.Context, u unit, program, log string) (o outcome) {
	o = outcome{unit: u, program: program}
	began := time.Now()
	defer func() { o.took = time.Since(began) }()
	args := []string{
		"-test.v=test2json", "-test.paniconexit0",
		fmt.Sprintf("-test.timeout=%v", r.timeout), fmt.Sprintf("-test.parallel=%d", r.parallel),
	}
	if r.short {
		args = append(args, "-test.short")
	}
	if run := u.only; run != "" || r.run != "" {
		args = append(args, "-test.run="+run+r.run) // with -run nothing is in parts
	}
	if u.skip != "" {
		args = append(args, "-test.skip="+u.skip)
	}
	cmd := exec.Command(program, args...)
	cmd.Dir = u.dir
	// Programs with the race detector would sleep for a second before they end, as every
	// test program does, and every child of it. What tests expect of the command is English,
	// whatever the locale is.
	cmd.Env = append(os.Environ(), "PWD="+u.dir, "BATON_REQUIRE_SERVERS=1", "GORACE=atexit_sleep_ms=0", "BATON_LANG=en")
	o.err = r.watch(ctx, cmd, filepath.Join(r.out, log+".log"), &o)
	if s := cmd.ProcessState; s != nil {
		o.busy = s.UserTime() + s.SystemTime()
	}
	if o.err == nil {
		for _, result := range o.results {
			if result.Status == "fail" {
				o.err, o.final = errors.New("a test failed, but its program ended with 0"), true
			}
		}
	}
	return o
}

// said matches what a test prints by its Log, Error and Fatal.
var said = regexp.MustCompile(`^\s+\S+\.go:\d+: `)

// event is what "go tool test2json" prints.
type event struct {
	Action, Test, Output string
	Elapsed              float64
}

// watch runs a test program and reads what it prints.
func (r *runner) watch(ctx context.Context, cmd *exec.Cmd, logFile string, o *outcome) error {
	log, err := os.Create(logFile)
	if err != nil {
		return err
	}
	defer log.Close()
	printed, writer, err := os.Pipe()
	if err != nil {
		return err
	}
	converter := exec.Command(r.test2json, "-t")
	converter.Stdin = printed
	events, err := converter.StdoutPipe()
	if err == nil {
		err = converter.Start()
	}
	printed.Close()
	if err != nil {
		writer.Close()
		return err
	}
	cmd.Stdout, cmd.Stderr = writer, writer
	err = cmd.Start()
	writer.Close() // what the program's own children keep open is cut below
	if err != nil {
		_ = converter.Wait() // it has nothing to read
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGQUIT) })
	defer stop()
	ended := make(chan error, 1)
	go func() {
		ended <- cmd.Wait()
		// A child that outlives its test, and has its output, keeps the converter reading.
		time.AfterFunc(3*time.Second, func() { _ = converter.Process.Kill() })
	}()

	output := make(map[string]*strings.Builder) // of each test, the ones that passed left out
	spoke := make(map[string]bool)
	var failed []string
	var begun int
	var raced bool
	var last tail
	for in := bufio.NewReader(events); ; {
		line, readErr := in.ReadBytes('\n')
		var e event
		if json.Unmarshal(line, &e) == nil {
			switch e.Action {
			case "run":
				begun++
			case "output":
				raced = raced || strings.HasPrefix(e.Output, "WARNING: DATA RACE")
				_, _ = io.WriteString(log, e.Output) // the verdict does not depend on the log
				last.add(e.Output)
				if output[e.Test] == nil {
					output[e.Test] = new(strings.Builder)
				}
				output[e.Test].WriteString(e.Output)
				spoke[e.Test] = spoke[e.Test] || said.MatchString(e.Output)
			case "pass", "skip", "fail":
				if e.Test == "" {
					break
				}
				o.results = append(o.results, result{Package: o.unit.name, Test: e.Test, Status: e.Action, Seconds: e.Elapsed, spoke: spoke[e.Test]})
				if e.Action == "fail" {
					failed = append(failed, e.Test)
				} else {
					delete(output, e.Test)
				}
			}
		}
		if readErr != nil {
			break
		}
	}
	cut := converter.Wait() != nil // what it had read is here, and perhaps not all
	err = <-ended
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	o.final = cut || raced || begun > len(o.results) || cmd.ProcessState.ExitCode() != 1 // which is that of tests that failed
	var b strings.Builder
	for _, name := range failed {
		b.WriteString(ends(output[name].String()))
	}
	if len(failed) == 0 {
		b.WriteString(last.String()) // a panic, or a time-out, with the test that was running in it
	}
	o.told = b.String()
	return err
}

// maxLines is how much of what a failed test has printed is shown; all of it is in the log.
const maxLines = 60

// ends leaves out the middle of a long text.
func ends(text string) string {
	lines := strings.SplitAfter(text, "\n")
	if over := len(lines) - maxLines; over > 0 {
		left := fmt.Sprintf("    … %d lines more in the log …\n", over)
		lines = slices.Concat(lines[:maxLines/2], []string{left}, lines[len(lines)-maxLines/2:])
	}
	return strings.Join(lines, "")
}

// tail keeps the last part of what is printed.
type tail struct{ bytes.Buffer }

const tailBytes = 16 << 10

func (t *tail) add(s string) {
	t.WriteString(s)
	if over := t.Len() - tailBytes; over > tailBytes {
		t.Next(over)
	}
}

// fileName is a label without what a file's name should not have.
func fileName(label string) string {
	if label == "." {
		return "baton"
	}
	return strings.NewReplacer("/", "-", " ", "-", "(", "", ")", "").Replace(label)
}
