package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/transcript"
	"github.com/batonhq/baton/once"
)

func (a *app) onceShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show [flags] KEY",
		Short: "Show what is recorded of a command that runs once, and how it ended",
		Long: `Shows the state of an operation, its last attempt, and what the command has printed. The
state is none; begun, which without RUNNING is a crash; failed, and the next call runs it
again; done; or final, which is an exit code of --final.

With -o json: key, state, running (its lock is held now), attempts, token (a string), owner,
began and finished (times), left (seconds), exit, error, stdout, stderr, omitted (bytes).
Unknown values are left out.

` + exitTable,
		Example: `  baton once show migrate/2026-07
  baton once show -o json migrate/2026-07 | jq .exit`,
		Args:              noOnceKey(oneArg("KEY")),
		ValidArgsFunction: a.completeRecord,
	}
	a.queryFlags(cmd)
	cmd.RunE = does(func(ctx context.Context, args []string) error {
		asJSON, err := a.json()
		if err != nil {
			return err
		}
		if err := checkOnceKey(args[0]); err != nil {
			return err
		}
		ops, locks, store, err := a.openRecords(ctx)
		if err != nil {
			return err
		}
		defer shut(store)
		ctx, cancel := context.WithTimeout(ctx, openTimeout)
		defer cancel()
		rec, runner, err := findRunning(ctx, ops, locks, args[0])
		if err != nil {
			return err
		}
		v := viewRecord(rec)
		if runner != nil {
			running := len(runner.Holders) > 0
			v.Running = &running
		}
		if asJSON {
			return printJSON(a.stdout, v, true)
		}
		return a.printRecord(rec, v, runner)
	})
	return cmd
}

func (a *app) onceRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "rm KEY",
		Short: "Remove what is recorded of a command, so that it can run again",
		Long: `Removes the record: the next call with this KEY runs its command. An attempt that is under
way goes on, and its outcome is not recorded.

` + exitTable,
		Example:           `  baton once rm migrate/2026-07`,
		Args:              noOnceKey(oneArg("KEY")),
		ValidArgsFunction: a.completeRecord,
		RunE: does(func(ctx context.Context, args []string) error {
			if err := checkOnceKey(args[0]); err != nil {
				return err
			}
			ops, _, store, err := a.openRecords(ctx)
			if err != nil {
				return err
			}
			defer shut(store)
			ctx, cancel := context.WithTimeout(ctx, openTimeout)
			defer cancel()
			switch err := ops.Forget(ctx, args[0]); {
			case errors.Is(err, once.ErrNoRecord):
				a.say("nothing is recorded of %q: nothing to remove", safe(args[0]))
			case err != nil:
				return err
			default:
				a.say("removed %q: the next call runs it", safe(args[0]))
			}
			return nil
		}),
	}
}

// completeRecord proposes the keys of records that begin with the typed text.
func (a *app) completeRecord(_ *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	return a.complete(args, func(ctx context.Context, store driver.Store, propose func(key, about string) bool) {
		ops, err := once.New(store, once.Config{})
		if err != nil {
			return
		}
		for rec, err := range ops.List(ctx, typed) {
			if err != nil || !propose(rec.Key, viewListed(rec).State) {
				return
			}
		}
	})
}

// findRunning returns what is recorded of an operation and who holds its lock: nil if the
// store does not tell.
func findRunning(ctx context.Context, ops *once.Runner, locks *baton.Locker, key string) (rec driver.Record, runner *driver.KeyInfo, err error) {
	for again := false; ; again = true {
		rec, err = ops.Find(ctx, key)
		if err != nil && !errors.Is(err, once.ErrNoRecord) {
			return rec, nil, err
		}
		rec.Key = key
		if again {
			return rec, runner, nil
		}
		info, err := locks.Inspect(ctx, once.LockPrefix+key)
		if err != nil {
			return rec, nil, nil
		}
		runner = &info
		if rec.Done || rec.Retry || len(info.Holders) > 0 {
			return rec, runner, nil
		}
		// The operation may have ended between the two looks. Then it is recorded by now.
	}
}

