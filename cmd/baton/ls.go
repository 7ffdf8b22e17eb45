package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
)

func (a *app) listCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "ls [flags] [PREFIX]",
		Aliases: []string{"list"},
		Short:   "List the locks that are held or waited for",
		Long: `Lists the locks whose names begin with the prefix, or all. It is no snapshot: the
list is read while the locks change.

A lock @ask/KEY is a request to release KEY ("baton ask"): its mode is "request", and it
is held by the reason.

With -o json: an array of what "baton show" prints.

` + exitTable,
		Example: `  baton ls
  baton ls order:
  baton ls -o json | jq -r '.[] | select(.waiters | length > 3) | .key'`,
		Args:              noMoreThanOne("PREFIX"),
		ValidArgsFunction: a.completeKey,
	}
	a.queryFlags(cmd)
	cmd.RunE = does(func(ctx context.Context, args []string) error {
		asJSON, err := a.json()
		if err != nil {
			return err
		}
		locks, store, err := a.open(ctx, baton.Config{}, outlives)
		if err != nil {
			return err
		}
		defer shut(store)
		all, err := collect(ctx, locks, args)
		if err != nil {
			return err
		}
		if asJSON {
			views := make([]lockView, 0, len(all))
			for _, info := range all {
				views = append(views, view(info))
			}
			return printJSON(a.stdout, views, true)
		}
		if len(all) == 0 {
			a.say("no locks are held%s in %s (--store, BATON_STORE)", under(args), a.opened)
			return nil
		}
		return table(a.stdout, listing(all), spareColumns...)
	})
	return cmd
}

// collect returns the locks under the prefix in args, sorted by key.
func collect(ctx context.Context, locks *baton.Locker, args []string) ([]driver.KeyInfo, error) {
	prefix := ""
	if len(args) > 0 {
		prefix = args[0]
	}
	var all []driver.KeyInfo
	for info, err := range locks.List(ctx, prefix) {
		if err != nil {
			return nil, err
		}
		all = append(all, info)
	}
	slices.SortFunc(all, func(x, y driver.KeyInfo) int { return strings.Compare(x.Key, y.Key) })
	return all, nil
}

// under says in words to which prefix a list was limited.
func under(args []string) string {
	if len(args) == 0 || args[0] == "" {
		return ""
	}
	return fmt.Sprintf(" under %q", args[0])
}

// spareColumns are the columns that listing drops on a narrow terminal: the token and the
// end. "baton show" has both.
var spareColumns = []int{5, 4}

func listing(all []driver.KeyInfo) [][]string {
	rows := [][]string{{"KEY", "MODE", "HELD BY", "SINCE", "EXPIRES IN", "TOKEN", "WAITING"}}
	for _, info := range all {
		row := []string{safe(info.Key), "-", "-", "-", "-", "-", strconv.Itoa(len(info.Waiters))}
		if len(info.Holders) > 0 {
			h := info.Holders[0]
			row[1], row[2], row[3], row[4] = mode(h), ownerLabel(h.Owner, h.Foreign), short(h.Age), short(h.Remaining)
			if asksFor(info.Key) != "" {
				row[1] = "request"
			}
			if t := token(h); t != "" {
				row[5] = t
			}
			if more := len(info.Holders) - 1; more > 0 {
				row[2] += fmt.Sprintf(" and %d more", more)
			}
		}
		rows = append(rows, row)
	}
	return rows
}
