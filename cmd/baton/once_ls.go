package main

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/once"
)

func (a *app) onceListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "ls [flags] [PREFIX]",
		Aliases: []string{"list"},
		Short:   "List what is recorded of commands that run once",
		Long: `Lists the operations whose keys begin with the prefix, or all: whether they are done,
how many attempts began, which process began the last one, when it began or ended, and
for how much longer that is kept. It is no snapshot: the list is read while the records change.

"begun" is an attempt that is under way, or failed, or crashed: baton show once/KEY
tells whether it runs. Output is shown by baton once --show KEY. Every character of the
prefix stands for itself.

With -o json: an array of what "baton once --show" prints, without the output.

` + exitTable,
		Example: `  baton once ls
  baton once ls migrate/
  baton once ls -o json | jq -r '.[] | select(.state == "begun" and .attempts > 3) | .key'`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	a.queryFlags(cmd)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if cmd.ArgsLenAtDash() >= 0 {
			return usage(`%q lists what is recorded and cannot be a KEY: use another one, or package once`, cmd.CalledAs())
		}
		return noMoreThanOne("PREFIX")(cmd, args)
	}
	cmd.RunE = does(func(ctx context.Context, args []string) error {
		asJSON, err := a.json()
		if err != nil {
			return err
		}
		_, store, err := a.open(ctx, baton.Config{}, outlives)
		if err != nil {
			return err
		}
		defer shut(store)
		ops, err := once.New(store, once.Config{})
		if err != nil {
			return err
		}
		prefix := ""
		if len(args) > 0 {
			prefix = args[0]
		}
		var all []driver.Record
		for rec, err := range ops.List(ctx, prefix) {
			if err != nil {
				return err
			}
			all = append(all, rec)
		}
		slices.SortFunc(all, func(x, y driver.Record) int { return strings.Compare(x.Key, y.Key) })
		if asJSON {
			views := make([]recordView, 0, len(all))
			for _, rec := range all {
				views = append(views, viewState(rec))
			}
			return printJSON(a.stdout, views, true)
		}
		if len(all) == 0 {
			a.say("nothing is recorded%s", under(args))
			return nil
		}
		return table(a.stdout, recordList(all, time.Now()))
	})
	return cmd
}

// recordList makes one row for each record.
func recordList(all []driver.Record, now time.Time) [][]string {
	rows := [][]string{{"KEY", "STATE", "ATTEMPTS", "LAST BY", "SINCE", "KEPT FOR"}}
	for _, rec := range all {
		since, kept := "-", "-"
		last := rec.Began
		if rec.Done {
			last = rec.Finished
		}
		if !last.IsZero() {
			since = short(max(0, now.Sub(last))) // the store's clock may be ahead
		}
		if rec.Left > 0 {
			kept = short(rec.Left)
		}
		rows = append(rows, []string{safe(rec.Key), viewState(rec).State, strconv.FormatInt(rec.Attempts, 10), ownerLabel(rec.Owner, false), since, kept})
	}
	return rows
}