type recordView struct {
	Key      string     `json:"key"`
	State    string     `json:"state"`
	Running  *bool      `json:"running,omitempty"`
	Attempts int64      `json:"attempts,omitempty"`
	Token    string     `json:"token,omitempty"`
	Owner    string     `json:"owner,omitempty"`
	Began    *time.Time `json:"began,omitempty"`
	Finished *time.Time `json:"finished,omitempty"`
	Left     float64    `json:"left,omitempty"`
	Exit     *int       `json:"exit,omitempty"`
	Error    string     `json:"error,omitempty"`
	Stdout   string     `json:"stdout,omitempty"`
	Stderr   string     `json:"stderr,omitempty"`
	Omitted  int64      `json:"omitted,omitempty"`
}

// viewRecord is a record with its output.
func viewRecord(rec driver.Record) recordView {
	v := viewState(rec)
	t, err := transcript.Decode(rec.Result)
	switch {
	case !rec.Done && !rec.Retry:
	case err == nil:
		v.Exit, v.Omitted, v.Error = &t.Exit, t.Omitted, string(t.Output(0))
		v.Stdout, v.Stderr = string(t.Output(1)), string(t.Output(2))
	case rec.Retry:
		v.Error = string(rec.Result)
	case rec.Failed:
		v.Stderr = string(rec.Result)
	default:
		v.Stdout = string(rec.Result)
	}
	return v
}

// viewState is a record without its output.
func viewState(rec driver.Record) recordView {
	v := recordView{Key: rec.Key, State: "begun", Attempts: rec.Attempts, Owner: rec.Owner, Began: at(rec.Began), Finished: at(rec.Finished), Left: seconds(rec.Left)}
	switch {
	case rec.Token == 0:
		v.State = "none"
		return v
	case rec.Retry:
		v.State = "failed"
	case rec.Failed:
		v.State = "final"
	case rec.Done:
		v.State = "done"
	}
	v.Token = strconv.FormatInt(rec.Token, 10)
	return v
}

func at(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// stateMeans adds what the word of a state leaves open.
func stateMeans(v recordView) string {
	switch {
	case v.State == "failed":
		return "failed; the next call runs it again"
	case v.State == "begun" && v.Running != nil && !*v.Running:
		return "begun, and not running: it crashed, or the store was away when it ended; the next call runs it again"
	}
	return v.State
}

// when is a time of the store, and its distance from now. The store's clock may be ahead.
func when(t time.Time) string {
	return fmt.Sprintf("%s, %s ago", t.Format(time.RFC3339), short(max(0, time.Since(t))))
}

func (a *app) printRecord(rec driver.Record, v recordView, runner *driver.KeyInfo) error {
	rows := [][]string{{"KEY", safe(rec.Key)}, {"STATE", stateMeans(v)}}
	add := func(name, value string) { rows = append(rows, []string{name, value}) }
	if runner != nil && len(runner.Holders) > 0 {
		add("RUNNING", inTheWay(heldBy(*runner)))
	}
	if rec.Token != 0 {
		by := "attempt " + strconv.FormatInt(rec.Attempts, 10)
		if rec.Owner != "" {
			by += " by " + safe(rec.Owner)
		}
		add("LAST", by)
		add("TOKEN", v.Token)
		if v.Began != nil {
			add("BEGAN", when(*v.Began))
		}
		if v.Finished != nil {
			add("FINISHED", when(*v.Finished))
		}
		if v.Exit != nil {
			add("EXIT", strconv.Itoa(*v.Exit))
		}
		if v.Error != "" {
			add("ERROR", safe(v.Error))
		}
		if rec.Left > 0 {
			add("KEPT FOR", short(rec.Left))
		}
	}
	if _, err := io.WriteString(a.stdout, layout(rows, 0)); err != nil {
		return err
	}
	for _, out := range []struct{ name, text string }{{"stdout", v.Stdout}, {"stderr", v.Stderr}} {
		if out.text == "" {
			continue
		}
		if _, err := fmt.Fprintf(a.stdout, "\n%s:\n", out.name); err != nil {
			return err
		}
		for line := range strings.Lines(out.text) {
			if _, err := fmt.Fprintln(a.stdout, safe(strings.TrimSuffix(line, "\n"))); err != nil {
				return err
			}
		}
	}
	if v.Omitted > 0 {
		more := "more"
		if rec.Retry {
			more = "earlier"
		}
		_, err := fmt.Fprintf(a.stdout, "\n%d %s bytes were not recorded\n", v.Omitted, more)
		return err
	}
	return nil
}
