package main

import (
	"context"
	"fmt"
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
how many attempts began, which process began the last one, when it began or ended, for
how much longer that is kept, and how it failed. It is no snapshot: the list is read while
the records change.

"failed" is an attempt that failed: the next call runs it again. "begun" is one that is
under way, or crashed: baton once show KEY tells which. "final" is an exit code of
--final. Output is shown by baton once show KEY. Every character of the prefix stands
for itself.

With -o json: an array of what "baton once show" prints, without the output of what is
done, and without running.

` + exitTable,
		Example: `  baton once ls
  baton once ls migrate/
  baton once ls -o json | jq -r '.[] | select(.state == "failed") | "\(.key) \(.exit)"'`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	a.queryFlags(cmd)
	cmd.Args = noOnceKey(noMoreThanOne("PREFIX"))
	cmd.RunE = does(func(ctx context.Context, args []string) error {
		asJSON, err := a.json()
		if err != nil {
			return err
		}
		ops, _, store, err := a.openRecords(ctx)
		if err != nil {
			return err
		}
		defer shut(store)
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
				views = append(views, viewListed(rec))
			}
			return printJSON(a.stdout, views, true)
		}
		if len(all) == 0 {
			a.say("nothing is recorded%s", under(args))
			return nil
		}
		return table(a.stdout, recordList(all, time.Now()), 2, 5)
	})
	return cmd
}

// noOnceKey is noLimit for commands below "baton once".
func noOnceKey(args cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, given []string) error {
		if cmd.ArgsLenAtDash() >= 0 {
			return usage(`"once %s" runs no command, and %[1]q cannot be a KEY: use another one, or package once`, cmd.CalledAs())
		}
		return args(cmd, given)
	}
}

// openRecords opens a store whose records are shown or changed.
func (a *app) openRecords(ctx context.Context) (*once.Runner, *baton.Locker, driver.Store, error) {
	locks, store, err := a.open(ctx, baton.Config{}, outlives)
	if err != nil {
		return nil, nil, nil, err
	}
	ops, err := once.New(store, once.Config{})
	if err != nil {
		shut(store)
		return nil, nil, nil, err
	}
	return ops, locks, store, nil
}

// mostOfError is how much of an error a list shows.
const mostOfError = 60

// viewListed is a record in a list: without its result.
func viewListed(rec driver.Record) recordView {
	if rec.Done {
		return viewState(rec)
	}
	return viewRecord(rec)
}

// recordList makes one row for each record.
func recordList(all []driver.Record, now time.Time) [][]string {
	rows := [][]string{{"KEY", "STATE", "ATTEMPTS", "LAST BY", "SINCE", "KEPT FOR", "FAILURE"}}
	for _, rec := range all {
		v := viewListed(rec)
		since, kept, failure := "-", "-", "-"
		last := rec.Began
		if rec.Done || rec.Retry {
			last = rec.Finished
		}
		if !last.IsZero() {
			since = short(max(0, now.Sub(last))) // the store's clock may be ahead
		}
		if rec.Left > 0 {
			kept = short(rec.Left)
		}
		switch {
		case v.Exit != nil && v.Error != "":
			failure = fmt.Sprintf("exit %d: %s", *v.Exit, v.Error)
		case v.Exit != nil:
			failure = fmt.Sprintf("exit %d", *v.Exit)
		case v.Error != "":
			failure = v.Error
		}
		rows = append(rows, []string{safe(rec.Key), v.State, strconv.FormatInt(rec.Attempts, 10), ownerLabel(rec.Owner, false), since, kept, cut(safe(failure), mostOfError)})
	}
	return rows
}
